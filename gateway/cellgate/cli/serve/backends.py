"""Which isolation backend ``cellgate serve`` uses: the requested one, or the best that works here.

Each backend's own check decides, by trying; this module has the order and the messages. It starts no kernel
and keeps no connection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cellgate_kernels.backends.docker import check_engine
from cellgate_kernels.backends.landlock import LandlockProvisioner, not_held
from cellgate_kernels.backends.process import ProcessProvisioner
from cellgate_kernels.backends.sandbox import SandboxProvisioner
from cellgate_kernels.base.errors import BackendUnavailable, ImageMissing
from cellgate_kernels.base.settings import ContainerSettings
from cellgate_kernels.engine.engine import Engine

NOT_ISOLATED = "KERNELS ARE NOT ISOLATED: code can read and change all your files."


@dataclass(frozen=True, slots=True)
class Backend:
    """A choice: `isolation` as in /v1/info; a `warning` to show, a `note` on a better choice.

    `gaps`: what it does not hold or have of what a sandbox does, a sentence each, then what would bring that.
    """

    name: str
    isolation: str
    container: ContainerSettings | None = None
    warning: str = ""
    note: str = ""
    gaps: tuple[str, ...] = ()


async def choose_backend(wanted: str, container: ContainerSettings, docker_url: str) -> Backend:
    """Return the backend called `wanted`; for ``auto`` the first that works.

    Raises BackendUnavailable, which says what to install or create.
    """
    if wanted == "docker":
        return await _docker(container, docker_url)
    if wanted == "sandbox":
        return await _sandbox()
    if wanted == "landlock":
        return await _landlock()
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
        return replace(await _sandbox(), note=note)
    except BackendUnavailable as error:
        why = error.message
    try:
        return replace(await _landlock(why), note=note)
    except BackendUnavailable as error:
        return await _process(f"{NOT_ISOLATED} {why} {error.message}", note)


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


async def _landlock(instead: str = "") -> Backend:
    """Return the backend. `instead`: why there is no sandbox, and what would bring it."""
    await LandlockProvisioner.check()
    gaps = (*not_held(), *([instead] if instead else []))
    return Backend("landlock", LandlockProvisioner.isolation, gaps=gaps)


async def _process(warning: str, note: str = "") -> Backend:
    await ProcessProvisioner.check()
    return Backend("process", ProcessProvisioner.isolation, warning=warning, note=note, gaps=(warning,))
