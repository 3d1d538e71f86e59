"""Which kernel is asked for its environment: one without a client's variables, before anybody used it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cellgate_kernels.base.errors import KernelspecNotFound, KernelStartFailed
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.kernel import launcher as kernels
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.launcher import KernelLauncher
from cellgate_kernels.launch.base import CellgateProvisioner
from cellgate_kernels.specs.catalog import KernelspecCatalog
from tests.gateway.kernels.test_kernel import (
    PYTHON3,
    NewLauncher,
    folders,
    launcher,
    new_launcher,
    one_backend,
)

__all__ = ["folders", "launcher", "new_launcher"]  # fixtures

WITH_VARIABLES = KernelProfile("python3", env=(("PYTHONDONTWRITEBYTECODE", "1"),))
OF_LITTLE_MEMORY = KernelProfile("python3", ResourceLimits(memory=512 * MIB))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The answers of kernels that were asked, in order."""
    ask, answers = kernels.ask, []

    async def counted(*arguments: Any) -> object:
        answers.append(await ask(*arguments))
        return answers[-1]

    monkeypatch.setattr(kernels, "ask", counted)
    return answers


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[KernelProfile]:
    """The profiles of the kernels that were launched, in order."""
    launch, profiles = KernelLauncher._launch, []

    async def noted(self: KernelLauncher, manager: Any, kernel_id: str, profile: Any, *rest: Any) -> Kernel:
        profiles.append(profile)
        return await launch(self, manager, kernel_id, profile, *rest)

    monkeypatch.setattr(KernelLauncher, "_launch", noted)
    return profiles


async def start(launcher: KernelLauncher, *profiles: KernelProfile) -> list[object]:
    """Start kernels together and end them; their environments."""
    running = await asyncio.gather(*map(launcher.start, profiles))
    try:
        return [kernel.environment for kernel in running]
    finally:
        for kernel in running:
            await kernel.discard()


async def test_one_kernel_without_variables_is_asked_once_for_all(
    launcher: KernelLauncher, asked: list[object], started: list[KernelProfile]
) -> None:
    first, second = await start(launcher, WITH_VARIABLES, WITH_VARIABLES)
    assert started[0] == PYTHON3
    assert started.count(PYTHON3) == 1
    assert [first, second] == [asked[0], asked[0]]
    assert first is not None
    assert await start(launcher, PYTHON3, OF_LITTLE_MEMORY, WITH_VARIABLES) == [first] * 3
    assert len(asked) == 1
    assert len(started) == 6


@one_backend
@pytest.mark.parametrize("meanwhile", [False, True])
async def test_a_kernel_whose_neighbours_could_answer_for_it_tells_nobody(
    launcher: KernelLauncher,
    asked: list[object],
    started: list[KernelProfile],
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: bool,
) -> None:
    """Nor does one that was alone only until it had been asked."""
    looked: list[str] = []

    def was_alone(provisioner: CellgateProvisioner) -> bool:
        looked.append(str(provisioner.kernel_id))
        return looked[-1] != looked[0] or (meanwhile and len(looked) == 1)

    monkeypatch.setattr(CellgateProvisioner, "was_alone", was_alone)
    (environment,) = await start(launcher, PYTHON3)
    # Another was asked, which nobody has used.
    assert started == [PYTHON3, PYTHON3]
    assert len(asked) == 1 + meanwhile
    assert environment is asked[-1] is not None
    assert await start(launcher, PYTHON3) == [environment]
    assert len(started) == 3


@one_backend
async def test_another_image_behind_the_name_is_asked_too(
    launcher: KernelLauncher,
    asked: list[object],
    started: list[KernelProfile],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The tag moves after the first launch.
    monkeypatch.setattr(kernels, "_digest_of", lambda *_: "old" if len(started) == 1 else "new")
    (environment,) = await start(launcher, WITH_VARIABLES)
    assert environment is not None
    assert [bool(profile.env) for profile in started] == [False, True, False, True]
    assert len(asked) == 2
    await start(launcher, WITH_VARIABLES)
    assert len(asked) == 2


@one_backend
async def test_a_kernel_that_tells_nothing_is_not_asked_again_at_once(
    launcher: KernelLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, answer = 0, None

    async def ask(*_: object) -> object:
        nonlocal questions
        questions += 1
        return answer

    monkeypatch.setattr(kernels, "ask", ask)
    monkeypatch.setattr(kernels, "ASK_AGAIN", 1000.0)
    assert await start(launcher, OF_LITTLE_MEMORY, OF_LITTLE_MEMORY) == [None, None]
    before = questions
    assert await start(launcher, OF_LITTLE_MEMORY) == [None]
    assert questions == before, "one that has just failed is not asked again"
    assert await start(launcher, WITH_VARIABLES, WITH_VARIABLES) == [None, None]
    assert questions == before + 1, "a client's limits keep nobody else from asking"
    launcher._ask_at = {profile: at - 2000.0 for profile, at in launcher._ask_at.items()}
    answer = object()
    assert await start(launcher, WITH_VARIABLES) == [answer]


@one_backend
async def test_a_kernel_with_variables_starts_even_if_none_without_them_does(
    launcher: KernelLauncher, started: list[KernelProfile], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = KernelLauncher._launch

    async def failing(self: KernelLauncher, manager: Any, kernel_id: str, profile: Any, *rest: Any) -> Kernel:
        if not profile.env:
            raise KernelStartFailed("there is no room")
        return await launch(self, manager, kernel_id, profile, *rest)

    monkeypatch.setattr(KernelLauncher, "_launch", failing)
    assert await start(launcher, WITH_VARIABLES) == [None]
    assert started == [WITH_VARIABLES]


async def cancelled_when(moment: asyncio.Event, launcher: KernelLauncher) -> None:
    """Begin to start a kernel, and cancel that then."""
    task = asyncio.create_task(launcher.start(WITH_VARIABLES))
    async with asyncio.timeout(60):
        await moment.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@one_backend
async def test_a_start_that_is_cancelled_while_another_kernel_is_asked_leaves_none(
    launcher: KernelLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture of the folders sees what is left."""
    asking = asyncio.Event()

    async def ask(*_: object) -> None:
        asking.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(kernels, "ask", ask)
    await cancelled_when(asking, launcher)


@one_backend
async def test_a_start_that_is_cancelled_while_the_asked_kernel_ends_leaves_none(
    launcher: KernelLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, discard = asyncio.Event(), Kernel.discard

    async def slow(self: Kernel) -> None:
        ending.set()
        await asyncio.sleep(0.2)
        await discard(self)

    monkeypatch.setattr(Kernel, "discard", slow)
    await cancelled_when(ending, launcher)


@one_backend
async def test_what_is_no_kernelspec_starts_nothing(
    new_launcher: NewLauncher, catalog: KernelspecCatalog, started: list[KernelProfile]
) -> None:
    with pytest.raises(KernelspecNotFound):
        await new_launcher().start(KernelProfile("no-such-spec", env=(("A", "1"),)))
    assert started == []
