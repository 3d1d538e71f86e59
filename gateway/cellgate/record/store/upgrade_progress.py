"""Tells in the log how far the upgrade of a record is, every few seconds. For the stores' upgrades."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger(__name__)

TOLD_EVERY = 5.0
"""Seconds between two lines of the log."""


class UpgradeProgress:
    """Counts the cells whose rows were brought up to date."""

    def __init__(self) -> None:
        self._cells = 0
        self._told_at = time.monotonic()

    def count(self, cells: int) -> None:
        """Note that so many more cells are done."""
        self._cells += cells
        if time.monotonic() - self._told_at >= TOLD_EVERY:
            self._told_at = time.monotonic()
            logger.info("The record is brought up to date: %d cells so far", self._cells)
