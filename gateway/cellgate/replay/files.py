"""The input files of a recorded session: files in its workspace that did not come from its cells.

Pure. A notebook has their paths, sizes and hashes but not their bytes, so a replay gets only those whose
bytes still exist somewhere. The replaying code looks for them, and reports the outcome for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from cellgate.wire.answers import RestoredFile
from cellgate_kernels.base.errors import InvalidInput

GONE = "It is not there any more."
CHANGED = "It is not what it was: its bytes have another hash."
NO_HASH = "The record holds no hash of it."


class InputFile(msgspec.Struct, frozen=True):
    """A file as described in the record; `size` in bytes."""

    path: str
    size: int | None = None
    sha256: str | None = None


def input_files(notebook: Mapping[str, Any]) -> list[InputFile]:
    """Return the input files listed in a Cellgate notebook. Raises InvalidInput if the list is malformed."""
    try:
        told = notebook.get("metadata", {}).get("cellgate", {}).get("input_files", [])
        return msgspec.convert(told, list[InputFile])
    except (AttributeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"The notebook's list of input files can't be read: {error}") from error


def restored_file(path: str, reason: str | None = None) -> RestoredFile:
    """Return the outcome for an input file. `reason`: why the replay lacks it; None if it is there."""
    return RestoredFile(path=path, restored=reason is None, reason=UNSET if reason is None else reason)
