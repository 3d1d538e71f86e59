"""``cellgate verify``: whether an exported file or the record in a data folder is as it was written.

It uses no gateway: anybody who has the file gets the same findings. The checks themselves are in ``record``.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
from traitlets import Bool, Unicode

from cellgate.cli.base import BaseApp, UsageError, expanded, switches
from cellgate.cli.terminal.escaping import printed
from cellgate.errors import StorageError
from cellgate_kernels.base.errors import InvalidInput, in_brief, near_file

if TYPE_CHECKING:
    from cellgate.record.findings import Finding

VALID, NOT_VALID, UNREADABLE, NO_SEAL = 0, 1, 2, 3
"""Exit codes, the worst first after 0; 2 is also a usage error, as in all commands."""
_RECORD = b"SQLite format 3\0"
"""How the file of a record begins."""


class VerifyApp(BaseApp):
    """``cellgate verify``."""

    name = "cellgate-verify"
    usage = "[FILE.ipynb|BUNDLE.zip|BACKUP]... [options]"
    description = """
        Checks that exported notebooks or bundles, backups of a record, or the record in a data folder or a
        database, are as they were written, and names the first row or cell that was changed, removed, moved
        or added. It needs no gateway, but a gateway may be using the record.

        Exits with 0 if everything is valid, with 1 if something is not; otherwise with 2 if a file can't be
        checked, and with 3 if one has no seal: notebooks that cellgate run or another program wrote have
        none, so changes to them cannot be found.
    """
    examples = """
        cellgate verify my-session.ipynb
        cellgate verify my-session.zip --key 8f1c...
        cellgate verify /backups/record-monday.sqlite3
        cellgate verify --data-dir /var/lib/cellgate
        cellgate verify --record postgresql://cellgate@db.example.org/cellgate
    """

    key = Unicode(
        help="The public key that must have signed the file, or several, separated by commas, of which one"
        " must have; see cellgate record key."
    ).tag(config=True, metavar="KEY")
    record = Unicode(help="The database that the record is in; default: the data folder.").tag(
        config=True, metavar="URL", not_empty=True
    )
    json = Bool(False, help="Print a JSON list.").tag(config=True)

    aliases = {"key": "VerifyApp.key", "record": "VerifyApp.record", **BaseApp.aliases}  # noqa: RUF012
    flags = switches("VerifyApp", json=json)

    def start(self) -> NoReturn:
        """Check and report; exits with the outcome."""
        outcomes = {VALID}
        shown = []
        for finding in self._findings(outcomes):
            if not finding.valid:
                outcomes.add(NOT_VALID if finding.sealed else NO_SEAL)
            if self.json:
                shown.append({**asdict(finding), "valid": finding.valid})
            else:
                sys.stdout.write(printed(_line(finding)) + "\n")
        if self.json:
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode() + "\n")
        sys.stdout.flush()
        raise SystemExit(min(outcomes - {VALID}, default=VALID))

    def _findings_of_database(self) -> Iterator[Finding]:
        from cellgate.record.store.opening import record_address  # noqa: PLC0415 - keeps --help quick

        address = record_address(self.record)
        from cellgate.record.store.postgresql.check import check_database  # noqa: PLC0415 - an extra

        if self.key:
            raise UsageError("--key is for an exported file; a record is not signed")
        yield from check_database(address)

    def _findings_of_backup(self, path: Path) -> Iterator[Finding]:
        from cellgate.record.store.sqlite.check import check_record  # noqa: PLC0415 - keeps --help quick

        if self.key:
            raise UsageError(f"--key is for an exported file; {path} is a record, which is not signed")
        for finding in check_record(path):
            yield replace(finding, subject=f"{path.name}: {finding.subject}")

    def _findings(self, outcomes: set[int]) -> Iterator[Finding]:
        if not self.extra_args:
            if self.record:
                yield from self._findings_of_database()
                return
            from cellgate.record.store.sqlite.check import check_record  # noqa: PLC0415
            from cellgate.record.store.sqlite.location import RECORD  # noqa: PLC0415 - keeps --help quick

            if self.key:
                raise UsageError("--key is for an exported file; the record in a data folder is not signed")
            yield from check_record(self.data_path / RECORD)
            return
        for name in self.extra_args:
            try:
                if _is_record(expanded(name)):
                    yield from self._findings_of_backup(expanded(name))
                    continue
                finding = _check_file(expanded(name))
            except (InvalidInput, StorageError) as error:
                if len(self.extra_args) == 1:
                    raise
                sys.stdout.flush()
                sys.stderr.write(f"cellgate: {printed(error.message)}\n")
                outcomes.add(UNREADABLE)
                continue
            keys = [key.strip().lower() for key in self.key.split(",")] if self.key else []
            if finding.valid and keys and finding.key not in keys:
                signer = (
                    "it is not signed" if finding.key is None else f"another one signed it: {finding.key}"
                )
                given = "the given key" if len(keys) == 1 else f"none of the {len(keys)} given keys"
                signed = "did not sign it" if len(keys) == 1 else "signed it"
                finding = replace(finding, problem=f"{given} {signed}: {signer}")
            yield finding


def _is_record(path: Path) -> bool:
    """Return whether a file begins as a record does; what can't be read is told by `_check_file`."""
    try:
        with path.open("rb") as file:
            return file.read(len(_RECORD)) == _RECORD
    except OSError:
        return False


def _check_file(path: Path) -> Finding:
    from cellgate.record.findings import Finding  # noqa: PLC0415 - see above
    from cellgate.record.verify import imported, notebooks  # noqa: PLC0415

    if path.is_dir():
        raise UsageError(
            f"{path} is a folder; a data folder's record: cellgate verify --data-dir {shlex.quote(str(path))}"
        )
    try:
        with path.open("rb") as file:
            head = file.read(len(_RECORD))
        is_archive = head.startswith(b"PK") or path.suffix == ".zip"
        if is_archive:
            return notebooks.check_bundle(path)
        if path.suffix.lower() == ".csv":
            why = "changes to a table can't be found; cellgate usage -o FILE.zip writes one with a seal"
            return Finding(path.name, "table", why, sealed=False)
        content = imported.read_file(path)
        if path.suffix.lower() != ".ipynb" and "nbformat" not in imported.decode_notebook(content, str(path)):
            raise UsageError(f"{path} is no notebook")
        return notebooks.check_notebook(content, path.name)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {in_brief(error)}{near_file(path)}") from error


def _line(finding: Finding) -> str:
    if not finding.sealed:
        return f"no seal    {finding.subject}: {finding.problem}"
    if not finding.valid:
        return f"NOT VALID  {finding.subject}: {finding.problem}"
    signed = f", signed by {finding.key}" if finding.key else ""
    return f"valid      {finding.subject} ({finding.checked}{signed})"
