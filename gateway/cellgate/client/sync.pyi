"""Made from the asynchronous classes by `make reference`: do not change it here."""

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, Unpack

from cellgate.client.calls import Progress
from cellgate.client.kernel import KernelQuestions
from cellgate.client.users import ME
from cellgate.client.values import BlocksResult, Exploration, Result
from cellgate.wire.answers import (
    CheckpointModel,
    Completion,
    ConsoleUrl,
    ExecutionModel,
    FileChange,
    FileModel,
    GatewayInfo,
    Inspection,
    Me,
    NewToken,
    PackageChanges,
    PortUrl,
    ProcessModel,
    ReplayReport,
    SecretModel,
    SessionModel,
    SessionTree,
    TableRows,
    TokenModel,
    UserModel,
    VariableList,
)
from cellgate.wire.environments import AddedEnvironment, LockedEnvironment
from cellgate.wire.events import Event, Package
from cellgate.wire.models import CellKeywords, SessionKeywords, TimesKeywords
from cellgate.wire.usage import UsageSum
from cellgate.wire.words import (
    BranchWorkspace,
    CellOrder,
    KeptBranches,
    LanguageName,
    OnDisconnect,
    RoleName,
    UsageBy,
)

class SyncGateway:
    """Gateway, with methods that block."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: nothing is open between calls."""

    def info(self) -> GatewayInfo:
        """Return the gateway's version, isolation and ceilings."""

    def environments(self) -> list[AddedEnvironment]:
        """Return the environments that the operator has added, which new sessions can name."""

    def environment(self, name: str) -> LockedEnvironment:
        """Return an environment that the operator has added, with the lock of its packages."""

    def me(self) -> Me:
        """Return whose token this is, what it permits, and how much of their quotas its owner uses."""

    @property
    def users(self) -> SyncUsers:
        """The gateway's users, their tokens and secrets; for administrators, or about oneself."""

    def console_url(self) -> ConsoleUrl:
        """Return where a browser is signed in to the console as this token's user: once, within a minute."""

    def execute_once(
        self,
        code: str,
        *,
        kernel: str | None = None,
        language: LanguageName | None = None,
        environment: str | None = None,
        max_text: int | None = None,
    ) -> Result:
        """Run a cell in a fresh kernel, which is discarded afterwards. `max_text` as of `execute`."""

    def session(
        self, name: str | None = None, *, keep: bool | None = None, **options: Unpack[SessionKeywords]
    ) -> SyncSession:
        """Return a session to work with, created when first used.

        The options apply only if it does not exist. As a context manager it ends after the block, unless
        `keep`; by default one with a name is kept.
        """

    def create_session(
        self,
        session: str | None = None,
        *,
        on_wait: Callable[[int], object] | None = None,
        **options: Unpack[SessionKeywords],
    ) -> SessionModel:
        """Return the session of this name, created if missing; without a name, a new one.

        `on_wait` is called with its position in line while all kernels are in use: how many get one first.
        """

    def sessions(
        self,
        *,
        state: str | None = None,
        search: str | None = None,
        cells: bool = False,
        newest: bool = False,
        usage: bool = False,
    ) -> Generator[SessionModel]:
        """Yield all sessions of this principal, ended ones included, in the order in which they were created.

        `state` selects those in one state, ``live`` all that have not ended; `search` those whose key or
        title has this text, and with `cells` also those whose cells have it in their code or outputs.
        `newest`: the last ones first. `usage`: with `memory`, `cpu` and `executions`.
        """

    def usage(
        self, *, by: UsageBy = "principal", begin: str | None = None, end: str | None = None
    ) -> Generator[UsageSum]:
        """Yield what this principal's cells used that ended from `begin` on and before `end`, in sums.

        `by`: what each sum is of, a ``principal``, a ``session`` or a ``day`` in UTC. Times are days, such as
        ``2026-11-01``, or times of RFC 3339; by default this month so far.
        """

    def save_usage(
        self,
        path: Path | str,
        *,
        by: UsageBy = "principal",
        begin: str | None = None,
        end: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Write the sums of `usage` to a file; a failure leaves the file as it was.

        A name that ends in ``.csv`` is that of a table, one that ends in ``.zip`` that of an archive with the
        table, its hash and the gateway's signature. Raises InvalidInput for another one.
        """

    def delete_session(self, session: str) -> None:
        """End the session's kernel; its record stays."""

    def purge_session(self, session: str) -> None:
        """End the session and remove its record for good; only a tombstone stays."""

    def get_session(self, session: str, *, usage: bool = False) -> SessionModel:
        """Return the gateway's model of it; with `usage` it has `memory`, `cpu` and `executions`."""

    def interrupt(self, session: str) -> None:
        """Interrupt the running cell, as Ctrl-C would."""

    def restart(self, session: str) -> SessionModel:
        """Give it a fresh kernel: its variables are lost, its files stay."""

    def execute(
        self,
        session: str,
        code: str,
        *,
        on_event: Callable[[Event], object] | None = None,
        on_cancel: Literal["interrupt", "continue"] = "interrupt",
        max_text: int | None = None,
        **options: Unpack[CellKeywords],
    ) -> Result:
        """Run a cell and wait for its end. A notebook displays the result.

        `timeout` in seconds; None is the session's own. `stdin`: lines, or a text, that answer `input()`.
        Code in a `language` other than the kernel's is run by a separate program, beside the kernel.
        `tables`: return pandas' tables as data too, with at most this many rows; see `Result.tables`.
        `packages`: ``auto`` installs missing packages that the cell imports, ``temporary`` for this cell.
        `env`: environment variables for this cell only. `silent`: without output and without counting.

        `max_text`: cut texts with more characters. By default the gateway cuts what is longer than 100,000,
        and limits the whole answer; 0 is all there is.
        `on_event` is called with each event while the cell runs, and awaited if it is asynchronous.
        A cell that raises is not an error here: see the result's `status`. A caller that is cancelled, as by
        `asyncio.wait_for`, interrupts the cell; with `on_cancel` ``continue`` it goes on. A lost connection
        doesn't interrupt it, unless there is an `on_event`.
        """

    def execute_blocks(
        self,
        session: str,
        blocks: str | Sequence[tuple[str, str]],
        *,
        timeout: float | None = None,
        max_text: int | None = None,
        on_disconnect: OnDisconnect | None = None,
    ) -> BlocksResult:
        """Run a Markdown text's fenced blocks, or pairs of language and code, in order until one fails.

        `max_text` as of `run`. `on_disconnect`, ``continue`` or ``interrupt``, decides what happens to the
        block that runs when the connection is lost or the caller is cancelled; after an interrupted one no
        other runs.
        """

    def result(self, session: str, execution: str, *, max_text: int | None = None) -> Result:
        """Return an execution's result so far. `max_text` as of `run`."""

    def cancel(self, session: str, execution: str) -> None:
        """Take the execution out of the queue, or interrupt it."""

    def answer_input(self, session: str, execution: str, value: str) -> None:
        """Send a line to a cell that is waiting for input (the event `InputRequest`)."""

    def complete(self, session: str, code: str, *, cursor: int | None = None) -> Completion:
        """Return what may stand at the cursor, by default at the end of the code. No cell may run or wait.

        Positions are in characters, as Python counts them. Raises Conflict for a session that is busy.
        """

    def inspect(self, session: str, code: str, *, cursor: int | None = None, detail: int = 0) -> Inspection:
        """Return what its kernel knows of the name at the cursor; with `detail` 1 its source too.

        No cell may run or wait. Raises Conflict for a session that is busy.
        """

    def variables(self, session: str) -> VariableList:
        """Return its Python kernel's variables. No cell may run or wait: Conflict for a busy session."""

    def rows(
        self,
        session: str,
        name: str,
        *,
        offset: int = 0,
        limit: int = 100,
        sort: str | None = None,
        descending: bool = False,
        matching: str | None = None,
        column: str | None = None,
        first_column: int = 0,
    ) -> TableRows:
        """Return a page of the rows of a table among its variables. No cell may run or wait.

        Tables are those of pandas, Polars, PyArrow and NumPy. `sort` names a column. `matching` is a text
        that a cell of each row must have in it; with `column`, the name of the one to look at, it may begin
        with a comparison: ``matching=">= 5"``. The next page begins after the rows of this one.

        Raises Conflict for a busy session or a variable that is no table, and NotFound if there is none.
        """

    def packages(
        self,
        session: str,
        *,
        install: Sequence[str] = (),
        uninstall: Sequence[str] = (),
        upgrade: bool = False,
        constraints: Sequence[str] = (),
    ) -> PackageChanges:
        """Install requirements into the session and remove packages by name; return the changes.

        `constraints` limit the versions of dependencies. `upgrade`: replace installed versions by newer ones.
        """

    def installed(self, session: str) -> list[Package]:
        """Return the packages that it has installed beside its kernel's environment."""

    def branch(
        self,
        session: str,
        branch: str | None = None,
        *,
        workspace: BranchWorkspace = "copy",
        seed: int | None = None,
        anyway: bool = False,
    ) -> SessionModel:
        """Make a session with a copy of an idle session's kernel; return its model. See `Session.branch`."""

    def explore(
        self,
        session: str,
        cells: Sequence[str],
        *,
        keep: KeptBranches = "none",
        timeout: float | None = None,
        anyway: bool = False,
        max_text: int | None = None,
    ) -> Exploration:
        """Run alternatives, each in a branch of it, side by side; return when all have ended.

        `keep`: ``none`` of the branches stays, or ``all``; with ``first_ok`` the session goes on as the first
        alternative, in the order given, that ends well. `timeout` is that of each cell, in seconds.
        `anyway`: in spite of obstacles. `max_text` as of `run`, of each result. No cell may run or wait.
        Raises as `branch` does if not even one cell can be run.

        Branches that stay end with this session, as those of `branch` without a name.
        """

    def checkpoint(self, session: str, name: str | None = None, *, anyway: bool = False) -> CheckpointModel:
        """Keep its variables and files as they are now, to go back to with `roll_back`.

        `anyway`: in spite of obstacles. No cell may run or wait. Raises Conflict for a session that is busy
        and for a name that is taken, and CannotBranch.
        """

    def checkpoints(self, session: str) -> list[CheckpointModel]:
        """Return what it can go back to, the oldest first."""

    def end_checkpoint(self, session: str, name: str) -> None:
        """End a checkpoint, which takes no memory then."""

    def roll_back(self, session: str, checkpoint: str | None = None) -> SessionModel:
        """Take variables and files back to what they were, by default at the newest checkpoint.

        A cell that runs is interrupted. The model's `rolled_back` says what was undone. Raises NotFound.
        """

    def undo(self, session: str) -> SessionModel:
        """Undo its last cell; see `roll_back`. It needs a checkpoint from before the cell."""

    def tree(self, session: str) -> SessionTree:
        """Return the sessions that it continues as a branch, its branches, and its checkpoints."""

    def replay(self, session: str, *, anyway: bool = False, rtol: float = 0.0) -> ReplayReport:
        """Run its notebook again in a fresh kernel; return a report of the differences.

        `rtol`: how much two floating-point numbers may differ, relative to the larger one.
        """

    def notebook(
        self,
        session: str,
        path: Path | Callable[[str], Path],
        *,
        outputs: bool = True,
        inherited: bool = True,
        undone: bool = True,
        order: CellOrder = "record",
        file: str | None = None,
        form: str | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Write the session's record to `path` as a notebook; a failure leaves `path` as it was.

        `path` may be a function of the name that the gateway gives the file. Returns it.

        `inherited`: whether a branch's begins with the cells before it was branched. `undone`: whether it
        has the cells that a rollback undid, as raw cells. `order`: ``page`` for that of `file`, a notebook in
        its workspace. `form`: ``html``, ``markdown`` or ``script``, by nbconvert. A script's name must not be
        one of another language than the session's.

        Raises OSError when the file can't be written.
        """

    def bundle(self, session: str, path: Path, *, progress: Progress | None = None) -> None:
        """Write the session with its files, lock and record to `path` as a zip file, whole or not at all."""

    def provenance(self, session: str) -> dict[str, Any]:
        """Return its notebook without outputs: its metadata says where the cells ran."""

    def process(self, session: str, process: str) -> ProcessModel:
        """Return a process with its output so far; `follow_program` yields its events as they happen."""

    def processes(self, session: str) -> list[ProcessModel]:
        """Return its processes: all that run, and the last that ended."""

    def write_program(
        self, session: str, process: str, data: str | bytes = b"", *, close: bool = False
    ) -> None:
        """Send input to a process that was started with `stdin`; `close` is the end of it."""

    def signal_program(self, session: str, process: str, signal: str) -> None:
        """Send a signal such as ``SIGINT`` to a process and its group."""

    def end_program(self, session: str, process: str) -> None:
        """End a process: by SIGTERM, and five seconds later by SIGKILL. It is no error if it has ended."""

    def port_url(self, session: str, port: int) -> str:
        """Return a URL at which a browser sees what a program in the session shows on a port.

        It works once, within a minute, where the gateway's operator serves ports.
        """

    def open_port(self, session: str, port: int) -> PortUrl:
        """Return what `port_url` answers with, and how long that works."""

    def stream_execute(
        self,
        session: str,
        code: str,
        *,
        on_disconnect: OnDisconnect | None = None,
        **options: Unpack[CellKeywords],
    ) -> Generator[Event]:
        """Run a cell; see `Session.stream`. Without `on_disconnect` it goes on when the iteration is left."""

    def events(self, session: str, *, after: int = 0, follow: bool = True) -> Generator[Event]:
        """Yield the session's events, those so far and then live ones to its end; see `Session.events`."""

    def executions(
        self, session: str, *, newest: bool = False, search: str | None = None
    ) -> Generator[ExecutionModel]:
        """Yield the session's executions, oldest first unless `newest` is set; see `Session.executions`."""

    def follow_program(self, session: str, process: str) -> Generator[Event]:
        """Yield all events of a process from its start, as they happen; see `Session.follow_program`."""

    def run_program(
        self,
        session: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> ProcessModel:
        """Run a program and wait for its end; see `Session.run_program`."""

    def start_program(
        self,
        session: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        timeout: float | None = None,
    ) -> ProcessModel:
        """Start a program and don't wait for it; see `Session.start_program`."""

    def questions(self, session: str) -> KernelQuestions:
        """Make requests to a live session's kernel other than cells; see `Session.questions`."""

    def close(self) -> None:
        """Stop the thread; nothing can be called afterwards."""

class SyncSession:
    """Session, with methods that block."""

    @property
    def gateway(self) -> SyncGateway:
        """The gateway that it is a session of."""

    @property
    def name(self) -> str:
        """The session's key. Raises InvalidInput for an unnamed session that has not been used yet."""

    @property
    def files(self) -> SyncFiles:
        """The files of the session's workspace."""

    def open(self) -> SessionModel:
        """Create the session if missing; returns its model."""

    def opened(self) -> str:
        """Return its name; opens the session unless this object has done so."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, unless it is to be kept, and its branches likewise."""

    def end(self) -> None:
        """End its kernel and remove its files; its record stays. It is no error if it has gone already.

        Ends its branches too, except those that are kept.
        """

    def model(self, *, usage: bool = False) -> SessionModel:
        """Return the gateway's model of it; with `usage` it has `memory`, `cpu` and `executions`."""

    def change(
        self,
        title: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        limits: TimesKeywords | None = None,
    ) -> SessionModel:
        """Change its title, its metadata as a whole, or the times of its limits, while it is live.

        `title`: of any letters; empty: none any more. What is not given stays.
        """

    def interrupt(self) -> None:
        """Interrupt the running cell, as Ctrl-C would."""

    def restart(self) -> SessionModel:
        """Give it a fresh kernel: its variables are lost, its files stay."""

    def run(
        self,
        code: str,
        *,
        on_event: Callable[[Event], object] | None = None,
        on_cancel: Literal["interrupt", "continue"] = "interrupt",
        max_text: int | None = None,
        **options: Unpack[CellKeywords],
    ) -> Result:
        """Run a cell and wait for its end. A notebook displays the result.

        `timeout` in seconds; None is the session's own. `stdin`: lines, or a text, that answer `input()`.
        Code in a `language` other than the kernel's is run by a separate program, beside the kernel.
        `tables`: return pandas' tables as data too, with at most this many rows; see `Result.tables`.
        `packages`: ``auto`` installs missing packages that the cell imports, ``temporary`` for this cell.
        `env`: environment variables for this cell only. `silent`: without output and without counting.

        `max_text`: cut texts with more characters. By default the gateway cuts what is longer than 100,000,
        and limits the whole answer; 0 is all there is.
        `on_event` is called with each event while the cell runs, and awaited if it is asynchronous.
        A cell that raises is not an error here: see the result's `status`. A caller that is cancelled, as by
        `asyncio.wait_for`, interrupts the cell; with `on_cancel` ``continue`` it goes on. A lost connection
        doesn't interrupt it, unless there is an `on_event`.
        """

    def stream(
        self, code: str, *, on_disconnect: OnDisconnect | None = "interrupt", **options: Unpack[CellKeywords]
    ) -> Generator[Event]:
        """Run a cell; yield its events as they happen, the last one `Finished`. Options as of `run`.

        Leaving the iteration early closes the connection (use `contextlib.aclosing`); `on_disconnect`,
        ``continue`` or ``interrupt``, decides what happens to the cell then.
        """

    def run_blocks(
        self,
        blocks: str | Sequence[tuple[str, str]],
        *,
        timeout: float | None = None,
        max_text: int | None = None,
        on_disconnect: OnDisconnect | None = None,
    ) -> BlocksResult:
        """Run a Markdown text's fenced blocks, or pairs of language and code, in order until one fails.

        `max_text` as of `run`. `on_disconnect`, ``continue`` or ``interrupt``, decides what happens to the
        block that runs when the connection is lost or the caller is cancelled; after an interrupted one no
        other runs.
        """

    def result(self, execution: str, *, max_text: int | None = None) -> Result:
        """Return an execution's result so far. `max_text` as of `run`."""

    def executions(self, *, newest: bool = False, search: str | None = None) -> Generator[ExecutionModel]:
        """Yield its executions, oldest first unless `newest` is set; `result` has the rest of each.

        `search`: only those with this text in their code or outputs, in capital letters or not, oldest first.
        """

    def cancel(self, execution: str) -> None:
        """Take the execution out of the queue, or interrupt it."""

    def answer_input(self, execution: str, value: str) -> None:
        """Send a line to a cell that is waiting for input (the event `InputRequest`)."""

    def events(self, *, after: int = 0, follow: bool = True) -> Generator[Event]:
        """Yield its events after the one with the `seq` `after`: those so far, then live ones to its end.

        Without `follow` only those so far. A lost connection is resumed where it broke off, so each event
        comes exactly once, in order. Use `contextlib.aclosing` to leave the iteration early.
        """

    def complete(self, code: str, *, cursor: int | None = None) -> Completion:
        """Return what may stand at the cursor, by default at the end of the code. No cell may run or wait.

        Positions are in characters, as Python counts them. Raises Conflict for a session that is busy.
        """

    def inspect(self, code: str, *, cursor: int | None = None, detail: int = 0) -> Inspection:
        """Return what its kernel knows of the name at the cursor; with `detail` 1 its source too.

        No cell may run or wait. Raises Conflict for a session that is busy.
        """

    def variables(self) -> VariableList:
        """Return its Python kernel's variables. No cell may run or wait: Conflict for a busy session."""

    def rows(
        self,
        name: str,
        *,
        offset: int = 0,
        limit: int = 100,
        sort: str | None = None,
        descending: bool = False,
        matching: str | None = None,
        column: str | None = None,
        first_column: int = 0,
    ) -> TableRows:
        """Return a page of the rows of a table among its variables. No cell may run or wait.

        Tables are those of pandas, Polars, PyArrow and NumPy. `sort` names a column. `matching` is a text
        that a cell of each row must have in it; with `column`, the name of the one to look at, it may begin
        with a comparison: ``matching=">= 5"``. The next page begins after the rows of this one.

        Raises Conflict for a busy session or a variable that is no table, and NotFound if there is none.
        """

    def questions(self) -> KernelQuestions:
        """Make requests to its kernel other than cells, for prompts; `close` them at the end."""

    def install(self, *requirements: str, upgrade: bool = False) -> PackageChanges:
        """Install packages such as ``"requests>=2"``, where the gateway's operator allows them."""

    def uninstall(self, *names: str) -> PackageChanges:
        """Remove packages that were installed into this session."""

    def packages(self) -> list[Package]:
        """Return the packages that it has installed beside its kernel's environment."""

    def branch(
        self,
        name: str | None = None,
        *,
        workspace: BranchWorkspace = "copy",
        seed: int | None = None,
        anyway: bool = False,
        keep: bool | None = None,
    ) -> SyncSession:
        """Make a second session with a copy of its kernel: with all variables. No cell may run or wait in it.

        `name`: the new session's. `workspace`: ``copy`` or ``shared`` files. `seed`: for its random numbers,
        which otherwise go on as this session's. `anyway`: in spite of obstacles.

        A branch that is not to be kept (`keep`; by default, one without a name) ends with its own
        ``async with`` block or `end`, at the latest with this session's. Without any of them it stays, as a
        session with a name does.

        Raises Conflict for a session that is busy, and CannotBranch. Raises NotFound if a session with this
        name is not live: it is not made or resumed, for it would have nothing that a branch could go on with.
        """

    def explore(
        self,
        cells: Sequence[str],
        *,
        keep: KeptBranches = "none",
        timeout: float | None = None,
        anyway: bool = False,
        max_text: int | None = None,
    ) -> Exploration:
        """Run alternatives, each in a branch of it, side by side; return when all have ended.

        `keep`: ``none`` of the branches stays, or ``all``; with ``first_ok`` the session goes on as the first
        alternative, in the order given, that ends well. `timeout` is that of each cell, in seconds.
        `anyway`: in spite of obstacles. `max_text` as of `run`, of each result. No cell may run or wait.
        Raises as `branch` does if not even one cell can be run.

        Branches that stay end with this session, as those of `branch` without a name.
        """

    def checkpoint(self, name: str | None = None, *, anyway: bool = False) -> CheckpointModel:
        """Keep its variables and files as they are now, to go back to with `roll_back`.

        `anyway`: in spite of obstacles. No cell may run or wait. Raises Conflict for a session that is busy
        and for a name that is taken, and CannotBranch.
        """

    def checkpoints(self) -> list[CheckpointModel]:
        """Return what it can go back to, the oldest first."""

    def end_checkpoint(self, name: str) -> None:
        """End a checkpoint, which takes no memory then."""

    def roll_back(self, checkpoint: str | None = None) -> SessionModel:
        """Take variables and files back to what they were, by default at the newest checkpoint.

        A cell that runs is interrupted. The model's `rolled_back` says what was undone. Raises NotFound.
        """

    def undo(self) -> SessionModel:
        """Undo its last cell; see `roll_back`. It needs a checkpoint from before the cell."""

    def tree(self) -> SessionTree:
        """Return the sessions that it continues as a branch, its branches, and its checkpoints."""

    def replay(self, *, anyway: bool = False, rtol: float = 0.0) -> ReplayReport:
        """Run its notebook again in a fresh kernel; return a report of the differences.

        `rtol`: how much two floating-point numbers may differ, relative to the larger one.
        """

    def notebook(self, *, order: CellOrder = "record", file: str | None = None) -> dict[str, Any]:
        """Return its record as a notebook. `save_notebook` writes one of any size to a file.

        `order`: ``page`` for that of `file`, a notebook in its workspace, whose texts it has, too.
        """

    def save_notebook(
        self,
        path: Path | str,
        *,
        form: str | None = None,
        order: CellOrder = "record",
        file: str | None = None,
    ) -> None:
        """Write its record to a file; a failure leaves the file as it was.

        `order` and `file`: see `notebook`. Without `form` its name says what it is. A name that ends in
        ``.zip`` is that of a bundle, which has no other order. Raises InvalidInput for one of another kind of
        file, such as ``.pdf``, unless `form` says what it is, such as ``ipynb``.
        """

    def provenance(self) -> dict[str, Any]:
        """Return its notebook without outputs: its metadata says where the cells ran."""

    def run_program(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> ProcessModel:
        """Run a program beside its cells, in its sandbox, and wait for its end. No shell is used.

        `env` is added to the kernel's variables, `cwd` is a folder of the workspace. `timeout` in seconds;
        None is the session's `cell_timeout`.
        """

    def start_program(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        timeout: float | None = None,
    ) -> ProcessModel:
        """Start a program as `run_program` does and don't wait; it runs until it, or its session, ends.

        With `stdin` it gets what `write_program` sends.
        """

    def follow_program(self, process: str) -> Generator[Event]:
        """Yield all events of a process from its start, as they happen; the last one is `ProcessExited`."""

    def process(self, process: str) -> ProcessModel:
        """Return a process with its output so far; `follow_program` yields its events as they happen."""

    def processes(self) -> list[ProcessModel]:
        """Return its processes: all that run, and the last that ended."""

    def write_program(self, process: str, data: str | bytes = b"", *, close: bool = False) -> None:
        """Send input to a process that was started with `stdin`; `close` is the end of it."""

    def signal_program(self, process: str, signal: str) -> None:
        """Send a signal such as ``SIGINT`` to a process and its group."""

    def end_program(self, process: str) -> None:
        """End a process: by SIGTERM, and five seconds later by SIGKILL. It is no error if it has ended."""

    def port_url(self, port: int) -> str:
        """Return a URL at which a browser sees what a program in the session shows on a port.

        It works once, within a minute, where the gateway's operator serves ports.
        """

    def open_port(self, port: int) -> PortUrl:
        """Return what `port_url` answers with, and how long that works."""

class SyncFiles:
    """Files, with methods that block."""

    def list(self, *, folders: bool = False) -> Generator[FileModel]:
        """Yield all files, by path; with `folders`, these too, each with a slash at its path's end."""

    def put(
        self, path: str, source: bytes | str | Path | BinaryIO, progress: Progress | None = None
    ) -> FileChange:
        """Write `source` to the file: bytes, text, the content of the file at a Path, or of an open one.

        An existing file is replaced; missing folders are created. An open file is read from where it is; it
        must be open for bytes. A pipe is sent as it is read. Raises OSError if the source can't be read,
        TypeError for anything else.
        """

    def get(self, path: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes of the file from byte `start` on, by default all; empty after its end."""

    def save(self, path: str, target: Path | str, progress: Progress | None = None) -> None:
        """Write the file to `target`, whole or not at all. Raises OSError if `target` can't be written."""

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it; it is no error if it exists."""

    def move(self, path: str, to: str) -> Sequence[FileChange]:
        """Rename a file or a folder; return the files at their new paths. Nothing is replaced."""

    def remove(self, path: str) -> None:
        """Remove a file or an empty folder."""

class SyncUsers:
    """Users, with methods that block."""

    def list(self) -> Generator[UserModel]:
        """Yield all users, by name."""

    def get(self, user: str = ME) -> UserModel:
        """Return the user of this name."""

    def add(self, name: str, *, role: RoleName = "user") -> UserModel:
        """Add a user, who needs a token to do anything: `create_token`."""

    def change(self, user: str, *, role: RoleName | None = None, disabled: bool | None = None) -> UserModel:
        """Give a user another role, or disable or enable them. Disabling ends their sessions."""

    def remove(self, user: str) -> None:
        """Remove a user with their tokens and secrets, and end their sessions; records and files stay."""

    def tokens(self, user: str = ME) -> Generator[TokenModel]:
        """Yield a user's tokens, without their texts, oldest first."""

    def create_token(
        self,
        user: str = ME,
        *,
        expires: str | None = None,
        scope: str | Sequence[str] | None = None,
        session: str | None = None,
        sessions: str | None = None,
    ) -> NewToken:
        """Make a token; its `token` is shown only now.

        `expires`: after ``90s``, ``12h``, ``30d``, or a time such as ``2030-01-31T12:00:00Z``. `scope`: what
        it may do, such as ``run,read``. `session`: the key of its one session; `sessions`: how their keys
        begin. One's own has at least the limits of the token that makes it.
        """

    def revoke_token(self, token: str, user: str = ME) -> None:
        """Revoke a user's token by its id, and those that the user made with it."""

    def secrets(self, user: str = ME) -> Sequence[SecretModel]:
        """Return a user's secrets, by name, without their values."""

    def set_secret(self, name: str, value: str, user: str = ME) -> SecretModel:
        """Set a user's secret, which sessions that name it have as a variable."""

    def remove_secret(self, name: str, user: str = ME) -> None:
        """Remove a secret of the user."""
