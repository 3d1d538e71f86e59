"""Checks an exported archive with sums of usage offline: its files, its layout and its signature.

It proves who wrote the table and that it is whole; the sums themselves follow from a record that is not in
the archive. ``notebooks`` checks sessions' bundles.
"""

from __future__ import annotations

import csv
import io
import zipfile

from cellgate.record.export.usage_file import TABLE, UsageManifest, columns_of
from cellgate.record.findings import BrokenRecord, counted
from cellgate.record.verify.imported import read_entry


def check_table(archive: zipfile.ZipFile, manifest: UsageManifest) -> str:
    """Return what was checked of an archive whose files have the manifest's hashes. Raises BrokenRecord."""
    told = manifest.usage
    if [*manifest.files] != [TABLE]:
        raise BrokenRecord(f"the archive has other files than {TABLE}")
    rows = [*csv.reader(io.StringIO(read_entry(archive, TABLE).decode(), newline=""))]
    if not rows or rows[0] != columns_of(told["by"]) or len(rows) - 1 != manifest.rows:
        raise BrokenRecord(f"{TABLE} is not the table of {manifest.rows} sums that the manifest names")
    if any(row[:2] != [told["from"], told["to"]] for row in rows[1:]):
        raise BrokenRecord(f"{TABLE} has sums of another time than the manifest")
    whose = "everybody" if told["principal"] == "*" else told["principal"]
    return f"usage of {whose} from {told['from']} to {told['to']}, {counted(manifest.rows, 'sum')}"
