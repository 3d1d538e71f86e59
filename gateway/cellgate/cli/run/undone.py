"""What commands say of checkpoints and of a rollback: what there is, and what was undone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cellgate.client import CheckpointModel, Rollback, SessionModel

_MIB = 1024 * 1024


def undone_text(model: SessionModel) -> str:
    """Describe a rollback by the model that it was answered with."""
    found = model.rolled_back
    if not isinstance(found, Rollback):
        return "rolled back"
    cells = "1 cell" if found.undone == 1 else f"{found.undone} cells"
    return f"undone: {cells}; variables and files are as at the checkpoint {found.checkpoint}"


def checkpoint_lines(found: Sequence[CheckpointModel]) -> Iterator[str]:
    """Yield a line for each checkpoint, the oldest first."""
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        memory = f", keeps {each.memory / _MIB:.0f} MiB" if each.memory else ""
        cells = "1 cell" if each.cells == 1 else f"{each.cells} cells"
        yield f"{each.name.ljust(width)}  {each.created_at}  after {cells}{memory}"
