"""The launchers of fake kernels, whose starts are quick, slow, never-ending or failing.

A `FakeLauncher` counts the kernels that exist, from the begin of their start to their end. No process starts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec

from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import KernelStartFailed
from cellgate_kernels.base.tasks import until
from cellgate_kernels.channels.reception import Reception
from cellgate_kernels.kernel.held import HeldFork
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.launcher import KernelLauncher
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.testing.cells import Behaviour, Program, understand
from cellgate_kernels.testing.kernels import FakeHeldFork, FakeKernel

NOWHERE = Path("/nonexistent")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A start in progress, passed to a `Start`. `number`: counts all starts of the launcher, from 1."""

    number: int
    profile: KernelProfile


Start = Callable[[Attempt], Awaitable[None]]
"""Waits until the start is complete, and raises its error if it fails."""


async def at_once(attempt: Attempt) -> None:
    """Return after one turn of the loop: the kernel is ready."""
    await asyncio.sleep(0)


async def never_starts(attempt: Attempt) -> None:
    """Wait for ever: this kernel never becomes ready."""
    await asyncio.get_running_loop().create_future()


def starts_after(seconds: float) -> Start:
    """Return a start that takes this many seconds."""

    async def start(attempt: Attempt) -> None:
        await asyncio.sleep(seconds)

    return start


def fails_to_start(times: float = float("inf"), error: type[Exception] = KernelStartFailed) -> Start:
    """Return a start that fails `times` times with this error; later ones succeed."""

    async def start(attempt: Attempt) -> None:
        await asyncio.sleep(0)
        if attempt.number <= times:
            raise error(f"start {attempt.number} failed")

    return start


class Gate:
    """A `Start` that waits until the test lets one continue, the oldest first."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()
        self._arrived = asyncio.Event()

    async def __call__(self, attempt: Attempt) -> None:
        """Wait until a test lets the start continue."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        self._arrived.set()
        await turn

    async def detach(self) -> None:
        """Let the oldest start succeed, or the next one as soon as it comes."""
        await until(lambda: len(self.waiting) > 0, self._arrived)
        turn = self.waiting.popleft()
        if not turn.done():
            turn.set_result(None)


class FakeCatalog(KernelspecCatalog):
    """Python kernelspecs with these names; nothing is read from disk."""

    def __init__(self, names: Sequence[str] = ("python3",)) -> None:
        self._names = tuple(names)
        super().__init__(kernel_dirs=[])

    def reload(self) -> None:
        self._manifests = {}
        self._specs = {name: KernelSpec(display_name=name, language="python") for name in self._names}

    def refresh(self) -> None:
        """Do nothing: there is nothing on disk."""


class FakeLauncher(KernelLauncher):
    """Starts fake kernels, in place of a ``KernelLauncher``, in a pool or alone.

    `folder`: where kernels get their workspaces; without it they have none. `program` chooses what they do
    with a cell. `start` decides how they start, `ending` how they end, and `ready` is called with each kernel
    that is ready. `kernels` has branches too.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        program: Program = understand,
        start: Start = at_once,
        ready: Callable[[FakeKernel], object] = lambda kernel: None,
        ending: Callable[[FakeKernel], Awaitable[None]] | None = None,
        kernelspecs: Sequence[str] = ("python3",),
    ) -> None:
        # Doesn't call super().__init__: nothing is launched.
        self.catalog = FakeCatalog(kernelspecs)
        self.kernels: list[FakeKernel] = []
        self.started: list[KernelProfile] = []
        self.existing = 0
        self.most = 0
        self.in_one_workspace = True
        """Whether its kernels can share a workspace."""
        self._folder = folder
        self.program = program
        self._begin = start
        self._ready = ready
        self._end = ending
        self._messages = Reception()

    def forks(self, kernelspec: str) -> bool:
        return False

    def keeps_warm(self, profile: KernelProfile) -> bool:
        return True

    def shares_workspaces(self) -> bool:
        return self.in_one_workspace

    async def start(self, profile: KernelProfile) -> FakeKernel:
        self.catalog.get_kernel_spec(profile.kernelspec)
        self.started.append(profile)
        self.existing += 1
        self.most = max(self.most, self.existing)
        try:
            await self._begin(Attempt(len(self.started), profile))
            kernel = self._made(profile)
        except BaseException:
            self.existing -= 1
            raise
        self.kernels.append(kernel)
        self._ready(kernel)
        return kernel

    async def restore(self, held: HeldFork, spec: BranchSpec, *, like: Kernel | None = None) -> FakeKernel:
        assert isinstance(held, FakeHeldFork)
        assert like is None or isinstance(like, FakeKernel)
        return await held.restore(spec, held.kernel if like is None else like)

    def _made(self, profile: KernelProfile) -> FakeKernel:
        kernel_id = f"kernel-{len(self.kernels)}"
        own = (NOWHERE if self._folder is None else self._folder) / kernel_id
        workspace = profile.workspace or own
        if self._folder is not None and workspace == own:
            workspace.mkdir()
        kernel = FakeKernel(
            kernel_id, profile, workspace, self._chosen, reception=self._messages, ending=self._ended
        )
        if kernel.egress is not None:
            kernel.egress.mkdir()
        kernel.sandbox.branched = self._count_branch
        return kernel

    def _count_branch(self, kernel: FakeKernel) -> None:
        """Count a branch as every kernel: its end will be subtracted."""
        self.existing += 1
        self.most = max(self.most, self.existing)
        self.kernels.append(kernel)
        self._ready(kernel)

    def _chosen(self, code: str) -> Behaviour:
        """Return the current program's choice: a test may replace `program` at any time."""
        return self.program(code)

    async def _ended(self, kernel: FakeKernel) -> None:
        try:
            await asyncio.sleep(0)
            if self._end is not None:
                await self._end(kernel)
        finally:
            self.existing -= 1

    def close(self) -> None:
        """End the threads that read large messages."""
        self._messages.close(wait=True)
