"""Copies of a record, checked like any record before they count as good, for ``cellgate record``.

``backup`` of ``record.store.sqlite`` makes them and gives them their names; its ``check`` checks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cellgate.errors import StorageError
from cellgate.record.findings import Finding
from cellgate.record.store.sqlite.backup import Progress, backing_up, restoring
from cellgate.record.store.sqlite.check import check_record


@dataclass(frozen=True, slots=True)
class Copied:
    """A finished copy: its size, and what the check of it found."""

    bytes: int
    findings: list[Finding]

    @property
    def problems(self) -> list[Finding]:
        """The findings that are not valid."""
        return [found for found in self.findings if not found.valid]


def back_up(record: Path, target: Path, *, replace: bool, progress: Progress) -> Copied:
    """Write a copy of the record to `target`; see `backing_up`.

    One in which the check finds a problem does not remove what may be the last good copy: that is kept under
    another name.
    """
    with backing_up(record, target, replace=replace, progress=progress) as copy:
        copied = Copied(copy.bytes, list(check_record(copy.file)))
        copy.publish(replace=replace, aside=replace and bool(copied.problems))
    return copied


def restore(source: Path, record: Path, *, replace: bool, anyway: bool, progress: Progress) -> Copied:
    """Make the copy at `source` the record of a data folder; see `restoring`.

    An existing record is kept under another name, if it is to be replaced at all. With `anyway` a copy is
    taken even if the check finds problems.
    """
    with restoring(source, record, replace=replace, progress=progress) as copy:
        copied = Copied(copy.bytes, list(check_record(copy.file)))
        if copied.problems and not anyway:
            first = copied.problems[0]
            raise StorageError(
                f"{source} is not valid: {first.subject}: {first.problem}; restore it with --anyway"
            )
        copy.publish(replace=True, aside=True)
    return copied
