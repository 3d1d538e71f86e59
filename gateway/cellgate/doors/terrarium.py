"""The wire of Cohere's Terrarium: a script with files in, its output and the files that it made out.

Khoj is its best-known client. It gives up after 30 seconds, repeats the request twice, and then asks the
server to stop; so a script ends before that, and `stop` does nothing. Its code refers to files as
``/home/user/NAME``.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Iterable

from cellgate.doors.base import Asked, DoorHandler, Ran, Script, is_hidden, printed
from cellgate.files.tree import parse_path
from cellgate.http.base import BaseHandler
from cellgate.http.operation import requires
from cellgate.identity.principal import Permission
from cellgate.wire.answers import FileChange, Result
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.codec.encoding import encode_in_steps

TIMEOUT = 25.0
"""Seconds: less than the 30 after which Khoj begins again."""
MOST_BYTES = 16 * 1024 * 1024
"""Of all files of an answer; those that do not fit are left out."""
TEXTS = (".org", ".md", ".json")
"""Suffixes that Khoj takes for text, besides those of text's own types."""
KNOWN = (".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp", ".md", ".org")
"""Suffixes that Python alone does not know, but Khoj's image does: Ubuntu's Python reads /etc/mime.types."""


class TerrariumFile(Asked, frozen=True):
    """A file, in base64."""

    filename: str
    b64_data: str


class TerrariumBody(Asked, frozen=True):
    """A script to run, and what it finds."""

    code: str
    files: list[TerrariumFile] = []  # noqa: RUF012 - of a struct, made anew for each


class FileChoice:
    """Which files of a script are sent: visible ones that it was not given, as long as there is room."""

    def __init__(self, given: frozenset[str]) -> None:
        self._given = given
        self._left = MOST_BYTES

    def __call__(self, file: FileChange) -> bool:
        """Return whether this one is."""
        size = file.size or 0
        if is_hidden(file.path) or file.path in self._given or size > self._left:
            return False
        self._left -= size
        return True


class TerrariumHandler(DoorHandler):
    """Run a script."""

    door = "terrarium"

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Run a script and answer its output, last value, and the files that it made."""
        body = await self.body(TerrariumBody)
        files = await self.aside(len(self.raw_body()), _given, body.files)
        wanted = FileChoice(frozenset(files))
        ran = await self.run_once(Script(body.code, timeout=TIMEOUT, files=files, wants=wanted))
        if self.disconnected:
            return
        size = len(ran.result.text) + sum(map(len, ran.files.values()))
        parts = await self.aside(size, _answer, ran)
        self.set_header("Content-Type", "application/json; charset=utf-8")
        await self.finish_parts(parts)


class TerrariumHealthHandler(BaseHandler):
    """Whether it is there; for probes that have no token."""

    public = True

    async def get(self) -> None:
        """Greet."""
        self.check()
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("hi!")


class TerrariumStopHandler(TerrariumHealthHandler):
    """What ends the original, and nothing here."""


def _given(files: Iterable[TerrariumFile]) -> dict[str, bytes]:
    """Return the workspace's first files, by path. Raises InvalidInput."""
    return {"/".join(parse_path(file.filename)): _bytes(file) for file in files}


def _answer(ran: Ran) -> list[bytes]:
    """Return the body of the answer, in parts. It is one line, because that is what Cohere's client reads."""
    result = ran.result
    told: dict[str, object] = {
        "success": result.status == "ok",
        "final_expression": _value(result),
        "std_out": result.stdout,
        "std_err": result.stderr,
        "code_runtime": round(result.duration_ms or 0),
    }
    if result.status == "ok":
        told["output_files"] = [
            {"filename": _readable_name(path, content), "b64_data": base64.b64encode(content).decode()}
            for path, content in ran.files.items()
        ]
    else:
        kind = result.status if result.error is None else result.error.ename
        told["error"] = {"type": kind, "message": printed(result, streams=())}
    return [*encode_in_steps(told), b"\n"]


def _readable_name(path: str, content: bytes) -> str:
    """Return a file's path, with ``.bin`` appended if Khoj would fail on the file by its own name.

    Khoj gives up a whole answer with a file whose type Python does not know, or with a text that is not UTF-8
    (its ``execute_terrarium``).
    """
    # Without the lists of this machine: they are not those of Khoj's.
    kind, _ = mimetypes.MimeTypes().guess_type(path)
    if kind is None and not path.endswith(KNOWN):
        return f"{path}.bin"
    if path.endswith(TEXTS) or (kind is not None and kind.startswith("text/")):
        try:
            content.decode()
        except UnicodeDecodeError:
            return f"{path}.bin"
    return path


def _bytes(file: TerrariumFile) -> bytes:
    try:
        return base64.b64decode(file.b64_data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"b64_data of {file.filename[:80]!r} is no base64: {error}") from error


def _value(result: Result) -> str | None:
    """Return the value of the last expression, as text."""
    values = [output for output in result.outputs if output["output_type"] == "execute_result"]
    return values[-1]["data"].get("text/plain") if values else None


ROUTES = (
    ("/terrarium/?", TerrariumHandler),
    ("/terrarium/health/?", TerrariumHealthHandler),
    ("/terrarium/stop/?", TerrariumStopHandler),
)
