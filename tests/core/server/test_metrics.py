"""The metrics: their names, their labels, what is said of them, and that they count what happens."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from cellgate.errors import reasons
from cellgate.execution.cell_record import RunEnd
from cellgate.http.listener.client_pace import Late, StreamPhase
from cellgate.http.metrics import (
    CLOSED,
    EXECUTION_CAUSES,
    KERNEL_DEATHS,
    SESSION_ENDS,
    KernelState,
    Metrics,
    Problem,
)
from cellgate.quotas.usage import COUNTED
from cellgate.record.store.sqlite.redo import LOG_BYTES
from cellgate.server.observing import Observer, Sampler
from cellgate.sessions.meter import KernelMeter
from cellgate.sessions.state import SessionState
from cellgate_kernels.base.errors import KernelspecNotFound, PoolExhausted
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.limits.memory import MemoryGroup, MemoryUse, uses
from cellgate_kernels.pool.pool import ClaimEnd, KernelPool
from cellgate_kernels.protocol.execution import Status
from cellgate_kernels.testing import FakeLauncher, virtual_time
from tests.core.world import World
from tests.pure.record.conftest import journal_at

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "monitoring.md"
ROW = r"^\| `(cellgate_\w+)(?:\{([\w, ]+)\})?` \| (?:gauge|counter|histogram) \|"
NAME = re.compile(r"cellgate(_[a-z]+)+")
UNITS = ("_seconds", "_bytes")
WORDS_OF_THINGS = frozenset({
    *("kernels", "sessions", "connections", "executions", "places", "claims", "problems", "tasks"),
    *("failures", "responses", "refusals", "deaths", "leaps", "kills", "info"),
})  # fmt: skip


@pytest.fixture
def families() -> Sequence[Metric]:
    """Ours, as declared, without those of the process."""
    return [family for family in Metrics().registry.collect() if family.name.startswith("cellgate_")]


def documented() -> dict[str, str]:
    """The metrics of the page with their label."""
    rows = re.findall(
        r"^\| `(cellgate_\w+)(?:\{([\w, ]+)\})?` \| \w+ \|", PAGE.read_text(), flags=re.MULTILINE
    )
    return dict(rows)


def name_of(family: Metric) -> str:
    return family.name + ("_total" if family.type == "counter" else "")


def test_names_follow_the_rule(families: Sequence[Metric]) -> None:
    """What, then a base unit or the things that are counted, then `_total` for counters only."""
    for family in families:
        assert NAME.fullmatch(family.name), family.name
        assert not family.name.endswith("_total"), family.name
        last = family.name.rpartition("_")[2]
        things = WORDS_OF_THINGS & set(family.name.split("_"))
        assert f"_{last}" in UNITS or things, f"{family.name} has no unit"
        if family.type == "histogram":
            assert family.name.endswith(UNITS), family.name
    assert len({family.name for family in families}) == len(families)


def test_each_has_a_sentence_of_help(families: Sequence[Metric]) -> None:
    assert [
        family.name for family in families if not re.fullmatch(r"[A-Z1].{10,}\.", family.documentation)
    ] == []


def values_of(families: Sequence[Metric], name: str) -> set[tuple[str, ...]]:
    [family] = [each for each in families if name_of(each) == name]
    found = {
        tuple(sample.labels.values()) for sample in family.samples if not sample.name.endswith("_created")
    }
    return found - {()}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("cellgate_kernels", KernelState),
        ("cellgate_sessions", SessionState),
        ("cellgate_connections", StreamPhase),
        ("cellgate_problems", Problem),
        ("cellgate_connections_closed_total", (*Late, *CLOSED)),
        ("cellgate_http_refusals_total", (*reasons(), "other")),
        ("cellgate_quota_refusals_total", (*COUNTED, "other")),
        ("cellgate_sessions_ended_total", (*SESSION_ENDS, "other")),
        ("cellgate_pool_claims_total", ClaimEnd),
        ("cellgate_kernel_deaths_total", KERNEL_DEATHS),
        ("cellgate_build_info", ("",)),
    ],
)
def test_every_label_value_is_there_from_the_start(
    families: Sequence[Metric], name: str, values: Sequence[str]
) -> None:
    assert values_of(families, name) == {(str(value),) for value in values}


def test_every_pair_of_status_and_cause_is_there_from_the_start(families: Sequence[Metric]) -> None:
    pairs = {(str(status), cause) for status, causes in EXECUTION_CAUSES.items() for cause in causes}
    assert values_of(families, "cellgate_executions_total") == pairs
    assert set(EXECUTION_CAUSES) == set(Status)


def test_a_label_has_few_values(families: Sequence[Metric]) -> None:
    """And none of them is a name that somebody chose."""
    for family in families:
        assert len({tuple(sample.labels.items()) for sample in family.samples}) <= 64, family.name


def test_the_reference_lists_exactly_these(families: Sequence[Metric]) -> None:
    labels = {
        name_of(family): ", ".join(
            dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        )
        for family in families
    }
    assert documented() == labels


def test_unknown_values_count_as_other() -> None:
    metrics = Metrics(quotas=("sessions",))
    metrics.quota_refused("sessions")
    metrics.quota_refused("stars")
    for status in (Status.DIED, Status.OK):
        Observer(metrics).ended(RunEnd(None, "ada", "s", "0123abcd", None, status, "meteor", 0.0, None))
    samples = {(s.name, *s.labels.values()): s.value for f in metrics.registry.collect() for s in f.samples}
    assert samples["cellgate_quota_refusals_total", "sessions"] == 1
    assert samples["cellgate_quota_refusals_total", "other"] == 1
    assert samples["cellgate_executions_total", "died", "other"] == 1
    assert samples["cellgate_executions_total", "ok", "none"] == 1


def test_no_series_tells_when_another_began() -> None:
    text = Metrics("1.2.3").render().decode()
    assert "_created" not in text
    assert 'cellgate_build_info{version="1.2.3"} 1.0\n' in text


def test_what_is_read_must_be_declared() -> None:
    metrics = Metrics()
    metrics.watch(lambda: {"cellgate_unheard_of": {"": 1.0}})
    with pytest.raises(AssertionError, match="not declared"):
        metrics.render()


# ---- what happens is counted -------------------------------------------------------------------------------


def counted(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for f in metrics.registry.collect() for s in f.samples}


def test_cells_and_kernels_are_counted(tmp_path: Path) -> None:
    """Cells that end well and at their deadline; claims, starts, deaths and ends."""
    with virtual_time() as loop:
        world = World(loop, tmp_path)
        found = loop.run_until_complete(_live(world))
        world.check()
    assert found["cellgate_executions_total", "ok", "none"] == 2
    assert found["cellgate_executions_total", "timeout", "cell_timeout"] == 1
    for name in ("queue", "run", "commit"):
        assert found[f"cellgate_execution_{name}_seconds_count",] == 3
    assert found["cellgate_execution_run_seconds_sum",] >= 1.0
    assert found["cellgate_kernel_deaths_total", "cell_timeout"] == 1
    assert found["cellgate_kernel_deaths_total", "out_of_memory"] == 1
    assert found["cellgate_kernel_deaths_total", "kernel_exit"] == 0
    assert found["cellgate_pool_claims_total", "waited"] == 2
    assert found["cellgate_pool_claims_total", "warm"] == 0
    assert found["cellgate_pool_claim_seconds_count",] == 2
    assert found["cellgate_kernel_start_seconds_count",] == 2
    assert found["cellgate_sessions_ended_total", "deleted"] == 1


async def _live(world: World) -> dict[tuple[str, ...], float]:
    metrics = Metrics()
    await world.open(observer=Observer(metrics))
    for code in ("hello", "ignores", "hello"):
        world.ask("s", code, timeout=1.0)
        await asyncio.sleep(10)
    kernel = world.kernel("s")
    assert kernel is not None
    kernel.die("out_of_memory")
    await asyncio.sleep(1)
    await world.manager.delete("ada", "s")
    await world.close()
    return counted(metrics)


async def test_claims_are_counted_by_how_they_end(tmp_path: Path) -> None:
    metrics = Metrics()
    launcher = FakeLauncher(tmp_path)
    profile = KernelProfile("python3")
    settings = PoolSettings(size=1, burst_size=1, max_kernels=1, claim_timeout=0.05)
    pool = KernelPool(launcher, settings, [profile], observer=Observer(metrics))
    pool.start()
    for _ in range(100):
        await asyncio.sleep(0)
    await pool.claim(profile)
    with pytest.raises(PoolExhausted):
        await pool.claim(profile)
    with pytest.raises(KernelspecNotFound):
        await pool.claim(KernelProfile("nothing"))
    found = counted(metrics)
    await pool.close()
    launcher.close()
    ends = {labels[1]: value for labels, value in found.items() if labels[0] == "cellgate_pool_claims_total"}
    assert ends == {"warm": 1, "waited": 0, "exhausted": 1, "deadline": 0, "failed": 1, "cancelled": 0}
    assert found["cellgate_pool_claim_seconds_count",] == 1


def test_memory_and_disk_are_sampled(tmp_path: Path, lane: Lane) -> None:
    """Of a process and its child together, and of the folder's file system."""
    held = "held = bytes(b'x' * 50_000_000); print(flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {held!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        metrics = Metrics()

        async def look() -> None:
            async with journal_at(tmp_path / "record") as journal:
                processes = [parent.pid, os.getpid()]
                await Sampler(metrics, tmp_path, journal, KernelMeter(lambda: processes, lane), lane).look()

        asyncio.run(look())
        [tree] = [use.memory for use in uses([parent.pid])]
    found = counted(metrics)
    assert tree > 50_000_000
    assert (
        found["cellgate_kernels_memory_bytes",] > found["cellgate_largest_kernel_memory_bytes",] > 50_000_000
    )
    assert found["cellgate_storage_bytes",] >= found["cellgate_storage_free_bytes",] > 0
    assert found["cellgate_record_bytes",] > LOG_BYTES
    assert found["cellgate_machine_memory_bytes",] > found["cellgate_machine_memory_available_bytes",] > 0
    assert uses([0x7FFFFFFF]) == [MemoryUse()]


def test_memory_that_forks_share_counts_once() -> None:
    """Of nine forks of a process that holds 100 MB."""
    code = (
        "import os, signal\n"
        "held = bytearray(b'x' * 100_000_000)\n"
        "forks = [os.fork() or signal.pause() for _ in range(9)]\n"
        "print(*forks, flush=True)\n"
        "input()\n"
        "for fork in forks: os.kill(fork, signal.SIGKILL)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert len(parent.stdout.readline().split()) == 9
        [found] = uses([parent.pid])
        parent.communicate("\n")
    assert 100_000_000 < found.memory < 200_000_000


def test_a_kernel_with_a_control_group_uses_its_charge(tmp_path: Path) -> None:
    """In both versions, without files that nobody has read for a while; kills are counted."""
    for version, names, stat in (
        (1, ("memory.usage_in_bytes", "memory.oom_control"), "total_inactive_file"),
        (2, ("memory.current", "memory.events"), "inactive_file"),
    ):
        folder = tmp_path / f"v{version}"
        folder.mkdir()
        (folder / names[0]).write_text("5000\n")
        (folder / names[1]).write_text("under_oom 0\noom 7\noom_kill 3\n")
        (folder / "memory.stat").write_text(f"anon 1\n{stat} 2000\ninactive_files 1\n")
        group = MemoryGroup(folder, version)
        assert (group.charge(), group.kills()) == (3000, 3)
    assert MemoryGroup(tmp_path, 2).kills() == 0
    with pytest.raises(OSError, match="memory"):
        MemoryGroup(tmp_path, 2).charge()


def test_a_group_is_a_kernel_s_own_only_if_it_is_not_ours(tmp_path: Path) -> None:
    for process, path in (("self", "/a"), ("5", "/a"), ("6", "/a/kernel"), ("7", "/"), ("8", "/b")):
        (tmp_path / process).mkdir()
        (tmp_path / process / "cgroup").write_text(f"4:memory:{path}\n0::/\n")
    mount = "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    (tmp_path / "self" / "mountinfo").write_text(mount)
    memory = Path("/sys/fs/cgroup/memory")
    assert MemoryGroup.of_all([5, 6, 7, 8, 9], tmp_path) == {
        6: MemoryGroup(memory / "a" / "kernel", 1),
        8: MemoryGroup(memory / "b", 1),
    }


def test_processor_time_is_that_of_processes_and_of_reaped_children() -> None:
    spin = "import time\nwhile time.process_time() < 0.1: pass"
    child = f"subprocess.run([sys.executable, '-c', {spin!r}])"
    code = f"import os, subprocess, sys; {child}; print(sum(os.times()[:4]), flush=True); input()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        told = float(parent.stdout.readline())
        of_parent, of_us, of_nobody = uses([parent.pid, os.getpid(), 0x7FFFFFFF])
        parent.communicate(b"\n")
    # A sum of hundredths has an error of its own.
    assert 0 < told - 0.001 < of_parent.seconds <= of_us.seconds
    assert of_nobody == MemoryUse()
