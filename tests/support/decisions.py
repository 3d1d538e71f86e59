"""Keeps what sessions log of their decisions while a test runs, to replay it afterwards."""

from __future__ import annotations

import logging

from cellgate.sessions import decisions


class RecordedDecisions(logging.Handler):
    """The lines of all sessions that begin between `start` and `stop`; the test's own log has none."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def start(self) -> None:
        """Let sessions that begin from now on log their decisions, here alone."""
        decisions.logger.addHandler(self)
        decisions.logger.setLevel(logging.DEBUG)
        decisions.logger.propagate = False

    def stop(self) -> None:
        """Log no more, unless another test's world still does."""
        decisions.logger.removeHandler(self)
        if not any(isinstance(each, RecordedDecisions) for each in decisions.logger.handlers):
            decisions.logger.setLevel(logging.NOTSET)
            decisions.logger.propagate = True
