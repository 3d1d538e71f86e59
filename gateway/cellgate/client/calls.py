"""The client's calls: bodies, timeouts, retries where they are safe, downloads to disk.

It uses ``transport`` and knows paths below a session; ``api`` and ``files`` know what the calls mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_type_hints
from urllib.parse import quote

import msgspec

from cellgate.client.errors import GatewayError, InvalidInput, gateway_error
from cellgate.client.transport import MOST_ANSWER, SESSIONS, HttpAnswer, RequestBody, Server
from cellgate.wire.models import CellKeywords, SessionKeywords
from cellgate_kernels.base.resources import GIB

IDLE_TIMEOUT = 60.0  # of a stream: the gateway sends a keep-alive every 15 s
REQUEST_TIMEOUT = 120.0  # of everything else: a session may wait for a kernel
_PIECE = 1024 * 1024  # bytes written at once
MOST_UNTOLD: Final = 64 * GIB
"""Bytes of a download whose length the gateway has not told: a disk is not filled by one that never ends."""
FORM_BY_EXTENSION: Final = MappingProxyType(
    {
        ".html": "html",
        ".htm": "html",
        ".md": "markdown",
        ".markdown": "markdown",
        ".py": "script",
        ".sh": "script",
        ".js": "script",
        ".ts": "script",
    }
)
"""What a notebook is converted to for a file with such a name."""
_OTHERS: Final = frozenset(
    {".pdf", ".ps", ".tex", ".rst", ".txt", ".rtf", ".log", ".doc", ".docx", ".odt", ".ppt", ".pptx", ".odp"}
    | {".csv", ".tsv", ".xls", ".xlsx", ".ods", ".parquet", ".json", ".jsonl", ".ndjson", ".yaml", ".yml"}
    | {".toml", ".xml", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".sqlite", ".db", ".pkl"}
    | {".gz", ".tgz", ".bz2", ".xz", ".zst", ".tar", ".7z", ".rar"}
)
"""Extensions of files that no record can be written as."""
RETRY_PAUSE = 0.2  # seconds before the first retry; doubled for each further one
OWNER_UNREACHABLE: Final = "owner_unreachable"
OWNER_PATIENCE: Final = 30.0
"""Seconds for which a session's gateway may be out of reach: two leases, by default."""
_LOST_BY_PROXY: Final = frozenset({502, 503, 504})
"""Statuses that a proxy gives for a connection to the gateway that it lost or did not get."""

_LOST: Final = frozenset({"connection_lost", "owner_lost", "shutting_down"})
"""Reasons of requests that may have been carried out, or begun."""

Progress = Callable[[int, int | None], object]
"""Called with the number of bytes transferred so far, and the total if it is known."""


class Calls:
    """Requests to one gateway. All methods raise GatewayError."""

    def __init__(self, server: Server, attempts: int) -> None:
        self._server = server
        self.attempts = max(1, attempts)
        server.asks_again = self.attempts > 1
        self.url = server.url
        self.exchange = server.exchange
        self.learn = server.learn
        self.learn_branch = server.learn_branch
        self.websocket = server.websocket

    async def call(
        self,
        method: str,
        target: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = REQUEST_TIMEOUT,
        idempotency: str | None = None,
        on_send: Callable[[], object] | None = None,
        most: int = MOST_ANSWER,
        session: str | None = None,
    ) -> bytes:
        """Return the answer's body. A request is repeated only if that is safe: see `_pause`.

        `on_send` is called when it is sent, each time. `most`: bytes of an answer, of which more is an error.
        `session`: as for ``Server.exchange``, of the request that makes a session unless there is one.
        """
        headers = {} if idempotency is None else {"Idempotency-Key": idempotency}
        data = None if body is None else encode(body)
        now = asyncio.get_running_loop().time
        failures, out_of_reach = 0, float("inf")
        while True:
            try:
                return await self._call(method, target, data, headers, timeout, on_send, most, session)
            except GatewayError as error:
                if error.reason == OWNER_UNREACHABLE:
                    out_of_reach = min(out_of_reach, now())
                else:
                    failures, out_of_reach = failures + 1, float("inf")
                again = method == "GET" or session is not None or idempotency is not None
                names_none = target == SESSIONS and session is None
                if error.reason == "http_error" and method != "GET" and not names_none:
                    # Another gateway behind the proxy may know nothing of the first attempt. That is no harm
                    # to a session without a name: what the first attempt has opened ends when it is idle.
                    again = again and self._server.knows(session, target)
                pause = self._pause(error, failures, now() - out_of_reach, repeatable=again)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    def _pause(self, error: GatewayError, failures: int, waited: float, *, repeatable: bool) -> float | None:
        """Return the seconds after which a request is repeated; None if it is not.

        `waited`: seconds for which the session's gateway has been out of reach.

        Any request is repeated that a gateway has refused because the session's own can't be reached: that
        is back or replaced after a lease. One that is `repeatable` is so after a lost connection, too, also
        one that a proxy or another gateway of the cluster has lost, or that the gateway's end has cancelled.
        """
        if error.reason == OWNER_UNREACHABLE:
            pause = max(RETRY_PAUSE, error.retry_after or 0)
            return pause if self.attempts > 1 and waited + pause <= OWNER_PATIENCE else None
        if not repeatable or not _was_lost(error) or failures >= self.attempts:
            return None
        return RETRY_PAUSE * 2.0 ** (failures - 1)

    async def _call(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float | None,
        on_send: Callable[[], object] | None,
        most: int,
        session: str | None,
    ) -> bytes:
        try:
            async with (
                asyncio.timeout(timeout),
                self.exchange(
                    method, target, body=body, headers=headers, on_send=on_send, session=session
                ) as answer,
            ):
                return await answer.body(most=most)
        except TimeoutError as error:
            raise gateway_error(0, "no_answer", f"The gateway gave no answer in {timeout:.0f} s") from error

    async def upload(self, target: str, body: RequestBody) -> bytes:
        """Send the body by PUT; return the answer's."""
        async with self.exchange("PUT", target, body=body) as answer:
            return await answer.body()

    @asynccontextmanager
    async def open(self, target: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[HttpAnswer]:
        """Yield an answer whose body the caller reads."""
        async with self.exchange("GET", target, accept="*/*", headers=headers) as answer:
            yield answer

    async def download(
        self, target: str, path: Path | Callable[[str], Path], progress: Progress | None = None
    ) -> Path:
        """Stream the body to a file beside `path`, then replace `path` with it. Raises OSError.

        `path` may depend on the name that the gateway gives the file. Returns it.
        """
        if isinstance(path, Path):
            # Before the gateway has made anything.
            await asyncio.to_thread(_check_replaceable, path)
        async with self.open(target) as answer:
            if not isinstance(path, Path):
                disposition = answer.headers.get("content-disposition", "")
                path = path(disposition.partition('filename="')[2].partition('"')[0])
                await asyncio.to_thread(_check_replaceable, path)
            await _save(answer, path, progress or ignore_progress)
        return path


def _was_lost(error: GatewayError) -> bool:
    """Return whether the answer was lost: by a connection, on the way, or because the gateway ended."""
    return error.reason in _LOST or (error.reason == "http_error" and error.status in _LOST_BY_PROXY)


def ignore_progress(_done: int, _total: int | None) -> None:
    """Do nothing: a `Progress` for callers that need none."""


async def _save(answer: HttpAnswer, path: Path, progress: Progress) -> None:
    """Stream the body to a file beside `path`, then replace `path` with it."""
    # Not tempfile's, which only its owner may read: this is the user's own file, as their umask has it.
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    length = answer.headers.get("content-length")
    total = int(length) if length is not None and length.isdecimal() else None
    done = 0
    try:
        with os.fdopen(descriptor, "wb") as file:
            async with aclosing(answer.chunks(idle_timeout=IDLE_TIMEOUT)) as chunks:
                waiting: list[bytes] = []
                held = 0
                async for chunk in chunks:
                    waiting.append(chunk)
                    done += len(chunk)
                    held += len(chunk)
                    if held >= _PIECE:
                        await asyncio.to_thread(file.writelines, waiting)
                        waiting, held = [], 0
                    if total is None and done > MOST_UNTOLD:
                        raise gateway_error(
                            0, "bad_answer", f"The gateway told no length, and sent {MOST_UNTOLD:,} bytes"
                        )
                    progress(done, total)
                await asyncio.to_thread(file.writelines, waiting)
            await asyncio.to_thread(_keep_mode, file.fileno(), path)
        await asyncio.to_thread(os.replace, name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(os.unlink, name)
        raise


def form_of(path: Path) -> str:
    """Return the form of a record in a file of this name: ``ipynb``, ``bundle``, or a form to convert to.

    What is behind the last dot may say nothing, as in ``run-2026.11.27``, or be of a name for a while:
    that is a notebook. Raises InvalidInput for what only another kind of file is called.
    """
    extension = path.suffix.lower()
    if extension in _OTHERS:
        raise InvalidInput(
            f"{path}: a notebook's name ends in .ipynb, a page's in .html, Markdown's in .md, a"
            " script's in .py, a bundle's in .zip; form=\"ipynb\" writes a notebook under any name"
        )
    return "bundle" if extension == ".zip" else FORM_BY_EXTENSION.get(extension, "ipynb")


def as_script(path: Path, told: str) -> Path:
    """`path`, for a script that the gateway calls `told`. Raises InvalidInput for one of another language."""
    named, own = path.suffix.lower(), Path(told).suffix
    scripts = {extension for extension, form in FORM_BY_EXTENSION.items() if form == "script"}
    if named != own and {named, own} <= scripts and {named, own} != {".js", ".ts"}:
        raise InvalidInput(f"{path}: the name of a script of this session ends in {own}")
    return path


def _check_replaceable(path: Path) -> None:
    """Raise OSError unless the path may get a file: no folder, device, pipe or link to one."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode) or _leads_into_proc(path):
        raise OSError(errno.EINVAL, "It is no file, but a device or a pipe", str(path))


def _leads_into_proc(path: Path) -> bool:
    """Return whether a link leads, at once or in steps, to a process's descriptor, as /dev/stdout does."""
    # `stat` has followed them all, so they end.
    while path.is_symlink():
        path = path.parent.resolve() / path.readlink()
        if path.is_relative_to("/proc"):
            return True
    return False


def _keep_mode(descriptor: int, path: Path) -> None:
    """Give the file that replaces one the mode of that one."""
    if path.is_file():
        os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))


def session_path(session: str, *more: str) -> str:
    """Return a path below a session; slashes in a part are escaped. Raises InvalidInput."""
    if not session:
        raise InvalidInput("a session's name can't be empty")
    return "/v1/sessions/" + "/".join(quote(part, safe="~") for part in (session, *more))


def words(argv: Sequence[str]) -> list[str]:
    """Return a program and its arguments. Raises TypeError for a command line or a nested list."""
    if isinstance(argv, str) or not all(isinstance(word, str) for word in argv):
        raise TypeError(
            "a program and its arguments are words of their own, such as 'ls', '-l'; no shell is used"
        )
    return list(argv)


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def usage_query(by: str, begin: str | None, end: str | None) -> dict[str, Any]:
    """Return the parameters of a question about usage."""
    return {"by": by} | {name: value for name, value in (("from", begin), ("to", end)) if value is not None}


# Reading them takes a quarter of a millisecond.
_CELL: Final = MappingProxyType(get_type_hints(CellKeywords))
_SESSION: Final = MappingProxyType(get_type_hints(SessionKeywords))


def cell_options(options: CellKeywords) -> dict[str, Any]:
    """Return a cell's options that are not None, as they are sent. Raises TypeError for others."""
    known = _options("a cell", options, _CELL)
    if isinstance(text := known.get("stdin"), str):
        # As of a file: the end of the last line begins no further one.
        known["stdin"] = text.removesuffix("\n").split("\n") if text else []
    return known


def session_options(options: SessionKeywords) -> dict[str, Any]:
    """Return a session's options that are not None. Raises TypeError for others."""
    return _options("a session", options, _SESSION)


def _options(whose: str, options: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None. Raises TypeError for others, as Python does for wrong keywords.

    Python does not compare keywords with a TypedDict. Unchecked, a misspelt one would start a kernel before
    the gateway refused it, and any other field of the request, such as `wait`, would go through; and what the
    gateway says of a wrong type is in the words of JSON.
    """
    unknown = sorted(options.keys() - hints.keys())
    if unknown:
        raise TypeError(f"{whose} has no option {unknown[0]!r}; known are: {', '.join(hints)}")
    for name, value in options.items():
        if not _fits(value, hints[name]):
            wanted = str(hints[name]).replace("collections.abc.", "").replace("typing.", "")
            raise TypeError(f"{name} must be {wanted}, not {_type_of(value)}")
    return given(**options)


def _fits(value: object, kind: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _type_of(value: object) -> str:
    """Return the type of a value, or of what is in it, for a message."""
    name = type(value).__name__
    if isinstance(value, (list, tuple)):
        return f"{name} of {_types_of(value)}"
    if isinstance(value, dict):
        return f"{name} of {_types_of(value)}: {_types_of(value.values())}"
    return name


def _types_of(values: Iterable[object]) -> str:
    return ", ".join(sorted({type(each).__name__ for each in values})[:3]) or "nothing"


def check_code(code: object) -> None:
    """Raise TypeError for code that is not text."""
    if not isinstance(code, str):
        raise TypeError(f"code must be str, not {type(code).__name__}")


def check_on_cancel(value: str) -> None:
    """Raise InvalidInput for an unknown word."""
    if value not in {"interrupt", "continue"}:
        raise InvalidInput(f"on_cancel is 'interrupt' or 'continue', not {value!r}")


def encode(body: Mapping[str, Any]) -> bytes:
    """Return the body as JSON. Raises InvalidInput for text that can't be sent."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise InvalidInput("the text holds lone surrogates, which can't be sent") from error
