"""What jobs make, each in its own process, leaves the record its room on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from cellgate.errors import StorageFull
from cellgate.jobs.jobs import Jobs
from cellgate.record.spill_ledger import SpillLedger
from cellgate_kernels.base.threads import Lane


@pytest.mark.nightly
async def test_what_a_job_makes_leaves_that_room_too(tmp_path: Path, lane: Lane) -> None:
    jobs = Jobs(tmp_path, SpillLedger(tmp_path, 0), lane)
    full = Jobs(tmp_path, SpillLedger(tmp_path, 1 << 60), lane)
    with jobs.file("ada") as given, full.file("ada") as none, jobs.file("ada") as enough:
        await given.write(nbformat.writes(new_notebook(cells=[new_code_cell("x = 1")])).encode())
        with pytest.raises(StorageFull):
            await jobs.run("ada", "cellgate.jobs.convert", "markdown", given=given, made=none)
        await jobs.run("ada", "cellgate.jobs.convert", "markdown", given=given, made=enough)
        assert b"x = 1" in await enough.read()
    for each in (jobs, full):
        await each.finished()


async def test_a_job_that_finds_the_disk_full_is_no_failed_conversion(tmp_path: Path, lane: Lane) -> None:
    jobs = Jobs(tmp_path, SpillLedger(tmp_path, 0), lane)
    with jobs.file("ada") as given, jobs.file("ada") as made:
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, made.file.fileno())
        os.close(full)
        await given.write(nbformat.writes(new_notebook(cells=[new_code_cell("x = 1")])).encode())
        with pytest.raises(StorageFull):
            await jobs.run("ada", "cellgate.jobs.convert", "markdown", given=given, made=made)
    await jobs.finished()
