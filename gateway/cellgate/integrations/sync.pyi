"""Made from the asynchronous classes by `make reference`: do not change it here."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from cellgate.client import ProcessModel, Result, SyncSession
from cellgate.integrations.tools import MAX_TEXT, Content, ToolAnswer

class SyncSessionTools:
    """SessionTools, with methods that block."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the session as its own ``async with`` block would."""

    @property
    def session(self) -> SyncSession:
        """The session that they work in."""

    def answer(self, name: str, arguments: Mapping[str, object] | str | bytes = b"") -> ToolAnswer:
        """Call a tool by its name, with arguments as an object or as JSON; a refusal is an answer, too."""

    def run_code(
        self,
        code: str,
        timeout: float | None = None,
        language: str | None = None,
        tables: int | None = None,
        branch: str | None = None,
    ) -> Content:
        """Run code as a notebook cell, in Python unless the session has another language. Variables stay.

        `timeout` is in seconds. If `language` (python, bash, javascript, typescript) is not the session's,
        the code runs as a separate program, with the same files and without the session's variables. The
        value of the last expression is shown, as in a notebook; figures are returned as images. With
        `tables`, a number of rows, DataFrames are also returned as JSON: schema, the first rows, total_rows.
        With `branch`, the name of one that branch_session made, it runs there instead.
        """

    def read_output(
        self, execution: str, start: int = 0, length: int = MAX_TEXT, branch: str | None = None
    ) -> Content:
        """Read more of an execution's text that was cut: `length` characters from `start`.

        `branch`: the one that it ran in, if it did, also one of try_alternatives.
        """

    def run_program(self, argv: list[str], cwd: str | None = None, timeout: float | None = None) -> Content:
        """Run a program such as ["git", "status"] and wait for its end, without a shell, beside the kernel.

        It runs even while code runs, and must end by itself. `cwd` is a folder of the session's files;
        `timeout` is in seconds. For a shell's features, run ["bash", "-c", "..."].
        """

    def list_files(self) -> Content:
        """List the session's files and folders, one per line: size in bytes and path of a file.

        The path of a folder ends with a slash.
        """

    def read_file(self, path: str, start: int = 0, length: int = MAX_TEXT) -> Content:
        """Read a file of the session: `length` bytes of text from `start`, or a whole image."""

    def write_file(self, path: str, text: str) -> Content:
        """Write a text file into the session. Replaces an existing file; creates missing folders."""

    def undo_last_cell(self) -> Content:
        """Undo the last cell, with what it did to variables and files, even if the kernel died of it.

        It goes to the newest checkpoint from before that cell, and says how many cells that undid.
        """

    def branch_session(self, shared_files: bool = False, anyway: bool = False) -> Content:
        """Make a branch: a second session with a copy of all variables, imports and files as they are now.

        Use it to try something without changing this session, or alternatives side by side; it takes a
        fraction of a second, however large the data. Returns its name, for `branch` of run_code. With
        `shared_files` both have the same files. What can't be copied, such as threads, is refused by name;
        `anyway` makes a branch without it. Nothing may run in this session. Branches end with it. Paths
        name the branch's own files there, unless the answer says otherwise.
        """

    def try_alternatives(
        self, cells: list[str], timeout: float | None = None, anyway: bool = False, keep_first: bool = False
    ) -> Content:
        """Run alternatives to the next cell, each in a branch of its own, side by side; returns all results.

        This session stays as it is: run the best one with run_code then. With `keep_first` it goes on as the
        first one that ends without an error, in the order given, and those after that may be left out.
        `timeout` is in seconds, for each. `anyway` as of branch_session. At most 16 cells.
        """

    def content(self, result: Result, branch: str | None = None) -> Content:
        """Return what a model is shown of a cell's result: one text, and pictures after it."""

    def shown(self, process: ProcessModel) -> str:
        """Return what a program wrote, and its state below that."""

    def close(self) -> None:
        """Stop the thread; nothing can be called afterwards."""

class SyncOpenAITools(SyncSessionTools):
    """OpenAITools, with methods that block."""

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as Chat Completions take them."""

    @property
    def response_schemas(self) -> list[dict[str, Any]]:
        """The tools as Responses take them."""

    def messages(self, tool_calls: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
        """Return the messages that answer a reply's ``tool_calls``. Raises InvalidInput for what is no call.

        One for each call, as the API wants it. Such messages hold text alone, so pictures are in one more of
        the user's, which must come after all answers to this reply.
        """

    def outputs(self, output: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the items that answer the calls in a response's ``output``; its other items are passed over.

        Empty if there is no call. Raises InvalidInput for what is no item.
        """

class SyncAnthropicTools(SyncSessionTools):
    """AnthropicTools, with methods that block."""

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as the API takes them."""

    def results(self, content: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the blocks that answer the calls in a message's content; its other blocks are passed over.

        Empty if there is no call. Raises InvalidInput for what is no content.
        """
