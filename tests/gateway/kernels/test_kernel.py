"""KernelLauncher and Kernel with real kernels of both local backends."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from jupyter_client.manager import AsyncKernelManager

from cellgate_kernels.backends.process import ProcessProvisioner
from cellgate_kernels.base import trees
from cellgate_kernels.base.errors import (
    BackendUnavailable,
    InvalidInput,
    KernelDied,
    KernelspecNotFound,
    KernelStartFailed,
)
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.launcher import KernelFolders, KernelLauncher
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.launch.base import OOM_SCORE, CellgateProvisioner
from cellgate_kernels.launch.child import find_program
from cellgate_kernels.protocol.execution import Execution, Status
from cellgate_kernels.protocol.messages import Channel, Message, new_message
from cellgate_kernels.protocol.outputs import KernelEvent, OutputCaps, OutputLimiter
from cellgate_kernels.specs.catalog import KernelspecCatalog
from tests.support.kernels import each_backend, own_processes
from tests.support.server import IN_TIME

DEADLINE = 60.0
one_backend = pytest.mark.parametrize("backend", ["process"], indirect=True)
PYTHON3 = KernelProfile("python3")


@dataclass
class Cell:
    """A cell that was sent, and what came of it."""

    machine: Execution
    events: list[KernelEvent]
    ended: asyncio.Future[None]

    def text(self) -> str:
        return "".join(event.content["text"] for event in self.events if event.type == "stream")


def send_cell(kernel: Kernel, code: str, **options: bool) -> Cell:
    """Send a cell; `ended` completes at its end."""
    content = {"code": code, **options}
    message = new_message(Channel.SHELL, "execute_request", content, session=kernel.connection.session)
    machine = Execution(message.header.msg_id, code, OutputLimiter(OutputCaps()))
    cell = Cell(machine, [], asyncio.get_running_loop().create_future())

    def receive(received: Message) -> None:
        cell.events.extend(machine.receive(received))
        if machine.finished and not cell.ended.done():
            cell.ended.set_result(None)

    kernel.connection.listen(receive)
    machine.sent()
    kernel.connection.send(message)
    return cell


async def run_cell(kernel: Kernel, code: str) -> Cell:
    """Run a cell to its end."""
    cell = send_cell(kernel, code)
    async with asyncio.timeout(DEADLINE):
        await cell.ended
    return cell


async def printed(kernel: Kernel, code: str) -> str:
    """What a cell printed; it must not fail."""
    cell = await run_cell(kernel, code)
    assert cell.machine.outcome().status is Status.OK, cell.events
    return cell.text()


async def until(condition: Callable[[], object], otherwise: str = "it did not happen in time") -> None:
    """Returns when the condition holds; fails when it does not in time."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, otherwise
        await asyncio.sleep(0.005)


@pytest.fixture
def folders(no_leaks: Path) -> Iterator[KernelFolders]:
    """The folders of all kernels of the test, which must be empty in the end."""
    folders = KernelFolders(runtime=no_leaks / "run", workspaces=no_leaks / "work")
    made = (folders.runtime, folders.workspaces)
    for folder in made:
        folder.mkdir()
    yield folders
    assert [str(entry) for folder in made for entry in folder.glob("*")] == []
    for folder in made:
        folder.rmdir()


NewLauncher = Callable[..., KernelLauncher]


@pytest.fixture
def new_launcher(catalog: KernelspecCatalog, folders: KernelFolders) -> NewLauncher:
    """Makes launchers of the same kernelspecs and folders."""
    return lambda **options: KernelLauncher(catalog, folders, **options)


@pytest.fixture
def launcher(new_launcher: NewLauncher) -> KernelLauncher:
    return new_launcher()


def set_program(catalog: KernelspecCatalog, *arguments: str) -> None:
    """Let the kernelspec's interpreter run something else than a kernel."""
    spec = catalog.get_kernel_spec("python3")
    spec.argv = [spec.argv[0], *arguments]


def make_deaf(catalog: KernelspecCatalog) -> None:
    """Let the kernel answer requests and never send a word on iopub, so that it never becomes ready."""
    bootstrap = catalog.get_kernel_spec("python3").argv[1]
    deaf = (
        "import runpy, sys, zmq; from ipykernel import iostream, kernelapp\n"
        "def init(app, context):\n"
        "    app.iopub_thread = iostream.IOPubThread(context.socket(zmq.PUB), pipe=False)\n"
        "    app.iopub_socket = iostream.BackgroundSocket(app.iopub_thread)\n"
        "    app.iopub_thread.start()\n"
        "kernelapp.IPKernelApp.init_iopub = init\n"
        f"sys.argv[0] = {bootstrap!r}; sys.path.insert(0, {str(Path(bootstrap).parent)!r})\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    set_program(catalog, "-c", deaf, "-f", "{connection_file}")


# ---- ready


async def test_the_first_cell_of_a_ready_kernel_works_at_once_and_loses_no_output(
    launcher: KernelLauncher,
) -> None:
    """What comes too early for the subscription would be lost silently, and only now and then."""

    async def one() -> None:
        kernel = await launcher.start(PYTHON3)
        try:
            received: list[Message] = []
            kernel.connection.listen(received.append)
            cell = await run_cell(kernel, "print('first\\n', end=''); 6 * 7")
            of_cell = [m for m in received if m.parent.msg_id == cell.machine.msg_id]
            iopub = [m.msg_type for m in of_cell if m.channel is Channel.IOPUB]
            assert iopub == ["status", "execute_input", "stream", "execute_result", "status"]
            assert [m.msg_type for m in of_cell if m.channel is Channel.SHELL] == ["execute_reply"]
            assert cell.text() == "first\n"
            assert cell.events[-1].content["data"] == {"text/plain": "42"}
            assert cell.machine.execution_count == 1
        finally:
            await kernel.discard()

    for _ in range(5):
        await asyncio.gather(one(), one())


@each_backend
async def test_a_ready_kernel_knows_what_it_is(launcher: KernelLauncher, backend: str) -> None:
    kernel = await launcher.start(PYTHON3)
    try:
        assert kernel.alive
        assert not kernel.exited.done()
        assert kernel.profile == PYTHON3
        assert kernel.isolation == {"process": "none", "sandbox": "sandbox"}[backend]
        assert kernel.facts.info["language_info"]["name"] == "python"
        assert kernel.workspace.name == kernel.id
        where = "import os; open('here', 'w').close(); print(os.listdir())"
        assert await printed(kernel, where) == "['here']\n"
        assert (kernel.workspace / "here").exists()
    finally:
        await kernel.discard()


@one_backend
async def test_two_kernels_share_nothing(launcher: KernelLauncher) -> None:
    one, other = await asyncio.gather(launcher.start(PYTHON3), launcher.start(PYTHON3))
    try:
        assert one.id != other.id
        assert one.workspace != other.workspace
        assert one.connection.session != other.connection.session
        await printed(one, "x = 1; open('file', 'w').close()")
        shown = await printed(other, "import os; print('x' in globals(), os.listdir())")
        assert shown == "False []\n"
    finally:
        await asyncio.gather(one.discard(), other.discard())


# ---- not ready


@pytest.mark.parametrize("program", ["/nonexistent/python", "python", "/etc/passwd"])
async def test_a_program_that_is_none_fails_the_start_with_its_name(
    launcher: KernelLauncher, catalog: KernelspecCatalog, program: str
) -> None:
    catalog.get_kernel_spec("python3").argv = [program, "-f", "{connection_file}"]
    with pytest.raises(KernelStartFailed, match=program) as failure:
        await launcher.start(PYTHON3)
    assert "absolute path" in failure.value.message


async def test_the_last_words_of_a_program_that_ends_are_in_the_message(
    launcher: KernelLauncher, catalog: KernelspecCatalog
) -> None:
    set_program(catalog, "-c", "import sys; print('x' * 9000, file=sys.stderr); sys.exit('no such luck')")
    with pytest.raises(KernelStartFailed) as failure:
        await launcher.start(PYTHON3)
    message = failure.value.message
    assert "'python3'" in message
    assert "exited with code 1" in message
    assert message.endswith("no such luck")
    assert len(message) < 1000


async def test_a_sandbox_that_can_not_be_made_is_explained_once_and_in_short(
    monkeypatch: pytest.MonkeyPatch, launcher: KernelLauncher, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\nhead -c 9000 /dev/zero | tr '\\0' x >&2\necho 'bwrap: no such luck' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    real = find_program
    monkeypatch.setattr(
        "cellgate_kernels.walls.bubblewrap.find_program",
        lambda name, package: str(broken) if name == "bwrap" else real(name, package),
    )
    with pytest.raises(KernelStartFailed) as failure:
        await launcher.start(PYTHON3)
    assert failure.value.message.endswith("bwrap: no such luck")
    assert failure.value.message.count("no such luck") == 1
    assert len(failure.value.message) < 1000


async def test_nothing_runs_in_a_sandbox_before_the_oom_killer_would_take_it_first(
    monkeypatch: pytest.MonkeyPatch, launcher: KernelLauncher, catalog: KernelspecCatalog
) -> None:
    """However late our own loop gets to it."""
    set_program(catalog, "-S", "-c", "import sys; sys.exit(open('/proc/self/oom_score_adj').read().strip())")
    quick = Path.write_text

    def slow(path: Path, text: str) -> int:
        time.sleep(0.3)
        return quick(path, text)

    monkeypatch.setattr(Path, "write_text", slow)
    with pytest.raises(KernelStartFailed) as failure:
        await launcher.start(PYTHON3)
    assert failure.value.message.endswith(f"last words: {OOM_SCORE}")


@each_backend
async def test_a_program_killed_by_a_signal_is_told_so(
    launcher: KernelLauncher, catalog: KernelspecCatalog
) -> None:
    set_program(catalog, "-c", "import os; os.kill(os.getpid(), 11)")
    with pytest.raises(KernelStartFailed, match="SIGSEGV"):
        await launcher.start(PYTHON3)


async def test_a_kernel_that_never_answers_fails_at_the_start_timeout(
    new_launcher: NewLauncher, catalog: KernelspecCatalog
) -> None:
    code = "import sys, time; print('I take my time', file=sys.stderr, flush=True); time.sleep(600)"
    set_program(catalog, "-S", "-c", code)
    # On a busy machine the program itself takes a while to say it.
    with pytest.raises(KernelStartFailed, match=f"within {IN_TIME:g} s") as failure:
        await new_launcher(start_timeout=IN_TIME).start(PYTHON3)
    assert failure.value.message.endswith("I take my time")


@one_backend
async def test_a_kernel_that_answers_without_iopub_is_not_ready(
    new_launcher: NewLauncher, catalog: KernelspecCatalog
) -> None:
    """Its output would be lost."""
    make_deaf(catalog)
    with pytest.raises(KernelStartFailed, match="ready"):
        await new_launcher(start_timeout=3).start(PYTHON3)


@one_backend
async def test_an_unknown_kernelspec_is_the_callers_mistake(launcher: KernelLauncher) -> None:
    with pytest.raises(KernelspecNotFound, match="fortran"):
        await launcher.start(KernelProfile("fortran"))


async def test_an_impossible_environment_is_the_callers_mistake(launcher: KernelLauncher) -> None:
    with pytest.raises(InvalidInput, match="environment variable"):
        await launcher.start(KernelProfile("python3", env=(("A", "x\0y"),)))


@pytest.fixture(params=["runtime", "workspaces"])
def missing_folder(folders: KernelFolders, request: pytest.FixtureRequest) -> Iterator[None]:
    folder: Path = getattr(folders, request.param)
    folder.rmdir()
    yield
    folder.mkdir()


@one_backend
async def test_a_folder_that_can_not_be_made_is_a_failed_start(
    missing_folder: None, launcher: KernelLauncher
) -> None:
    """As on a full disk. The pool retries failed starts after a delay; it knows nothing of other errors."""
    with pytest.raises(KernelStartFailed):
        await launcher.start(PYTHON3)


@pytest.mark.parametrize("moment", ["at once", "folder", "process", "sockets"])
async def test_a_cancelled_start_leaves_nothing(
    launcher: KernelLauncher, folders: KernelFolders, catalog: KernelspecCatalog, moment: str
) -> None:
    make_deaf(catalog)
    reached: dict[str, Callable[[], object]] = {
        "at once": lambda: True,
        "folder": lambda: any(folders.runtime.iterdir()),
        "process": own_processes,
        "sockets": lambda: any(folders.runtime.glob("*/ipc/k-*")),
    }
    start = asyncio.create_task(launcher.start(PYTHON3))
    try:
        await until(lambda: reached[moment]() or start.done())
        assert not start.done(), "nothing is left to cancel"
    finally:
        start.cancel()
        await asyncio.wait([start])
    assert start.cancelled()


@each_backend
async def test_a_backend_that_is_not_installed_says_so(
    launcher: KernelLauncher, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellgate_kernels.launch.child.SYSTEM_PATH", "/nonexistent")
    package = {"process": "util-linux", "sandbox": "bubblewrap|util-linux"}[backend]
    with pytest.raises(BackendUnavailable, match=package):
        await launcher.start(PYTHON3)


# ---- interrupt, exit, shutdown


@each_backend
async def test_an_interrupt_ends_the_cell_and_keeps_the_kernel(launcher: KernelLauncher) -> None:
    kernel = await launcher.start(PYTHON3)
    try:
        cell = send_cell(kernel, "x = 1; print('begun')\nwhile True: pass")
        await until(lambda: cell.text() == "begun\n")
        cell.machine.interrupt_requested()
        kernel.interrupt()
        async with asyncio.timeout(DEADLINE):
            await cell.ended
        outcome = cell.machine.outcome()
        assert outcome.status is Status.INTERRUPTED
        assert outcome.error is not None
        assert outcome.error["ename"] == "KeyboardInterrupt"
        assert await printed(kernel, "print(x)") == "1\n"
        assert kernel.alive
    finally:
        await kernel.discard()


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("import os; os._exit(3)", KernelExit("kernel_exit", 3, None, "The kernel exited with code 3.")),
        (
            "import os; os.kill(os.getpid(), 9)",
            KernelExit("kernel_exit", None, 9, "The kernel was ended by SIGKILL."),
        ),
    ],
)
@each_backend
async def test_a_kernel_that_ends_by_itself_tells_how(
    launcher: KernelLauncher, code: str, ended: KernelExit
) -> None:
    kernel = await launcher.start(PYTHON3)
    try:
        send_cell(kernel, code)
        async with asyncio.timeout(DEADLINE):
            assert await asyncio.shield(kernel.exited) == ended
        assert not kernel.alive
    finally:
        await kernel.discard()


@each_backend
async def test_shutdown_ends_the_kernel_once_however_often_it_is_asked(
    launcher: KernelLauncher, folders: KernelFolders
) -> None:
    kernel = await launcher.start(PYTHON3)
    await printed(kernel, "open('result', 'w').close()")
    processes = own_processes()
    assert processes
    await asyncio.gather(kernel.shutdown(), kernel.shutdown())
    await kernel.shutdown()
    assert not kernel.alive
    assert kernel.exited.result().signal == signal.SIGKILL
    # A kernel's keeper, or the system, learns of its end a little later.
    await until(lambda: not [process for process in processes if process.is_running()], "it has not ended")
    assert kernel.connection.closed
    with pytest.raises(KernelDied):
        kernel.interrupt()
    assert list(folders.runtime.iterdir()) == []
    assert [path.name for path in kernel.workspace.iterdir()] == ["result"]
    await asyncio.gather(kernel.discard(), kernel.discard())
    assert not kernel.workspace.exists()


async def test_a_busy_kernel_is_ended_too(launcher: KernelLauncher) -> None:
    kernel = await launcher.start(PYTHON3)
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    cell = send_cell(kernel, f"{ignore}; print('begun')\nwhile True: pass")
    await until(lambda: cell.text() == "begun\n")
    await kernel.discard()
    assert not cell.ended.done()


@one_backend
async def test_a_shutdown_goes_on_when_who_asked_for_it_leaves(launcher: KernelLauncher) -> None:
    kernel = await launcher.start(PYTHON3)
    asked = asyncio.create_task(kernel.shutdown())
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await kernel.discard()
    assert kernel.exited.done()


@one_backend
async def test_discard_removes_what_a_cell_made_hard_to_remove(launcher: KernelLauncher) -> None:
    kernel = await launcher.start(PYTHON3)
    await printed(
        kernel,
        "import os\nos.mkdir('deep'); os.chdir('deep')\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')",
    )
    await kernel.discard()
    assert not kernel.workspace.exists()


async def test_discard_follows_no_link_out_of_the_workspace(launcher: KernelLauncher, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    kernel = await launcher.start(PYTHON3)
    await printed(kernel, f"import os; os.symlink({str(tmp_path)!r}, 'link')")
    await kernel.discard()
    assert (tmp_path / "precious").read_text() == "kept"


# ---- folders that can't be removed


@pytest.fixture
def unremovable(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which folders could not be removed: each can't be, once."""
    refused: list[Path] = []
    remove = trees.remove

    def refuse(path: Path) -> None:
        if path not in refused:
            refused.append(path)
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        remove(path)

    monkeypatch.setattr(trees, "remove", refuse)
    return refused


async def test_a_kernel_ends_whatever_becomes_of_its_folders(
    launcher: KernelLauncher, folders: KernelFolders, unremovable: list[Path]
) -> None:
    kernel = await launcher.start(PYTHON3)
    await kernel.shutdown()
    assert kernel.exited.done()
    await kernel.discard()
    assert [path.parent for path in unremovable] == [folders.runtime, folders.workspaces, folders.workspaces]
    await folders.leftovers.close()


async def test_a_failed_start_tells_why_whatever_becomes_of_its_folders(
    launcher: KernelLauncher, folders: KernelFolders, catalog: KernelspecCatalog, unremovable: list[Path]
) -> None:
    set_program(catalog, "-c", "import sys; sys.exit('no way')")
    with pytest.raises(KernelStartFailed, match="no way"):
        await launcher.start(PYTHON3)
    assert [path.parent for path in unremovable] == [folders.runtime, folders.workspaces, folders.workspaces]
    await folders.leftovers.close()


@one_backend
@pytest.mark.parametrize(
    ("program", "reason"), [("", "exited with code 7"), ("/nonexistent/python", "is not an executable file")]
)
async def test_a_failed_start_tells_why_whatever_else_fails(
    launcher: KernelLauncher,
    catalog: KernelspecCatalog,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    reason: str,
) -> None:
    """Neither the end of what was begun nor the look into its log hides the reason."""

    async def fail(_: CellgateProvisioner) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    cleanup = CellgateProvisioner.cleanup

    async def clean_up_and_fail(provisioner: CellgateProvisioner, restart: bool = False) -> None:
        await cleanup(provisioner, restart)
        raise LookupError("nobody expects it")

    monkeypatch.setattr(ProcessProvisioner, "log_tail", fail)
    monkeypatch.setattr(ProcessProvisioner, "cleanup", clean_up_and_fail)
    set_program(catalog, "-c", "import sys; sys.exit(7)")
    spec = catalog.get_kernel_spec("python3")
    spec.argv = [program or spec.argv[0], *spec.argv[1:]]
    with pytest.raises(KernelStartFailed, match=reason):
        await launcher.start(PYTHON3)


@one_backend
async def test_a_launch_by_another_program_tells_why_it_failed(
    catalog: KernelspecCatalog,
    no_leaks: Path,
    unremovable: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has nothing that removes folders later: that they are left is told."""
    spec = catalog.get_kernel_spec("python3")
    spec.argv = ["/nonexistent/python"]
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=catalog)
    with pytest.raises(KernelStartFailed, match="/nonexistent/python"):
        await manager.start_kernel()
    assert len(unremovable) == 2
    assert all(str(path) in caplog.text for path in unremovable)
    for path in unremovable:
        trees.remove(path)


async def test_files_that_are_spared_stay(launcher: KernelLauncher, folders: KernelFolders) -> None:
    kernel = await launcher.start(PYTHON3)
    (kernel.workspace / "file").touch()
    await kernel.discard(spared=[kernel.workspace])
    assert list(folders.runtime.iterdir()) == []
    assert (kernel.workspace / "file").exists()
    trees.remove(kernel.workspace)


# ---- what a profile asks for


@each_backend
async def test_a_profiles_environment_and_limits_reach_the_kernel(launcher: KernelLauncher) -> None:
    limits = ResourceLimits(memory=512 * MIB, cpus=2, disk=100 * MIB)
    kernel = await launcher.start(KernelProfile("python3", limits, (("API_KEY", "žluť=1"), ("EMPTY", ""))))
    try:
        shown = await printed(
            kernel,
            "import os, resource as r\n"
            "print(os.environ['API_KEY'], repr(os.environ['EMPTY']), os.environ['OMP_NUM_THREADS'])\n"
            "print(r.getrlimit(r.RLIMIT_DATA), r.getrlimit(r.RLIMIT_FSIZE))",
        )
        bounds = f"({512 * MIB}, {512 * MIB}) ({100 * MIB}, {100 * MIB})"
        assert shown == f"žluť=1 '' 2\n{bounds}\n"
    finally:
        await kernel.discard()


LOOK_AROUND = (
    "import sys, os; print(sorted(n for n in globals() if n not in ('sys', 'os')), "
    "'colorsys' in sys.modules, 'wave' in sys.modules, [n for n in os.environ if 'CELLGATE' in n])"
)


@one_backend
async def test_preloaded_modules_are_there_without_a_trace_in_the_users_namespace(
    new_launcher: NewLauncher,
) -> None:
    shown = []
    for preload in ((), ("colorsys", "wave")):
        kernel = await new_launcher(preload=preload).start(PYTHON3)
        try:
            shown.append(await printed(kernel, LOOK_AROUND))
            assert (await run_cell(kernel, "colorsys")).machine.outcome().status is Status.ERROR
        finally:
            await kernel.discard()
    without, with_modules = shown
    assert without.endswith(" False False []\n")
    assert with_modules == without.replace("False False", "True True")


@one_backend
async def test_a_module_that_can_not_be_preloaded_fails_the_start_with_its_name(
    new_launcher: NewLauncher,
) -> None:
    with pytest.raises(KernelStartFailed, match="importing no_such_module failed: ModuleNotFoundError"):
        await new_launcher(preload=["no_such_module"]).start(PYTHON3)


@each_backend
async def test_a_kernel_needs_nothing_of_our_environment(
    launcher: KernelLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "HOME", "LANG", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONSTARTUP", "/nonexistent")
    kernel = await launcher.start(PYTHON3)
    try:
        assert "PYTHONSTARTUP" not in await printed(kernel, "import os; print(*os.environ)")
    finally:
        await kernel.discard()
