"""Which isolation backend ``cellgate serve`` uses: the requested one, or the best that works here.

Each backend's own check decides, by trying; this module has the order and the messages. It starts no kernel
and keeps no connection.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgate_kernels.backends.docker import check_engine
from cellgate_kernels.backends.process import ProcessProvisioner
from cellgate_kernels.backends.sandbox import SandboxProvisioner
from cellgate_kernels.base.errors import BackendUnavailable, ImageMissing
from cellgate_kernels.base.settings import ContainerSettings
from cellgate_kernels.engine.engine import Engine

NOT_ISOLATED = "KERNELS ARE NOT ISOLATED: code can read and change all your files."


@dataclass(frozen=True, slots=True)
class Backend:
    """A choice: `isolation` as in /v1/info; a `warning` to show, a `note` on a better choice."""

    name: str
    isolation: str
    container: ContainerSettings | None = None
    warning: str = ""
    note: str = ""


async def choose_backend(wanted: str, container: ContainerSettings, docker_url: str) -> Backend:
    """Return the backend called `wanted`; for ``auto`` the first of docker, sandbox and process that works.

    Raises BackendUnavailable, which says what to install or create.
    """
    if wanted == "docker":
        return await _docker(container, docker_url)
    if wanted == "sandbox":
        return await _sandbox()
    if wanted == "process":
        return await _process(NOT_ISOLATED)
    note = ""
    try:
        return await _docker(container, docker_url)
    except ImageMissing as error:
        note = f"For kernels in containers: {error.message}"
    except BackendUnavailable as error:
        note = f"For kernels in containers: {error.message} Then: cellgate image build"
    try:
        sandbox = await _sandbox()
    except BackendUnavailable as error:
        return await _process(f"{NOT_ISOLATED} {error.message}", note)
    return Backend(sandbox.name, sandbox.isolation, note=note)


async def _docker(container: ContainerSettings, url: str) -> Backend:
    engine = Engine(url)
    await engine.open()
    try:
        await check_engine(engine, container)
    finally:
        await engine.close()
    return Backend("docker", container.isolation, container)


async def _sandbox() -> Backend:
    await SandboxProvisioner.check()
    return Backend("sandbox", SandboxProvisioner.isolation)


async def _process(warning: str, note: str = "") -> Backend:
    await ProcessProvisioner.check()
    return Backend("process", ProcessProvisioner.isolation, warning=warning, note=note)
