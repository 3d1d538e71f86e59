"""Files with sums of usage: what a spreadsheet takes from a table, and what an archive may not say."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from msgspec import structs

from cellgate.record.export.sealed_archive import SealedArchive
from cellgate.record.export.usage_file import (
    TABLE,
    SummedTime,
    UsageManifest,
    columns_of,
    harmless,
    usage_archive,
    usage_table,
)
from cellgate.record.keys import SigningKey, make_key
from cellgate.record.verify.notebooks import check_bundle
from cellgate.wire.usage import KnownFigures, UsageSum

FROM, TO = "2026-11-01T00:00:00.000000Z", "2026-12-01T00:00:00.000000Z"
TOLD = SummedTime(FROM, TO, "session", "*", TO)
SUMS = [
    UsageSum(principal="ada", session="s", cells=3, unknown=1, cpu_seconds=0.5),
    UsageSum(principal="b,ob", session='a"b', cells=2, memory_peak=7, known=KnownFigures(memory_peak=2)),
]


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return make_key(tmp_path)


def problem_of(path: Path, content: bytes) -> str | None:
    path.write_bytes(content)
    return check_bundle(path).problem


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1"])
def test_no_cell_of_a_table_is_a_formula(text: str) -> None:
    assert harmless(text) == f"'{text}"
    table = usage_table([UsageSum(principal=text, cells=1)], SummedTime(FROM, TO, "principal", "*", TO))
    (row,) = [*csv.reader(io.StringIO(table.decode(), newline=""))][1:]
    assert row[2] == f"'{text}"


def test_a_table_reads_back_as_it_was_summed() -> None:
    assert harmless("a-1") == "a-1"
    table = usage_table(SUMS, TOLD)
    first, second = csv.DictReader(io.StringIO(table.decode(), newline=""))
    assert list(first) == columns_of("session")
    assert (first["cpu_seconds"], first["memory_peak"], first["unknown"]) == ("0.5", "", "1")
    assert (second["principal"], second["session"], second["memory_peak_known"]) == ("b,ob", 'a"b', "2")
    assert {(row["from"], row["to"]) for row in (first, second)} == {(FROM, TO)}


def test_an_archive_is_valid_with_and_without_a_key(tmp_path: Path, key: SigningKey) -> None:
    path = tmp_path / "usage.zip"
    table = usage_table(SUMS, TOLD)
    for signing in (None, key):
        path.write_bytes(usage_archive(table, TOLD, "1.0", signing))
        found = check_bundle(path)
        assert found.problem is None
        assert found.checked == f"usage of everybody from {FROM} to {TO}, 2 sums"
        assert found.key == (None if signing is None else key.public)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rows": 3}, "is not the table of 3 sums"),
        ({"usage": {"from": FROM, "to": FROM, "by": "session", "principal": "*"}}, "sums of another time"),
        ({"usage": {"from": FROM, "to": TO, "by": "day", "principal": "*"}}, "is not the table of 2 sums"),
        ({"usage": {"from": FROM, "to": TO, "by": "week", "principal": "*"}}, "no whole bundle"),
        ({"usage": {}}, "no whole bundle"),
    ],
)
def test_a_manifest_that_does_not_fit_its_table_is_found(
    tmp_path: Path, key: SigningKey, change: dict[str, object], told: str
) -> None:
    """Also if whoever wrote it has the key."""
    usage = {"from": FROM, "to": TO, "by": "session", "principal": "*"}
    with SealedArchive(TO) as archive:
        parts = [*archive.add(TABLE, [usage_table(SUMS, TOLD)])]
        manifest = UsageManifest(usage, 2, archive.digests.copy())
        parts += archive.sign(structs.replace(manifest, **change), key)
    parts += archive.last()
    found = problem_of(tmp_path / "usage.zip", b"".join(parts))
    assert found is not None
    assert told in found


def test_an_archive_with_another_file_is_none_of_usage(tmp_path: Path) -> None:
    with SealedArchive(TO) as archive:
        parts = [*archive.add(TABLE, [usage_table(SUMS, TOLD)]), *archive.add("more.csv", [b"x"])]
        usage = {"from": FROM, "to": TO, "by": "session", "principal": "*"}
        parts += archive.sign(UsageManifest(usage, 2, archive.digests.copy()), None)
    parts += archive.last()
    assert problem_of(tmp_path / "usage.zip", b"".join(parts)) == f"the archive has other files than {TABLE}"
