"""The query parameters of each operation that takes any.

They are strings on the wire; ``http.queries`` converts them to these structs and refuses unknown names. Pure.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from cellgate.wire.base import Query, say

MOST_COUNTED = 2**53
"""Larger numbers lose precision in some JSON readers."""

State = Literal["starting", "idle", "asleep", "busy", "dead", "ended", "live"]
ImagePlace = Literal["inline", "url", "none"]
After = Annotated[
    int, Meta(ge=0, le=MOST_COUNTED, description="Only entries after this number are returned.")
]
Owner = Annotated[
    str | None, say("The owner of the session, if not the sender; administrators and auditors only.")
]
Usage = Annotated[bool, say("Whether to tell `memory`, `cpu` and `executions`, which takes a moment.")]
Outputs = Annotated[bool, say("Whether to include the outputs of cells.")]


class ReadyQuery(Query, frozen=True):
    """Ready for what."""

    new: Annotated[
        bool, say("Whether to ask for new sessions, too: 503 while one would wait for a kernel of another.")
    ] = False


class SessionQuery(Query, frozen=True):
    """Whose session a request is about."""

    principal: Owner = None


class OneShotQuery(Query, frozen=True):
    """How to present a result."""

    plain: Annotated[bool, say("Whether to remove ANSI codes from texts.")] = False
    max_text: Annotated[
        Annotated[int, Meta(ge=0, le=MOST_COUNTED)] | None,
        say(
            "Texts with more characters, at least 100, are cut in the middle; a mark there says how to get "
            "the whole text. If absent, 100,000. 0: nothing is cut or left out."
        ),
    ] = None
    images: Annotated[
        ImagePlace,
        Meta(
            title="ImagePlace",
            description="Where images are: `inline` in the result, at a `url` that the output's metadata"
            " names, or `none` to leave them out.",
        ),
    ] = "inline"


class ResultQuery(OneShotQuery, frozen=True):
    """How to present a result, and whose it is."""

    principal: Owner = None


class SessionsQuery(Query, frozen=True):
    """A page of sessions."""

    principal: Annotated[
        str | None,
        say("Whose sessions, if not the sender's; `*`: everybody's. Administrators and auditors only."),
    ] = None
    state: Annotated[
        State | None,
        Meta(
            title="SessionState",
            description="Return only sessions in this state; `live`: those that have not ended.",
        ),
    ] = None
    search: Annotated[
        str | None,
        say(
            "Return only sessions whose key or title, or with `principal=*` owner, kernel's id or folder's "
            "name, has this text in it, in capital letters or not. A page may then be short, or empty, and "
            "still have a `next`."
        ),
    ] = None
    cells: Annotated[
        bool,
        say(
            "Whether `search` also finds sessions by the code and the text outputs of their cells. A page "
            "then looks at a limited part of the record."
        ),
    ] = False
    newest: Annotated[bool, say("Whether those that were created last come first.")] = False
    usage: Usage = False
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[
        str | None,
        say("The page begins after the session with this key, or where the last page's `next` says."),
    ] = None


class ModelQuery(SessionQuery, frozen=True):
    """What of a session to show."""

    usage: Usage = False


class PurgeQuery(SessionQuery, frozen=True):
    """How to end a session."""

    purge: Annotated[bool, say("Whether to remove the session's record as well; administrators only.")] = (
        False
    )


class ExecutionsQuery(SessionQuery, frozen=True):
    """A page of executions."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: After = 0
    newest: Annotated[
        bool,
        say(
            "Whether the last ones come first: then those with a number below `after`, or from the end if "
            "that is absent or 0."
        ),
    ] = False
    search: Annotated[
        str | None,
        say(
            "Return only executions whose code or text outputs have this text in them, in capital letters or "
            "not, from the first on. A page may then be short, or empty, and still have a `next`."
        ),
    ] = None


class TrailQuery(Query, frozen=True):
    """A page of the audit trail."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: After = 0


class UsageQuery(Query, frozen=True):
    """A page of principals."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[str, say("The page begins after the principal of this name.")] = ""


class CellsQuery(Query, frozen=True):
    """The cells whose usage is summed, by the time of their end."""

    principal: Annotated[
        str | None,
        say("Whose cells, if not the sender's; `*`: everybody's. Administrators and auditors only."),
    ] = None
    begin: Annotated[
        str | None,
        say(
            "Cells count that ended from then on: a day, from its first moment in UTC, or a time of RFC 3339."
            " If absent, the first day of this month."
        ),
    ] = field(name="from", default=None)
    end: Annotated[
        str | None,
        say("Cells count that ended before then: a day, or a time. If absent, the time of the request."),
    ] = field(name="to", default=None)
    by: Annotated[
        Literal["principal", "session", "day"],
        Meta(
            title="UsageBy", description="What each sum is of: a `principal`, a `session`, or a `day` in UTC."
        ),
    ] = "principal"


class UsageSumsQuery(CellsQuery, frozen=True):
    """A page of sums."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[str, say("The page begins where the last page's `next` says.")] = ""


class UsageExportQuery(CellsQuery, frozen=True):
    """The form of a file with sums."""

    format: Annotated[
        Literal["csv", "zip"],
        Meta(
            title="UsageFormat",
            description="`csv`: the table alone. `zip`: the table with its hash, and with the gateway's"
            " signature if it has a key; `cellgate verify` checks it.",
        ),
    ] = "csv"


class UsersQuery(Query, frozen=True):
    """A page of users."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[str, say("The page begins after the user of this name.")] = ""


class TokensQuery(Query, frozen=True):
    """A page of a user's tokens."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[str, say("The page begins after the token with this id.")] = ""


class EventsQuery(SessionQuery, frozen=True):
    """Where a stream of events begins."""

    after: Annotated[
        Annotated[int, Meta(ge=0, le=MOST_COUNTED)] | None,
        say("The `seq` after which events are sent; a later `Last-Event-ID` counts instead. 0: all."),
    ] = None


class OutputQuery(SessionQuery, frozen=True):
    """Which representation of an output to return."""

    plain: Annotated[bool, say("Whether to remove ANSI codes from texts.")] = False
    type: Annotated[
        str | None, say("The MIME type to return; if absent, an image if there is one, otherwise text.")
    ] = None


class NotebookQuery(SessionQuery, frozen=True):
    """How to export a session."""

    format: Annotated[
        str,
        Meta(
            title="NotebookFormat",
            extra_json_schema={"enum": ["ipynb", "notebook", "html", "markdown", "script"]},
        ),
    ] = "ipynb"
    outputs: Outputs = True
    inherited: Annotated[
        bool, say("Whether a branch's notebook begins with the cells before it was branched.")
    ] = True
    undone: Annotated[bool, say("Whether to include cells that a rollback undid, as raw cells.")] = True
    order: Annotated[
        Literal["record", "page"],
        Meta(
            title="CellOrder",
            description="`record`: the cells that ran, in the order in which they did. `page`: the cells of"
            " the notebook `file`, in its order, with what the record has of them.",
        ),
    ] = "record"
    file: Annotated[
        str | None,
        say("The path of a notebook in the workspace whose order `page` is; needs the scope `files`."),
    ] = None
    inline: Annotated[
        bool, say("Whether a browser shows HTML at once, to be read or printed, instead of saving it.")
    ] = False


class ReplayQuery(SessionQuery, frozen=True):
    """The form of a report."""

    format: Annotated[str, Meta(title="ReplayFormat", extra_json_schema={"enum": ["json", "html"]})] = "json"


class FilesQuery(SessionQuery, frozen=True):
    """A page of files."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    after: Annotated[str, say("The page begins after the file with this path.")] = ""
    folders: Annotated[bool, say("Whether to list folders too.")] = False


class RowsQuery(SessionQuery, frozen=True):
    """A page of a table's rows."""

    offset: Annotated[int, Meta(ge=0, le=MOST_COUNTED, description="The place of the first row, from 0.")] = 0
    limit: Annotated[
        int,
        Meta(ge=1, le=1000, description="How many rows at most; a page of 1 MB or 20,000 cells has fewer."),
    ] = 100
    first_column: Annotated[
        int,
        Meta(
            ge=0,
            le=MOST_COUNTED,
            description="The place of the first column, from 0; a page has 100 and those of the index.",
        ),
    ] = 0
    sort: Annotated[str | None, say("The name of the column that orders the rows; missing values last.")] = (
        None
    )
    descending: Annotated[bool, say("Whether the largest value comes first.")] = False
    filter: Annotated[
        str | None,
        say(
            "Return only rows of which a cell has this text in it, in capital letters or not. With `column` "
            "it may begin with `=`, `!=`, `<`, `<=`, `>` or `>=`, which compare; `=` alone: what is missing, "
            "`!=` alone: what is not."
        ),
    ] = None
    column: Annotated[str | None, say("The name of the only column that the filter looks at.")] = None


class FileActionQuery(SessionQuery, frozen=True):
    """What to do with a path: exactly one of these."""

    mkdir: Annotated[
        Literal["", "true", "1"] | None,
        Meta(title="FolderFlag", description="Make a folder of this path, and those above it."),
    ] = None
    move_to: Annotated[
        str | None, say("Rename the file or folder to this path; folders above it are made.")
    ] = None
