"""Which process of ``pytest -n`` runs which tests, and what becomes of those of a process that has died."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

BROWSED = "tests/clients/console/"


class TogetherWhereShared(LoadScopeScheduling):
    """What ``pytest -n`` runs in one process: a module that shares a fixture, else each test for itself.

    Not ``--dist loadgroup``: it marks tests by a name that pytest 9.2 no longer reads, and groups nothing.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._shares: dict[str, bool] = {}

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if module.startswith(BROWSED):
            # One browser for half of them: with one for all, they would end last.
            return f"{BROWSED}{crc32(module.encode()) % 2}"
        if module not in self._shares:
            text = (self.config.rootpath / module).read_text()
            self._shares[module] = 'fixture(scope="module"' in text
        return module if self._shares[module] else nodeid

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process more to do. With less than two tests it does nothing, until it is told to end."""
        while node in self.registered_collections and not node.shutting_down:
            super()._reschedule(node)
            if self._pending_of(self.assigned_work[node]) >= 2:
                break

    def remove_node(self, node: WorkerController) -> str | None:
        """Give others what a process has left but the test in which it died; returns that test."""
        units = self.assigned_work.pop(node)
        left = [(unit, test) for unit in units.values() for test, has_run in unit.items() if not has_run]
        if not left:
            return None
        unit, died = left[0]
        unit[died] = True
        self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
        for other in self.nodes:
            self._reschedule(other)
        return died
