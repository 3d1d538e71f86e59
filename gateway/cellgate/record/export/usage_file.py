"""Sums of usage as a file: a table as CSV, alone or in a sealed archive that ``verify`` checks. Pure.

Spreadsheets take a text for a formula that begins in a certain way. Names and keys never begin so, but a
record may be older than the rules for them, and whoever opens a bill trusts it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cellgate.record.export.sealed_archive import SealedArchive
from cellgate.record.keys import SigningKey
from cellgate.record.rows import FIGURES
from cellgate.wire.usage import UsageSum

TABLE = "usage.csv"
MOST_SUMS = 50_000
"""Sums in one file."""
NAMES = {"principal": ("principal",), "session": ("principal", "session"), "day": ("day",)}
"""The columns that say what a sum is of."""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class SummedTime:
    """What the sums of a file are of: their times as the record has them, and by what.

    `principal`: whose cells; ``*``: everybody's. `made_at`: when they were summed.
    """

    begin: str
    end: str
    by: str
    principal: str
    made_at: str


class UsageManifest(msgspec.Struct, frozen=True):
    """The list of an archive's files, with their SHA-256 by name; `rows`: how many sums its table has."""

    usage: dict[str, str]
    rows: int
    files: dict[str, str]


def columns_of(by: str) -> list[str]:
    """Return the names of the table's columns. Those of figures are in pairs: a sum, and of how many."""
    figures = (f"{name}{suffix}" for name in FIGURES for suffix in ("", "_known"))
    return ["from", "to", *NAMES[by], "cells", "unknown", *figures]


def usage_table(sums: Sequence[UsageSum], told: SummedTime) -> bytes:
    """Return the sums as CSV (RFC 4180) with a line of names; what nobody knows is empty."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns_of(told.by))
    for each in sums:
        writer.writerow([told.begin, told.end, *_values(each, told.by)])
    return text.getvalue().encode()


def _values(each: UsageSum, by: str) -> list[Any]:
    names = [harmless(getattr(each, name)) for name in NAMES[by]]
    figures = ((getattr(each, name), getattr(each.known, name)) for name in FIGURES)
    return [*names, each.cells, each.unknown, *(value for pair in figures for value in pair)]


def harmless(text: str) -> str:
    """Return the text as one that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULAS) else text


def usage_archive(table: bytes, told: SummedTime, version: str, key: SigningKey | None) -> bytes:
    """Return an archive with the table, its hash and, if there is a key, a signature."""
    usage = {"from": told.begin, "to": told.end, "by": told.by, "principal": told.principal}
    usage |= {"made_at": told.made_at, "gateway_version": version}
    rows = max(0, table.count(b"\r\n") - 1)
    with SealedArchive(told.made_at) as archive:
        parts = [*archive.add(TABLE, [table])]
        parts += archive.sign(UsageManifest(usage, rows, archive.digests.copy()), key)
    parts += archive.last()
    return b"".join(parts)
