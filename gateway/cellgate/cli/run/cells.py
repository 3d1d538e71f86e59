"""The cells of a file, or the one of a command line: values only.

``notebook_files`` reads them, ``cell_run`` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Written:
    """The kernelspec and the language that a notebook names; empty where it names none."""

    kernelspec: str = ""
    language: str = ""


class CellKind(StrEnum):
    """A cell's type, as nbformat names it."""

    CODE = "code"
    MARKDOWN = "markdown"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class SourceCell:
    """One cell of a file. `id`, `metadata` and `attachments` are those of a notebook's cell."""

    kind: CellKind
    source: str
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    attachments: Mapping[str, Any] | None = None

    @property
    def runs(self) -> bool:
        """Whether it has code, and no `skip-execution` tag (nbclient's)."""
        return self.kind is CellKind.CODE and bool(self.source.strip()) and not self._tagged("skip-execution")

    @property
    def may_fail(self) -> bool:
        """Whether it has the `raises-exception` tag: its exception is intended."""
        return self._tagged("raises-exception")

    def _tagged(self, tag: str) -> bool:
        tags = self.metadata.get("tags")
        return isinstance(tags, list) and tag in tags


@dataclass(frozen=True, slots=True)
class CellFile:
    """A file's cells in order, its notebook metadata, remarks for the user, and what it was written with."""

    cells: tuple[SourceCell, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    written: Written = Written()
