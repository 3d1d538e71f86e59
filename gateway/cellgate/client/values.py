"""What a gateway sends, as typed values: the structs of the wire, and what a client adds to them.

A field that this client does not know is ignored, and one that an older gateway does not send has a default.
Pure; ``api`` receives the bytes.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

import msgspec

from cellgate.client.display import display_bundle
from cellgate.client.errors import CellFailed, gateway_error
from cellgate.wire import answers
from cellgate.wire.events import BY_TYPE, Event
from cellgate.wire.problems import StreamProblem

T = TypeVar("T")

TABLE = "application/vnd.dataresource+json"
"""pandas' Table Schema: ``schema`` names the fields and their types, ``data`` has an object for each row."""


class Result(answers.Result, frozen=True, kw_only=True):
    """An execution with its outputs (nbformat's). `text` is what a reader of the notebook would read.

    `status` is ok, error, timeout, interrupted, died or cancelled, and `cause` may say more.
    """

    @property
    def tables(self) -> list[dict[str, Any]]:
        """The tables that a cell run with `tables` has shown, as data: ``schema``, ``data``, ``total_rows``.

        `total_rows` says how many rows there are, of which `data` may have the first only.
        """
        shown = (output.get("data", {}).get(TABLE) for output in self.outputs)
        return [table for table in shown if isinstance(table, dict)]

    @property
    def ok(self) -> bool:
        """Whether the cell ended well."""
        return self.status == "ok"

    def check(self) -> Self:
        """The result itself. Raises CellFailed when the cell did not end well."""
        if self.ok:
            return self
        said = f"{self.error.ename}: {self.error.evalue}" if self.error else self.cause or ""
        raise CellFailed(
            f"The cell ended with {self.status}" + (f": {said}" if said else ""),
            status=self.status,
            ename=self.error.ename if self.error else None,
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Shows itself in a notebook as the cell's outputs (IPython's display protocol)."""
        return display_bundle(self.outputs, self.text)


class BlocksResult(answers.BlocksResult, frozen=True, kw_only=True):
    """What several blocks gave: `exit_code` 0, 1 for a failed block, 124 for one whose time was over.

    `problem` says why a block could not be run at all, as the gateway's errors do.
    """

    blocks: list[Result] = []  # type: ignore[assignment]  # each with what a client adds
    problem: dict[str, Any] | None = None  # type: ignore[assignment]  # as its JSON is


class _Line(msgspec.Struct):
    """Any line of a stream: an event, a keepalive, or the problem that ends the stream."""

    type: str


def parse_event(line: bytes) -> Event | None:
    """The event in one line of an NDJSON answer; None for a sign of life.

    Raises GatewayError when it is no event, and when it says that the stream has failed.
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


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as `kind`. Raises GatewayError with the reason ``bad_answer``."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise gateway_error(0, "bad_answer", f"The gateway's answer can't be read: {error}") from error
