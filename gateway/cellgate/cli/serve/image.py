"""``cellgate image build`` and ``cellgate image check``: the image that kernels in containers run from.

``cellgate_kernels.engine.image`` builds it; the check starts a kernel as the gateway does. This module
shows both. Neither needs a running gateway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from rich.console import Console
from traitlets import Enum, Unicode

from cellgate.cli.actions import check_options
from cellgate.cli.base import BaseApp, UsageError, expanded
from cellgate.cli.serve.options import trait_of
from cellgate.server.settings import KernelSettings
from cellgate_kernels.base.errors import near_file
from cellgate_kernels.base.settings import ContainerSettings
from cellgate_kernels.specs.environments import OWN, ListedEnvironment, environment_of

CHECK_TIMEOUT = 120.0

_VERSIONS = """
import importlib.metadata, json, platform
print(json.dumps({"python": platform.python_version(),
    **{d.name: d.version for d in importlib.metadata.distributions()}}))
"""
_SHOWN = ("python", "ipykernel", "numpy", "pandas", "matplotlib")


class ImageApp(BaseApp):
    """``cellgate image``."""

    name = "cellgate-image"
    usage = "build|check [options]"
    forms = ("build", "check")
    description = """
        build makes the image of kernels in containers: "standard" has kernels of Python, bash and JavaScript,
        what analysts expect, from pandas to plotly and DuckDB, git, curl, jq, unzip, sqlite3, and a font for
        Chinese, Japanese and Korean; "minimal" has kernels of Python and bash, numpy, pandas and matplotlib.
        It needs a container engine, the network and a few minutes.

        check starts one kernel from the image, runs one cell, and prints what is in it.
    """
    examples = """
        cellgate image build
        cellgate image build --environment minimal
        cellgate image build --base-image python:3.12-slim-bookworm
        cellgate image check --runtime runsc
    """

    options_of_some = MappingProxyType(
        {"base_image": "build", "kernel_environment": "build", "requirements": "build", "runtime": "check"}
    )

    image = trait_of(ContainerSettings, "image")
    runtime = trait_of(ContainerSettings, "runtime")
    docker_url = trait_of(KernelSettings, "docker_url")
    base_image = Unicode(help="The image to build on; default: the one in Dockerfile.kernel.").tag(
        config=True, metavar="NAME"
    )
    kernel_environment = Enum(
        [*map(str, ListedEnvironment), ""],
        "",
        help="The packages: standard or minimal; default: those of the image of this name, or standard.",
    ).tag(config=True, metavar="NAME")
    requirements = Unicode(help="A list of packages of your own, instead of Cellgate's.").tag(
        config=True, metavar="FILE"
    )

    aliases = {  # noqa: RUF012
        "image": "ImageApp.image",
        "base-image": "ImageApp.base_image",
        "environment": "ImageApp.kernel_environment",
        "requirements": "ImageApp.requirements",
        "runtime": "ImageApp.runtime",
        "docker-url": "ImageApp.docker_url",
        **BaseApp.aliases,
    }

    def start(self) -> NoReturn:
        """Run the action of the first argument and exit with 0. Raises UsageError or BackendUnavailable."""
        if self.extra_args not in (["build"], ["check"]):
            raise UsageError("cellgate image build, or cellgate image check; see cellgate image --help")
        check_options(self, self.extra_args[0])
        console = Console(highlight=False, soft_wrap=True, markup=False)
        if self.extra_args == ["build"]:
            self._build(console)
        else:
            asyncio.run(self._check(console))
        raise SystemExit(0)

    def _build(self, console: Console) -> None:
        from cellgate_kernels.engine.image import build_image  # noqa: PLC0415 - keeps --help quick

        requirements = self._packages()
        console.print(f"packages of {environment_of(requirements) or requirements} ...")
        with console.status("building the kernel image") as status:
            made = build_image(
                self.docker_url,
                self.image,
                status.update if console.is_terminal else console.print,
                base_image=self.base_image,
                requirements=requirements,
            )
        console.print(f"image   {self.image}\ndigest  {made}\n\nTry it: cellgate image check")

    def _packages(self) -> Path:
        """Return the list of packages that was asked for, or that the image of this name was built of."""
        from cellgate_kernels.engine.image import built_of  # noqa: PLC0415 - keeps --help quick

        if self.kernel_environment and self.requirements:
            raise UsageError("--environment, or --requirements: not both")
        if self.requirements:
            own = expanded(self.requirements)
            if not own.is_file():
                raise UsageError(f"--requirements: there is no file {own}{near_file(own)}")
            return own
        name = self.kernel_environment or built_of(self.docker_url, self.image)
        if name == OWN:
            raise UsageError(
                f"the image {self.image} was built of a list of your own: name it with --requirements, or"
                " --environment standard"
            )
        return ListedEnvironment(name or ListedEnvironment.STANDARD).lock

    async def _check(self, console: Console) -> None:
        from cellgate_kernels.backends.docker import check_engine  # noqa: PLC0415
        from cellgate_kernels.engine.engine import Engine  # noqa: PLC0415

        settings = ContainerSettings(self.image, self.runtime)
        engine = Engine(self.docker_url)
        await engine.open()
        try:
            digest = await check_engine(engine, settings)
            async with asyncio.timeout(CHECK_TIMEOUT):
                versions = await _versions(engine, settings)
        finally:
            await engine.close()
        console.print("\n".join(_report(settings.isolation, self.image, digest, versions)))


def _report(isolation: str, image: str, digest: str, versions: dict[str, str]) -> Iterator[str]:
    yield f"image       {image}"
    yield f"digest      {digest}"
    yield f"isolation   {isolation}: a kernel started and ran a cell"
    for name in _SHOWN:
        if name in versions:
            yield f"{name:<11} {versions[name]}"
    yield f"packages    {len(versions) - 1}"


async def _versions(engine: Any, settings: Any) -> dict[str, str]:
    """Return the versions of Python and all packages, as reported by a kernel of the image."""
    from dataclasses import asdict  # noqa: PLC0415

    from jupyter_client.manager import AsyncKernelManager  # noqa: PLC0415

    from cellgate_kernels.specs.catalog import KernelspecCatalog  # noqa: PLC0415

    catalog = KernelspecCatalog(backend="docker", provisioner_config=asdict(settings))
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=catalog, autorestart=False)
    await manager.start_kernel(engine=engine)
    client = manager.client()
    client.start_channels(hb=False)
    try:
        await client.wait_for_ready(timeout=CHECK_TIMEOUT)
        request = client.execute(_VERSIONS)
        text = ""
        while True:
            message = await client.get_iopub_msg()
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "stream":
                text += message["content"]["text"]
            if message["content"].get("execution_state") == "idle":
                break
        versions: dict[str, str] = json.loads(text)
        return versions
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
