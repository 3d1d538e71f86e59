"""The query parameters of each operation that takes any.

They are strings on the wire; ``http.queries`` converts them to these structs and refuses unknown names. Pure.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from cellgate.wire.base import Query

MOST_COUNTED = 2**53
"""Larger numbers lose precision in some JSON readers."""

State = Literal["starting", "idle", "busy", "dead", "ended"]
ImagePlace = Literal["inline", "url", "none"]
After = Annotated[
    int, Meta(ge=0, le=MOST_COUNTED, description="The page or the stream begins after this number.")
]
Outputs = Annotated[bool, Meta(description="Whether cells have their outputs.")]


class ResultQuery(Query, frozen=True):
    """How a result is shown."""

    plain: Annotated[bool, Meta(description="Whether ANSI codes are stripped.")] = False
    max_text: Annotated[
        Annotated[int, Meta(ge=100, le=MOST_COUNTED)] | None,
        Meta(description="Texts of more characters are cut in the middle, and say where the whole is."),
    ] = None
    images: Annotated[
        ImagePlace, Meta(description="`url` tells only where each image is, `none` leaves images out.")
    ] = "inline"


class SessionsQuery(Query, frozen=True):
    """A page of sessions."""

    state: Annotated[State | None, Meta(description="Only sessions in this state.")] = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[str | None, Meta(description="The page begins after the session of this key.")] = None


class PurgeQuery(Query, frozen=True):
    """How a session is ended."""

    purge: Annotated[bool, Meta(description="Whether its record goes too; for administrators.")] = False


class ExecutionsQuery(Query, frozen=True):
    """A page of executions."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: After = 0


class EventsQuery(Query, frozen=True):
    """Where a stream of events begins."""

    after: Annotated[
        Annotated[int, Meta(ge=0, le=MOST_COUNTED)] | None,
        Meta(description="The `seq` after which events are wanted; default: Last-Event-ID, or the first."),
    ] = None


class OutputQuery(Query, frozen=True):
    """Which representation of an output."""

    plain: Annotated[bool, Meta(description="Whether ANSI codes are stripped.")] = False
    type: Annotated[str | None, Meta(description="One of a display's MIME types.")] = None


class NotebookQuery(Query, frozen=True):
    """How a session is exported."""

    format: Annotated[
        str, Meta(extra_json_schema={"enum": ["ipynb", "notebook", "html", "markdown", "script"]})
    ] = "ipynb"
    outputs: Outputs = True


class ReplayQuery(Query, frozen=True):
    """The form of a report."""

    format: Annotated[str, Meta(extra_json_schema={"enum": ["json", "html"]})] = "json"


class FilesQuery(Query, frozen=True):
    """A page of files."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    after: Annotated[str, Meta(description="The page begins after this path.")] = ""
