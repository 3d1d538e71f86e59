"""Structured logs on top of the standard library's: one line per event, to standard error.

Configured once by ``cli.serve``. A line has ids and causes, never code, output, values of variables or
tokens; requests are logged without their query. Events of sessions go into the record, not here. Names that
clients choose are escaped and cut, so that one line stays one line, whoever wrote what is in it.

No client can fill a disk with refusals: of lines of one kind only so many a minute are written, and then one
that says how many were left out (`PacedHandler`).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, TextIO

import structlog
from tornado.httputil import HTTPInputError
from tornado.web import RequestHandler

from cellgate.http.base import BaseHandler
from cellgate.http.described import described
from cellgate_kernels.base.errors import GatewayFault

access_logger = logging.getLogger("cellgate.access")

IDS = (
    *("principal", "session", "kernel", "execution", "cause", "reason", "quota", "record", "part", "task"),
    "client",
)
"""The fields that a line may have besides its text, given by `extra`: its subject, and the cause."""

LONGEST_FIELD = 300
"""The most characters of a field; names that clients choose may be as long as a request's head."""

MINUTE = 60.0
MOST_REQUESTS = 60
"""The most lines a minute of one kind about requests, which strangers can cause."""
MOST = 600
"""The most lines a minute of one kind about anything else."""
STRANGERS = ("cellgate.access", "tornado")
"""The loggers, with their children, whose lines strangers can cause."""
MOST_KINDS = 1000

Line = MutableMapping[str, Any]
Kind = tuple[str, int, str, str]


@dataclass(slots=True)
class _Minute:
    """Lines of one kind since `began`. `last`: the last of those that were left out."""

    began: float
    written: int = 0
    left_out: int = 0
    last: logging.LogRecord | None = None


class PacedHandler(logging.StreamHandler[TextIO]):
    """Writes at most so many lines of one kind a minute; of those left out, their number.

    A kind is a logger, a level, a text before its values are filled in, and a reason. Lines for debugging are
    never left out. `tell_left_out` is called every minute, so that a number is told even if nothing follows.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._minutes: dict[Kind, _Minute] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless there were too many of its kind. Called with the handler's lock held."""
        if record.levelno <= logging.DEBUG or self._may_write(record):
            super().emit(record)

    def _may_write(self, record: logging.LogRecord) -> bool:
        kind = record.name, record.levelno, str(record.msg), str(getattr(record, "reason", ""))
        if kind not in self._minutes and len(self._minutes) >= MOST_KINDS:
            kind = record.name, record.levelno, "", ""
        now = self._clock()
        minute = self._minutes.get(kind)
        if minute is None or now - minute.began >= MINUTE:
            if minute is not None:
                self._tell(kind, minute)
            minute = self._minutes[kind] = _Minute(now)
        if minute.written >= (MOST_REQUESTS if record.name.startswith(STRANGERS) else MOST):
            minute.left_out += 1
            minute.last = record
            return False
        minute.written += 1
        return True

    def tell_left_out(self, *, all_of_them: bool = False) -> None:
        """Write the number of lines left out in each minute that is over, or until now."""
        with self.lock or threading.Lock():
            now = self._clock()
            for kind, minute in tuple(self._minutes.items()):
                if all_of_them or now - minute.began >= MINUTE:
                    del self._minutes[kind]
                    self._tell(kind, minute)

    def _tell(self, kind: Kind, minute: _Minute) -> None:
        if minute.last is None:
            return
        name, level, _, reason = kind
        said = "Left out %d more lines of this kind in a minute, the last: %s"
        values = (minute.left_out, minute.last.getMessage())
        record = logging.LogRecord(name, level, "", 0, said, values, None)
        if reason:
            record.reason = reason
        super().emit(record)

    def close(self) -> None:
        """Write the number of lines left out until now."""
        self.tell_left_out(all_of_them=True)
        super().close()


def configure(level: int, *, json: bool) -> PacedHandler:
    """Send all loggers of the process through structlog to stderr, as text or as JSON lines."""
    handler = PacedHandler(sys.stderr)
    handler.setFormatter(formatter(json=json, colors=sys.stderr.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # tornado's access lines would contain the query; jupyter_client logs each failure twice.
    logging.getLogger("tornado.access").disabled = True
    logging.getLogger("cellgate.jupyter_client").disabled = True
    logging.getLogger("tornado.general").addFilter(without_values)
    return handler


def without_values(record: logging.LogRecord) -> bool:
    """Cut tornado's quotes of an unreadable request: they may be a token with a stray character."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            str(each).partition("'")[0].partition('"')[0] if isinstance(each, HTTPInputError) else each
            for each in record.args
        )
    return True


def formatter(*, json: bool, colors: bool = False) -> logging.Formatter:
    """Format a record as a line: JSON, or text for people."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(allow=IDS),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _cut,
    ]
    # JSON escapes whatever is not ASCII by itself.
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.JSONRenderer()]
        if json
        else [_escape, structlog.dev.ConsoleRenderer(colors=colors)]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )


def _cut(_: object, __: str, line: Line) -> Line:
    """Cut text that clients may have chosen."""
    for name in IDS:
        value = line.get(name)
        if isinstance(value, str) and len(value) > LONGEST_FIELD:
            line[name] = value[:LONGEST_FIELD] + "..."
    return line


def _escape(_: object, __: str, line: Line) -> Line:
    """Return text for a terminal: control characters are shown, and nothing looks like another line.

    Lines of a stack are marked. structlog quotes a value that could be taken for more than one field.
    """
    for name, value in line.items():
        if name == "exception":
            line[name] = "\n".join(f"  | {printable(part)}" for part in str(value).splitlines())
        elif isinstance(value, str):
            line[name] = printable(value)
    return line


def printable(text: str) -> str:
    """`text` with everything that is not printable written as an escape."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def log_request(handler: RequestHandler) -> None:
    """Count and log one answered request: failures as errors, refusals as information, others for debugging.

    A refusal has its reason, and the principal if the request's token was known. A probe that asks whether a
    gateway is ready while it starts or ends is refused like a client.
    """
    status = handler.get_status()
    if status >= 500 and not getattr(handler, "is_expected", False):
        level = logging.ERROR
    elif status >= 400:
        level = logging.INFO
    else:
        level = logging.DEBUG
    metrics = handler.application.settings["metrics"]
    metrics.responses[str(status)].inc()
    ids: dict[str, str] = {}
    if isinstance(handler, BaseHandler):
        ids = _ids(handler)
        if handler.refusal is not None:
            metrics.refusals[handler.refusal].inc()
    if access_logger.isEnabledFor(level):
        milliseconds = 1000.0 * handler.request.request_time()
        access_logger.log(level, "%s %d %.1f ms", _told(handler), status, milliseconds, extra=ids)


def log_program_request(handler: RequestHandler) -> None:
    """Log a request to a program in a session, whose answer is no event of the gateway's."""
    if isinstance(handler, BaseHandler) and handler.refusal is not None:
        handler.application.settings["metrics"].refusals[handler.refusal].inc()
    level = logging.ERROR if getattr(handler, "refusal", None) == GatewayFault.reason else logging.DEBUG
    if access_logger.isEnabledFor(level):
        ids = _ids(handler) if isinstance(handler, BaseHandler) else {}
        access_logger.log(level, "%s %d of a program", _told(handler), handler.get_status(), extra=ids)


def _told(handler: RequestHandler) -> str:
    return handler.described() if isinstance(handler, BaseHandler) else described(handler.request)


def _ids(handler: BaseHandler) -> dict[str, str]:
    ids = {"client": handler.client_address}
    if handler.refusal is not None:
        ids["reason"] = handler.refusal
    if handler.quota is not None:
        ids["quota"] = handler.quota.quota
    principal = getattr(handler, "principal", None)
    return ids if principal is None else {**ids, "principal": principal.name}
