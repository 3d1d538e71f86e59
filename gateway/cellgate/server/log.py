"""Structured logs on top of the standard library's: one line per event, to standard error.

Configured once by ``cli.serve``. Requests are logged without their query, which may carry a token. Events of
sessions go into the record, not here.
"""

from __future__ import annotations

import logging
import sys

import structlog
from tornado.web import RequestHandler

access_logger = logging.getLogger("cellgate.access")

IDS = ("session", "kernel", "execution", "part", "task", "client")
"""Fields that a line may have besides its text, given by `extra`: what it is about."""


def configure(level: int, *, json: bool) -> None:
    """Send all loggers of the process through structlog to stderr, as text or as JSON lines."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(allow=IDS),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # tornado's access lines would contain the query; jupyter_client logs each failure twice.
    logging.getLogger("tornado.access").disabled = True
    logging.getLogger("cellgate.jupyter_client").disabled = True


def log_request(handler: RequestHandler) -> None:
    """Log one answered request: failures as errors, refusals as information, the rest for debugging only."""
    status = handler.get_status()
    if status >= 500:
        level = logging.ERROR
    elif status >= 400:
        level = logging.INFO
    else:
        level = logging.DEBUG
    if access_logger.isEnabledFor(level):
        request = handler.request
        milliseconds = 1000.0 * request.request_time()
        access_logger.log(
            level,
            "%s %s %d %.1f ms",
            request.method,
            request.path,
            status,
            milliseconds,
            extra={"client": request.remote_ip},
        )
    handler.application.settings["metrics"].responses[str(status)].inc()
