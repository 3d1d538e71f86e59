"""A gateway's answers as typed values: the structs of the wire, and the client's additions to them.

Fields that this client does not know are ignored, and fields that an older gateway does not send have
defaults. Pure; ``api`` receives the bytes.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from typing import Any, Final, Generic, Self, TypeVar

import msgspec

from cellgate.client.display import display_bundle
from cellgate.client.errors import CellFailed, gateway_error
from cellgate.client.images import Image, images_in
from cellgate.client.loss import describe_loss
from cellgate.client.tables import to_frame
from cellgate.wire import answers
from cellgate.wire.events import BY_TYPE, Event
from cellgate.wire.problems import StreamProblem
from cellgate.wire.words import Cause, Status

T = TypeVar("T")
MOST_PAGES: Final = 10_000
"""Pages of one list: at 200 sessions a page two million of them."""

TABLE = "application/vnd.dataresource+json"
"""pandas' Table Schema: ``schema`` has the fields' names and types, ``data`` an object for each row.

Of a table that does not come so, an output's metadata has this type, and in it the ``problem``.
"""
_SHOWN: Final = 60
"""Characters of a text that a `repr` shows: one is printed for each value at a prompt, and into logs."""


def _short(text: str) -> str:
    short = reprlib.Repr()
    short.maxstring = _SHOWN
    return short.repr(text)


class Result(answers.Result, frozen=True, kw_only=True):
    """An execution with its outputs (in nbformat). `text` is the text that a reader of the notebook sees.

    `status` is ok, error, timeout, interrupted, died or cancelled; `cause` may say more.
    """

    status: Status = ""
    cause: Cause | None = None

    def __repr__(self) -> str:
        parts = [f"status={self.status!r}"]
        if self.text and self.error is None:
            parts.append(f"text={_short(self.text)}")
        if self.error is not None:
            parts.append(f"error={_short(f'{self.error.ename}: {self.error.evalue}')}")
        if images := self.images:
            parts.append(f"images={len(images)}")
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def images(self) -> list[Image]:
        """The pictures that the cell has shown, such as plots, in their order; each can `save` itself."""
        return images_in(self.outputs)

    @property
    def tables(self) -> list[dict[str, Any]]:
        """The tables displayed by a cell run with `tables`, as data: ``schema``, ``data``, ``total_rows``.

        `total_rows` is the number of all rows, of which `data` may hold only the first ones.
        """
        shown = (output.get("data", {}).get(TABLE) for output in self.outputs)
        return [table for table in shown if isinstance(table, dict)]

    @property
    def table_problems(self) -> list[str]:
        """Why tables that a cell run with `tables` displayed are not among its `tables`; mostly empty."""
        shown = (output.get("metadata", {}).get(TABLE) for output in self.outputs)
        return [str(each["problem"]) for each in shown if isinstance(each, dict) and "problem" in each]

    def frames(self) -> list[Any]:
        """Return the `tables` as pandas' DataFrames and Series, as they were; this needs pandas here, too.

        Raises ValueError for one that is no table.
        """
        return [to_frame(table) for table in self.tables]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as the gateway's answer had it, of values that JSON has."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    def to_json(self) -> str:
        """Return the result as JSON, as `to_dict` has it."""
        return msgspec.json.encode(self).decode()

    @property
    def ok(self) -> bool:
        """Whether the cell succeeded."""
        return self.status == "ok"

    @property
    def loss(self) -> str:
        """The loss of the previous kernel in words; empty if nothing was lost.

        The first result after the loss says it. It may explain why a name that was defined before is not.
        """
        return describe_loss(self.kernel)

    def check(self) -> Self:
        """Return the result itself. Raises CellFailed if the cell did not succeed."""
        if self.ok:
            return self
        if self.status == "timeout":
            # The error is the KeyboardInterrupt by which the gateway stopped it.
            detail = "it ran longer than it may"
        else:
            detail = f"{self.error.ename}: {self.error.evalue}" if self.error else self.cause or ""
        message = f"The cell ended with {self.status}" + (f": {detail}" if detail else "")
        raise CellFailed(
            f"{message}. {self.loss}" if self.loss else message,
            status=self.status,
            ename=self.error.ename if self.error else None,
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Display the result in a notebook as the cell's outputs (IPython's display protocol)."""
        return display_bundle(self.outputs, self.text, self.loss)


class Alternative(answers.Alternative, Result, frozen=True, kw_only=True):
    """The result of one alternative in its branch, whose name is `session`. `branch`: what became of it.

    One that was not run has the status ``cancelled``; `problem` may say why.
    """


class Exploration(answers.Exploration, frozen=True, kw_only=True):
    """The results of alternatives, in the order given: a sequence of them."""

    results: list[Alternative] = []  # type: ignore[assignment]  # with the client's additions

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Alternative]:
        return iter(self.results)

    def __getitem__(self, place: int) -> Alternative:
        return self.results[place]

    def __repr__(self) -> str:
        return f"Exploration({', '.join(each.status for each in self.results)})"


class BlocksResult(answers.BlocksResult, frozen=True, kw_only=True):
    """The results of several blocks: `exit_code` 0, 1 for a failed block, 124 for one that timed out.

    `problem` says why a block could not be run at all, in the form of the gateway's errors.
    """

    blocks: list[Result] = []  # type: ignore[assignment]  # with the client's additions

    def __repr__(self) -> str:
        output = _short(self.output)
        return f"BlocksResult(exit_code={self.exit_code}, blocks={len(self.blocks)}, output={output})"


class EventLines(msgspec.Struct):
    """A page of events, each as an NDJSON answer would have it."""

    events: list[msgspec.Raw]
    next: int | None = None


class _Line(msgspec.Struct):
    """Any line of a stream: an event, a keepalive, or the problem that ends the stream."""

    type: str


class _MaybeTyped(msgspec.Struct):
    """A line that may be a model, which has no type."""

    type: str | None = None


def parse_event(line: bytes) -> Event | None:
    """Return the event in one line of an NDJSON answer; None for a keep-alive.

    Raises GatewayError if it is not an event, and if it reports that the stream has failed.
    """
    if not line.strip():
        return None
    kind = decode(line, _Line).type
    if kind == "keepalive":
        return None
    if kind == "problem":
        problem = decode(line, StreamProblem)
        raise gateway_error(problem.status, problem.reason, problem.detail)
    return decode(line, BY_TYPE.get(kind, Event))


def parse_opening(line: bytes) -> answers.SessionModel | int | None:
    """Parse a line sent while a session is made: the session, its position in line, or a keep-alive.

    Raises GatewayError if it is none of them, and if it says that there will be no session.
    """
    if decode(line, _MaybeTyped).type is None:
        return decode(line, answers.SessionModel)
    if parse_event(line) is not None:
        raise gateway_error(0, "bad_answer", "The gateway answered with an event")
    position = decode(line, answers.KeepAlive).position
    return None if position is msgspec.UNSET else position


class Pages(Generic[T]):
    """The pages of one list: where each begins. A gateway's list that never ends is an error."""

    def __init__(self, first: T) -> None:
        self._left = MOST_PAGES
        self.after: T | None = first
        """Where the page to be asked for begins; None when there is no further one."""

    def turn(self, said: T | None) -> None:
        """Go on to the page that begins where the last one `said`. Raises GatewayError."""
        self._left -= 1
        if said is not None and (said == self.after or not self._left):
            why = "a page of it leads to itself" if said == self.after else f"it has {MOST_PAGES:,} pages"
            raise gateway_error(0, "bad_answer", f"The gateway's list has no end: {why}")
        self.after = said


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as `kind`. Raises GatewayError with the reason ``bad_answer``."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise gateway_error(0, "bad_answer", f"The gateway's answer can't be read: {error}") from error
