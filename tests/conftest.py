"""Fixtures that every test may use: a shared gateway, and gateways with options of their own."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import psutil
import pytest
from docker.api.client import APIClient
from hypothesis import strategies
from tornado.ioloop import IOLoop

from cellgate_kernels.backends.docker import check_engine
from cellgate_kernels.backends.sandbox import SandboxProvisioner
from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.base.settings import ContainerSettings
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.specs.catalog import data_folder
from tests import long
from tests.fuzz.budget import Fuzz
from tests.support import leftovers
from tests.support.commands import INSTALLED
from tests.support.free_ports import free_port
from tests.support.place import Place, abandoned
from tests.support.requirements import require
from tests.support.scheduling import TogetherWhereShared
from tests.support.server import GatewayProcess
from tests.support.workers import Importer

pytest_plugins = ["tests.support.kernels", "tests.support.sleepers"]

T = TypeVar("T")

NO_ENGINE = "unix:///nonexistent/docker.sock"
"""`auto` is then the sandbox where there is one; containers have tests of their own."""

StartGateway = Callable[..., GatewayProcess]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this suite."""
    parser.addoption("--crash-rounds", type=int, default=1, help="how often the gateway is killed under load")
    parser.addoption("--nightly", action="store_true", help="run the tests that are marked nightly, too")
    parser.addoption("--quick", action="store_true", help="leave out the tests that tests/long.txt lists")
    parser.addoption(
        "--hop", action="store_true", help="let another gateway of a cluster hand requests for sessions on"
    )
    parser.addoption("--fuzz-seconds", type=float, default=0, help="how long each fuzz target runs")


def _can_hop(item: pytest.Item) -> bool:
    """Whether a test asks for a session that another gateway may have."""
    assert isinstance(item, pytest.Function)
    return {"gateway", "session"} <= {*item.fixturenames} and item.get_closest_marker("alone") is None


LONG = ("tests/containers/", "tests/clients/")
"""Folders of tests that take many times as long as others: they start an engine's containers, or browsers."""


def is_long(item: pytest.Item) -> bool:
    """Whether a test is known to take long: it has a time of its own, is in `LONG`, or is listed."""
    if item.get_closest_marker("timeout") is not None or item.nodeid.startswith(LONG):
        return True
    return long.function_of(item.nodeid) in item.config.stash[_LISTED]


def early(some: Sequence[T], others: Sequence[T]) -> Iterator[T]:
    """Yield all, each in its order, and `some` of them spread over the first nine tenths."""
    each = 9 * len(others) // (10 * max(1, len(some)))
    rest = iter(others)
    for item in some:
        yield item
        yield from islice(rest, each)
    yield from rest


_LISTED = pytest.StashKey[frozenset[str]]()


def leave_out(config: pytest.Config, items: list[pytest.Item], left_out: list[pytest.Item]) -> None:
    """Remove these from the tests to run, and say so to pytest."""
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for the night, and in a quick run what takes long. A fuzz target may take its seconds
    on top of the usual timeout.

    Tests that take long are among the first nine tenths, so that of those that run side by side none has much
    left to do when the others have nothing. Not all in front: most of them wait, and would do so together.
    With none of them in the last third, processors were idle for four tenths of the last minutes.
    """
    listed = config.stash[_LISTED] = long.listed()
    if not config.getoption("--nightly"):
        leave_out(config, items, [item for item in items if item.get_closest_marker("nightly")])
    if config.getoption("--hop"):
        leave_out(config, items, [item for item in items if not _can_hop(item)])
    if config.getoption("--quick"):
        leave_out(config, items, [item for item in items if long.function_of(item.nodeid) in listed])
    items[:] = early([item for item in items if is_long(item)], [item for item in items if not is_long(item)])
    seconds, usual = config.getoption("--fuzz-seconds"), float(config.getini("timeout"))
    for item in items:
        assert isinstance(item, pytest.Function)
        if seconds and "fuzz" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(usual + 2 * seconds))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TogetherWhereShared:
    """The order in which processes get tests: modules that share much first."""
    return TogetherWhereShared(config, log)


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Runs a fuzz target for as long as ``--fuzz-seconds`` says."""
    return Fuzz(request.config.getoption("--fuzz-seconds"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """All that was imported and collected stays to the end: no later collection of garbage looks at it."""
    # The forks of the importer have Hypothesis' table of all letters, too: making it takes seconds.
    if session.config.option.collectonly:
        strategies.text().validate()
    gc.collect()
    gc.freeze()


_OPEN = pytest.StashKey[set[str]]()
"""What this process had open at the end of the test before."""


def _open_files() -> set[str]:
    """What this process has open: number and name, which of a socket is unique."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own
            found.add(f"{link.name} {link.readlink()}")
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """A test that leaves a socket, a file, a loop or a process open fails itself.

    Python warns of it when the object is destroyed, and of one in a circle whenever garbage happens to be
    collected: in some later test of the same process. ``-X tracemalloc=10`` shows where it was opened.
    """
    yield
    if isinstance(item, pytest.Function):
        item.funcargs.clear()  # else pytest keeps the fixtures' values for a moment longer
    for loop in [loop for loop in IOLoop._ioloop_for_asyncio if loop.is_closed()]:
        del IOLoop._ioloop_for_asyncio[loop]  # tornado forgets a test's loop only when it sees the next one
    if not _open_files() - item.config.stash.get(_OPEN, set()):
        return  # most tests: looking is a hundred times cheaper than collecting
    left: list[str] = []
    usual = sys.unraisablehook
    sys.unraisablehook = lambda raised: left.append(f"{raised.exc_value!r} in {raised.object!r}")
    try:
        gc.collect()
    finally:
        sys.unraisablehook = usual
    item.config.stash[_OPEN] = _open_files()
    if left:
        pytest.fail("\n".join(["the test left behind:", *left]), pytrace=False)


_PLACE = pytest.StashKey[Place]()
_REMOVED = pytest.StashKey[list[str]]()
_WENT_WELL = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Enter a place of the run's own: the first process, before pytest asks for folders and starts others."""
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    removed = [(each, leftovers.remove(each)) for each in abandoned(Path(tempfile.gettempdir()))]
    config.stash[_REMOVED] = [
        f"removed what an earlier run left: {', '.join([str(each), *found])}" for each, found in removed
    ]
    place = config.stash[_PLACE] = Place()
    place.enter()
    if config.option.basetemp is None:
        config.option.basetemp = str(place.folder / "t")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Where the run takes place, and what was removed of earlier ones."""
    place = config.stash.get(_PLACE, None)
    return [] if place is None else [*config.stash[_REMOVED], f"place: {place.folder}"]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remember how it went, and say what runs on: the processes with the tests have ended by now."""
    config = session.config
    if (importer := config.stash.get(_IMPORTER, None)) is not None:
        importer.close()
    config.stash[_WENT_WELL] = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    place, reporter = config.stash.get(_PLACE, None), config.pluginmanager.get_plugin("terminalreporter")
    if place is not None and reporter is not None:
        for line in leftovers.still_running(place.folder):
            reporter.write_line(f"the tests left running: {line}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing of a run that went well; what may tell why one did not stays until the next."""
    place = config.stash.get(_PLACE, None)
    if place is not None and config.stash.get(_WENT_WELL, False):
        # At this process's very end: multiprocessing removes its own folder, which is in there, with -100.
        Finalize(None, leftovers.remove, args=(place.folder,), exitpriority=-200)


_IMPORTER = pytest.StashKey[Importer]()
_WORKERS = pytest.StashKey[list[int]]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Import the tests once for all processes; where coverage is measured, each process imports them."""
    if config.pluginmanager.has_plugin("_cov"):
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"importing the tests, once for {len(specs)} processes ...")
    # As the workers import it: a plugin's asserts are rewritten, too.
    plugins = [f"-p{name}" for name in config.option.plugins]
    same = ["-c", str(config.inipath), "--rootdir", str(config.rootpath), *plugins, *config.args]
    importer = config.stash[_IMPORTER] = Importer(same, config.stash[_PLACE].folder)
    for spec in specs:
        spec.python = importer.python


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Remember the processes that run tests for this one."""
    node.config.stash.setdefault(_WORKERS, []).append(node.gateway._rinfo().pid)


def pytest_configure(config: pytest.Config) -> None:
    """What holds in this process for all tests.

    A job in the background ignores SIGINT, and so would the programs that tests start and interrupt. Who ends
    the run by SIGTERM interrupts it: by default Python would end at once, and leave gateways and kernels. No
    random example is bad because the machine has other things to do while it is made or tried.
    """
    signal.signal(signal.SIGTERM, partial(_interrupt, config))
    patient = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.register_profile("patient", patient)
    hypothesis.settings.load_profile("patient")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(config: pytest.Config, number: int, _frame: object) -> None:
    # `timeout` sends it twice; the second one would interrupt what the first one has begun to end.
    signal.signal(number, lambda *_: None)
    for worker in config.stash.get(_WORKERS, []):
        with suppress(ProcessLookupError):
            os.kill(worker, number)
    raise KeyboardInterrupt(signal.Signals(number).name)


def assert_nothing_left(gateway: GatewayProcess, kernels: list[psutil.Process]) -> None:
    """After a gateway's end there is no kernel, no socket folder and no announcement of it."""
    _, alive = psutil.wait_procs(kernels, timeout=60)
    assert not alive, f"processes left: {alive}"
    assert not (gateway.data_dir / "run").exists()
    assert not (gateway.data_dir / "gateway.json").exists()
    assert [p for p in gateway.workspaces.iterdir() if not p.name.startswith("session-")] == []


def stop_cleanly(gateway: GatewayProcess) -> None:
    """Stop a gateway and check that it leaves with 0 and leaves nothing behind."""
    if gateway.process.poll() is not None:
        return
    kernels = psutil.Process(gateway.process.pid).children(recursive=True)
    assert gateway.stop() == 0, gateway.log.read_text()
    assert "Traceback" not in gateway.log.read_text(), gateway.log.read_text()
    assert_nothing_left(gateway, kernels)


@contextmanager
def serving(data_dir: Path, backend: str = "process", **options: Any) -> Iterator[GatewayProcess]:
    """A gateway with options; it must stop cleanly, unless what it is for has failed."""
    process = GatewayProcess(data_dir, backend, **options)
    try:
        yield process
        stop_cleanly(process)
    finally:
        process.kill()


@pytest.fixture(name="free_port")
def a_free_port() -> int:
    """A port of the loopback interface on which nothing listens."""
    return free_port()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What ends with the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def lane() -> Iterator[Lane]:
    """Threads of the test's own."""
    made = Lane("test", 2)
    yield made
    made.close()


@pytest.fixture(scope="session")
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """One gateway for all tests that need no options of their own; use a `session` key of your own.

    A kernel that is slow to hear an interrupt, as on a busy machine, is not killed for it.
    """
    folder = tmp_path_factory.mktemp("gateway")
    options = {"docker_url": NO_ENGINE, "pool_size": 1, "interrupt_grace": 60, "command": INSTALLED}
    if request.config.getoption("--hop"):
        from tests.support.nodes import AskedElsewhere, pair_of

        with pair_of(folder, "auto", **options) as pair:
            yield AskedElsewhere(pair)
        return
    with serving(folder / "data", "auto", **options) as process:
        yield process


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[StartGateway]:
    """Starts gateways with options; each is stopped, and must have stopped cleanly, at the test's end."""
    started: list[GatewayProcess] = []

    def start(data_dir: Path | None = None, backend: str = "process", **options: Any) -> GatewayProcess:
        process = GatewayProcess(data_dir or tmp_path / f"data-{len(started)}", backend, **options)
        started.append(process)
        return process

    try:
        yield start
        for process in started:
            stop_cleanly(process)
    finally:
        for process in started:
            process.kill()


@pytest.fixture
def session(gateway: GatewayProcess) -> Iterator[str]:
    """A key that no other test uses; its session is ended afterwards."""
    key = f"test-{uuid.uuid4().hex[:12]}"
    if (pair := getattr(gateway, "pair", None)) is not None:
        pair.leave(key)
    yield key
    gateway.delete(f"/v1/sessions/{key}")


def _run_apart(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread of its own: this one's loop may be a browser's."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


def _check_containers(name: str, runtime: str) -> None:
    async def check() -> None:
        engine = Engine()
        await engine.open()
        try:
            await check_engine(engine, ContainerSettings(runtime=runtime))
        finally:
            await engine.close()

    try:
        _run_apart(check())
    except BackendUnavailable as error:
        require(name, error.message)


@pytest.fixture(scope="session")
def docker() -> None:
    """Demands a container engine that has the kernel image."""
    _check_containers("docker", "")


@pytest.fixture
def client(docker: None) -> Iterator[APIClient]:
    """The container engine's own client."""
    client = APIClient()
    yield client
    client.close()


@pytest.fixture(scope="session")
def gvisor() -> None:
    """Demands an engine that has gVisor's runtime too."""
    _check_containers("gvisor", "runsc")


@pytest.fixture(scope="session")
def kernel_prefix() -> Path:
    """The folder with Cellgate's kernelspecs and kernel environment; fit for JUPYTER_PATH."""
    folder = data_folder(Path(sys.prefix))
    if not (folder / "kernels" / "python3" / "kernel.json").is_file():
        pytest.fail(f"there is no kernelspec in {folder}: run make setup", pytrace=False)
    return folder


@pytest.fixture(scope="session")
def sandbox(kernel_prefix: Path) -> None:
    """Demands that bubblewrap works here."""
    try:
        _run_apart(SandboxProvisioner.check())
    except BackendUnavailable as error:
        require("sandbox", error.message)
