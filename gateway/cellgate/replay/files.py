"""The input files of a recorded session: those that were put into its workspace by other ways than its cells.

Pure. A notebook tells their paths, sizes and hashes and not their bytes, so a replay has those whose bytes
are still somewhere. Who replays looks for them, and says of each what became of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from cellgate_kernels.errors import InvalidInput

GONE = "It is not there any more."
CHANGED = "It is not what it was: its bytes have another hash."
NO_HASH = "The record holds no hash of it."


class InputFile(msgspec.Struct, frozen=True):
    """A file as the record tells it; `size` in bytes."""

    path: str
    size: int | None = None
    sha256: str | None = None


class Restored(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of an input file. `reason`: why it is not there in the replay; None when it is."""

    path: str
    reason: str | None = None


def input_files(notebook: Mapping[str, Any]) -> list[InputFile]:
    """The input files that a notebook of ours names. Raises InvalidInput when it does not do so as we do."""
    try:
        told = notebook.get("metadata", {}).get("cellgate", {}).get("input_files", [])
        return msgspec.convert(told, list[InputFile])
    except (AttributeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"The notebook's list of input files can't be read: {error}") from error


def files_report(restored: Iterable[Restored]) -> list[dict[str, Any]]:
    """The files as they are in a report."""
    return [
        {"path": file.path, "restored": file.reason is None}
        | ({} if file.reason is None else {"reason": file.reason})
        for file in restored
    ]
