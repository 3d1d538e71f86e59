"""The lines that say when a gateway takes no new work, and when it does again: each once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellgate.http.metrics import Problem
from cellgate.server.work_log import WorkLog

LOST = "The gateway takes no new work: the container engine does not answer"
WHY = "the record can't be written, or the disk of /data has too little space left"
FULL = f"The gateway takes no new work: {WHY}"
BACK = "The gateway takes new work again"


async def test_each_change_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    problems: list[Problem] = []
    log = WorkLog(lambda: problems, Path("/data"))
    for found, lines in (
        ([Problem.NO_KERNEL_YET], []),
        ([], []),
        ([Problem.STORAGE], [FULL]),
        ([Problem.STORAGE, Problem.NO_KERNEL_YET], []),
        ([Problem.STORAGE, Problem.CONTAINER_ENGINE], [LOST]),
        ([Problem.CONTAINER_ENGINE], []),
        ([Problem.NO_KERNEL_YET], [BACK]),
        ([Problem.SHUTTING_DOWN], []),
    ):
        problems[:] = found
        caplog.clear()
        for _ in range(2):
            await log.look()
        assert caplog.messages == lines
