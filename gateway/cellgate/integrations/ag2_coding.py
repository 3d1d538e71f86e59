"""AG2 0.x: an executor for agents that take one of ``autogen.coding``, on a session of Cellgate.

    with Ag2CodingExecutor(url, token, work_dir="coding") as executor:
        agent = ConversableAgent("runs_code", code_execution_config={"executor": executor})

Blocks are cells, whose variables stay, or with `fresh` programs of their own, as AG2's command line executors
have them. ``integrations.ag2`` is for AG2 1.x, which has no such executors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self, Unpack

from cellgate.client import Gateway, NotFound, RequestRefused, SyncSession
from cellgate.integrations.local_files import is_below
from cellgate.wire.models import SessionKeywords

try:
    from autogen.coding import CodeBlock, CodeExtractor, MarkdownCodeExtractor
    from autogen.coding.base import IPythonCodeResult
except ImportError as error:
    raise ImportError("cellgate.integrations.ag2_coding needs ag2 0.x: pip install 'ag2>=0.9,<1'") from error

MOST_FILES: Final = 1000
MOST_BYTES: Final = 256 * 1024 * 1024
"""Of the files that a folder gives to a session, and of those that it gets at once."""
_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"shell": "bash", "sh": "bash", "py": "python", "js": "javascript", "": "python"}
)
_PROGRAMS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"python": ("python", "py"), "bash": ("bash", "sh"), "javascript": ("node", "js")}
)
"""By language, the program that runs a block of its own, and the ending of the block's file."""
_NAME: Final = "filename:"
_State = tuple[int, str | None]
"""A file's size, and when it was modified."""
_TIMED_OUT: Final = 124
_FAILED: Final = 1


class Ag2CodingExecutor:
    """Runs blocks in a session of the gateway at `url`: one of this name, which stays, or one of its own.

    `timeout`: seconds for each block. `work_dir`: a local folder, whose files the session has before blocks
    run and which has those that they made or changed afterwards; hidden files, and links, are left out.
    `fresh`: whether each block is a program of its own, so that no variables stay. Other options are the
    session's; see `Gateway.session`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        session: str | None = None,
        timeout: float | None = 60.0,
        work_dir: Path | str | None = None,
        fresh: bool = False,
        **options: Unpack[SessionKeywords],
    ) -> None:
        self._gateway = Gateway.sync(url, token)
        self._session = self._gateway.session(session, **options)
        self._timeout = timeout
        self._folder = None if work_dir is None else Path(work_dir)
        self._fresh = fresh
        self._given: dict[str, tuple[int, int]] = {}
        self._numbers = count(1)

    @property
    def session(self) -> SyncSession:
        """The session, to look at its variables for example."""
        return self._session

    @property
    def code_extractor(self) -> CodeExtractor:
        """AG2's own: blocks of Markdown."""
        return MarkdownCodeExtractor()

    def execute_code_blocks(self, code_blocks: Sequence[CodeBlock]) -> IPythonCodeResult:
        """Run blocks until one fails. A block that can't be run at all is a result, too.

        Raises GatewayError, and ValueError for a folder that holds too much.
        """
        self._session.opened()
        self._give_files()
        before = self._found()
        blocks = [(_language(each.language), each.code) for each in code_blocks]
        code, output = self._run_programs(blocks) if self._fresh else self._run_cells(blocks)
        saved, left_out = self._take_files(before)
        if left_out:
            output += f"\n[cellgate: {left_out} files are in the session alone: more than one call brings]"
        return IPythonCodeResult(exit_code=code, output=output, output_files=saved)

    def restart(self) -> None:
        """Give the session a fresh kernel: variables are lost, files stay."""
        self._session.opened()
        self._session.restart()

    def stop(self) -> None:
        """End the session, or leave one that has a name."""
        try:
            self._session.__exit__(None, None, None)
        finally:
            self._gateway.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run_cells(self, blocks: Sequence[tuple[str, str]]) -> tuple[int, str]:
        try:
            done = self._session.run_blocks(blocks, timeout=self._timeout, on_disconnect="interrupt")
        except RequestRefused as error:
            return _FAILED, error.message
        if done.problem is None:
            return done.exit_code, done.output
        said = f"\n[cellgate: the next block did not run: {done.problem.detail}]"
        return done.exit_code, done.output + said

    def _run_programs(self, blocks: Sequence[tuple[str, str]]) -> tuple[int, str]:
        outputs = []
        for language, code in blocks:
            exit_code, output = self._run_program(language, code)
            outputs.append(output)
            if exit_code:
                return exit_code, "".join(outputs)
        return 0, "".join(outputs)

    def _run_program(self, language: str, code: str) -> tuple[int, str]:
        if language not in _PROGRAMS:
            known = ", ".join(_PROGRAMS)
            return _FAILED, f"There is no program for a block in {language!r}; there are some for {known}\n"
        program, ending = _PROGRAMS[language]
        named = _name_in(code)
        path = named or f".block-{next(self._numbers)}.{ending}"
        try:
            self._session.files.put(path, code)
            done = self._session.run_program(program, path, timeout=self._timeout)
            if not named:
                self._session.files.remove(path)
        except RequestRefused as error:
            return _FAILED, f"{error.message}\n"
        output = done.stdout + done.stderr
        if done.cause == "timeout":
            return _TIMED_OUT, f"{output}\n[cellgate: the block ran longer than {self._timeout:g} s]\n"
        return _FAILED if done.exit_code is None else done.exit_code, output

    # Files

    def _give_files(self) -> None:
        """Send the folder's files that are new or have changed. Raises ValueError if there are too many."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        found = {path.relative_to(self._folder).as_posix(): path for path in _files_below(self._folder)}
        states = {name: path.stat() for name, path in found.items()}
        if len(found) > MOST_FILES or sum(state.st_size for state in states.values()) > MOST_BYTES:
            raise ValueError(
                f"{self._folder} has more than {MOST_FILES} files or {MOST_BYTES} bytes; give it less"
            )
        for name, path in found.items():
            state = (states[name].st_mtime_ns, states[name].st_size)
            if self._given.get(name) != state:
                self._session.files.put(name, path)
                self._given[name] = state

    def _take_files(self, before: Mapping[str, _State]) -> tuple[list[str], int]:
        """Save the files that were made or changed since `before` to the folder.

        Returns their local paths, and how many were left out because they are too many or too large.
        """
        saved: list[str] = []
        if self._folder is None:
            return saved, 0
        left, left_out = MOST_BYTES, 0
        for name, state in self._found().items():
            path = self._folder / name
            if before.get(name) == state or not is_below(path, self._folder):
                continue
            if state[0] > left or len(saved) == MOST_FILES:
                left_out += 1
                continue
            left -= state[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._session.files.save(name, path)
            except NotFound:
                # A program that goes on has removed it.
                continue
            made = path.stat()
            self._given[name] = (made.st_mtime_ns, made.st_size)
            saved.append(str(path.resolve()))
        return saved, left_out

    def _found(self) -> dict[str, _State]:
        """Return the states of the workspace's files that are not hidden, by path."""
        if self._folder is None:
            return {}
        return {
            each.path: (each.size, each.modified)
            for each in self._session.files.list()
            if not _is_hidden(Path(each.path))
        }


def _language(name: str) -> str:
    return _ALIASES.get(name.lower(), name.lower())


def _name_in(code: str) -> str:
    """Return the name in a first line such as ``# filename: NAME``; empty without one."""
    comment = code.partition("\n")[0].strip().removeprefix("#").removeprefix("//").strip()
    return comment.removeprefix(_NAME).strip() if comment.startswith(_NAME) else ""


def _files_below(folder: Path) -> list[Path]:
    found = (path for path in sorted(folder.rglob("*")) if not _is_hidden(path.relative_to(folder)))
    return [path for path in found if path.is_file() and not path.is_symlink()]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)
