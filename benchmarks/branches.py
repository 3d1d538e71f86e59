"""Branches and checkpoints of a kernel, against kernels that are started as programs and import the same.

All on the sandbox, through the kernels' own interface and without a gateway. A branch counts from the call
to the result of its first cell, and so does a kernel that is made of a checkpoint. A checkpoint's pause is
the longest time that a task in the kernel's event loop, which wakes each millisecond, did not run. It needs
bubblewrap, so it runs only if named.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, at_most, quantile, summary
from benchmarks.options import Options, say
from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.launcher import KernelFolders, KernelLauncher
from cellgate_kernels.protocol.execution import Execution
from cellgate_kernels.protocol.messages import Channel, Message, new_message
from cellgate_kernels.protocol.outputs import OutputCaps, OutputLimiter
from cellgate_kernels.specs.catalog import KernelspecCatalog

TICKS = """
import asyncio, time
longest = 0.0
async def tick():
    global longest
    last = time.perf_counter()
    while True:
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest = max(longest, now - last - 0.001)
        last = now
ticking = asyncio.ensure_future(tick())
"""
IMPORTS = "import numpy, pandas\nimport matplotlib.pyplot"
LARGE = "import numpy\nheld = numpy.ones(2**27)"
PROFILE = KernelProfile("python3", ResourceLimits(memory=4096 * MIB))


def measure(options: Options) -> Sequence[Figure]:
    """All figures of branches; `--backend` does not matter."""
    return asyncio.run(_measure(options))


async def _measure(options: Options) -> Sequence[Figure]:
    rounds = options.count(12, 2)
    with tempfile.TemporaryDirectory(prefix="cg-", dir="/tmp") as folder:
        folders = KernelFolders(Path(folder, "run"), Path(folder, "work"))
        folders.runtime.mkdir()
        folders.workspaces.mkdir()
        launcher = KernelLauncher(KernelspecCatalog(backend="sandbox"), folders)
        kinds = {"empty": "pass", "with imports": IMPORTS, "with an array of 1 GB": LARGE}
        parents = {kind: await launcher.start(PROFILE) for kind in kinds}
        for kind, parent in parents.items():
            await _run(parent, kinds[kind])
        spent: dict[str, list[float]] = {kind: [] for kind in kinds}
        used: dict[str, list[float]] = {kind: [] for kind in kinds}
        kept: dict[str, list[_Kept]] = {kind: [] for kind in kinds}
        cold: list[float] = []
        for _ in range(rounds):
            for kind, parent in parents.items():
                seconds, processor = await _branch(parent)
                spent[kind].append(seconds)
                used[kind].append(processor)
                kept[kind].append(await _checkpoint(launcher, parent))
            cold.append(await _start(launcher))
            say(f"branches: {spent['empty'][-1] * 1000:.0f} ms, cold {cold[-1] * 1000:.0f} ms")
        await asyncio.gather(*(parent.discard() for parent in parents.values()))
    return [*_figures(spent, used, cold), *_kept_figures(kept)]


def _figures(spent: dict[str, list[float]], used: dict[str, list[float]], cold: list[float]) -> list[Figure]:
    middle = {kind: quantile(samples, 0.5) for kind, samples in spent.items()}
    started = quantile(cold, 0.5)
    targets = {"empty": at_most(150), "with an array of 1 GB": at_most(250)}
    figures = [
        Figure(
            f"branch to its first result, {kind}, p50",
            middle[kind] * 1000,
            "ms",
            targets.get(kind),
            details=summary(samples),
        )
        for kind, samples in spent.items()
    ]
    figures += [
        Figure(f"  the gateway's processor time, {kind}, p50", quantile(samples, 0.5) * 1000, "ms")
        for kind, samples in used.items()
    ]
    figures += [
        Figure("kernel started cold with imports, p50", started * 1000, "ms", details=summary(cold)),
        Figure("  branch with imports against it", middle["with imports"] / started, "x", at_most(0.1)),
    ]
    return figures


async def _branch(parent: Kernel) -> tuple[float, float]:
    begun, before = time.perf_counter(), _processor_time()
    branch = await parent.branch(BranchSpec())
    await _run(branch, "1 + 1")
    elapsed, used = time.perf_counter() - begun, _processor_time() - before
    await branch.discard()
    return elapsed, used


@dataclass(frozen=True, slots=True)
class _Kept:
    """A checkpoint, in seconds: how long it took, the kernel's pause, and from a rollback to a result."""

    taken: float
    pause: float
    restored: float


def _kept_figures(kept: dict[str, list[_Kept]]) -> list[Figure]:
    pauses = {"empty": at_most(10), "with an array of 1 GB": at_most(60)}
    figures = []
    for kind, samples in kept.items():
        shown = {
            "pause of a kernel for a checkpoint": ([each.pause for each in samples], pauses.get(kind)),
            "  checkpoint taken": ([each.taken for each in samples], None),
            "  rollback to its first result": ([each.restored for each in samples], None),
        }
        figures += [
            Figure(f"{what}, {kind}, p50", quantile(times, 0.5) * 1000, "ms", target, details=summary(times))
            for what, (times, target) in shown.items()
        ]
    return figures


async def _checkpoint(launcher: KernelLauncher, parent: Kernel) -> _Kept:
    await _run(parent, TICKS)
    await _run(parent, "await asyncio.sleep(0.05); longest = 0.0")
    begun = time.perf_counter()
    held = await parent.checkpoint()
    taken = time.perf_counter() - begun
    text = await _run(parent, "await asyncio.sleep(0.01); ticking.cancel(); print(longest)")
    begun = time.perf_counter()
    kernel = await launcher.restore(held, BranchSpec(BranchWorkspace.SHARED))
    await _run(kernel, "1 + 1")
    restored = time.perf_counter() - begun
    await kernel.discard()
    held.close()
    await asyncio.shield(held.ended)
    return _Kept(taken, float(text), restored)


async def _start(launcher: KernelLauncher) -> float:
    begun = time.perf_counter()
    kernel = await launcher.start(PROFILE)
    await _run(kernel, IMPORTS)
    elapsed = time.perf_counter() - begun
    await kernel.discard()
    return elapsed


async def _run(kernel: Kernel, code: str) -> str:
    """What the cell prints."""
    message = new_message(Channel.SHELL, "execute_request", {"code": code}, session=kernel.connection.session)
    cell = Execution(message.header.msg_id, code, OutputLimiter(OutputCaps()))
    ended = asyncio.get_running_loop().create_future()

    printed: list[str] = []

    def receive(received: Message) -> None:
        printed.extend(event.content["text"] for event in cell.receive(received) if event.type == "stream")
        if cell.finished and not ended.done():
            ended.set_result(None)

    stop = kernel.connection.listen(receive)
    cell.sent()
    kernel.connection.send(message)
    async with asyncio.timeout(60):
        await ended
    stop()
    return "".join(printed)


def _processor_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
