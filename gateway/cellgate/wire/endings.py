"""Why a cell ended, in a sentence, where none of its outputs says so. Pure.

The text of a result, the notebook, the tools for models and the commands all show this sentence, so that they
agree. It follows from what the `finished` event has and says no more than that.
"""

from __future__ import annotations

from typing import Any

from msgspec import UnsetType

from cellgate.wire.events import Finished

CELL_TIMEOUT = "CellTimeout"
KERNEL_DIED = "KernelDied"
"""Names of errors that the gateway reports because the kernel could not."""

INTERRUPTED = "interrupt_requested"
"""The cause of a cell's end that somebody asked for."""
RECORD_SET_BACK = "record_set_back"
"""The cause of a kernel's loss with which a part of the record is lost, too."""
_BY_ITSELF = frozenset({"ok", "error"})
_UNANSWERED = frozenset({"cancelled", "died"})
_OF_THE_GATEWAY = frozenset({CELL_TIMEOUT, KERNEL_DIED})
_GATEWAY_LEFT = "gateway_restart"
"""Its notebooks never had a sentence below an error: they must stay what they were, byte for byte."""


def describe_end(ended: Finished, *, started: bool, error_shown: bool) -> str:
    """Why the cell ended, or that processes of it were killed; empty if its outputs say all there is to say.

    `started`: whether there was a `started` event. `error_shown`: whether an error is among the outputs.
    """
    why = f" ({ended.cause})" if ended.cause else ""
    if ended.status in _BY_ITSELF:
        # A failure without an error output was reported otherwise: IPython prints usage errors of magics.
        return " ".join(
            filter(None, (_describe_gap(ended.kernel.cause), _describe_kills(ended.memory_kills)))
        )
    error = ended.error
    if not started and ended.status in _UNANSWERED and ended.sent is not True:
        if error_shown:
            return ""
        # Records from before `sent` are shown as they were: cells that a kernel never confirmed did not run.
        told = f": {error.evalue}" if error is not None and ended.sent is False else "."
        return f"This cell did not run{why}{told}"
    by_gateway = error is not None and error.ename in _OF_THE_GATEWAY and not error.traceback
    if error is not None and by_gateway and not (error_shown and ended.cause == _GATEWAY_LEFT):
        return f"{error.ename}: {error.evalue}"
    if ended.status == "timeout" and not isinstance(ended.timeout, UnsetType):
        # The kernel answers the interrupt with an error of its own, which does not mention the deadline.
        return f"The cell ran longer than {ended.timeout:.15g} s; its output until then is above."
    if error_shown:
        return ""
    if error is not None:
        return f"{error.ename}: {error.evalue}"
    return f"This cell was ended early: {ended.status}{why}."


def _describe_gap(cause: str | UnsetType | None) -> str:
    """Say that the record lacks cells before this one; empty if it lacks none."""
    if cause != RECORD_SET_BACK:
        return ""
    return (
        "The record lacks the last cells before this one, and their variables are gone: its database went"
        " back to an older state."
    )


def _describe_kills(kills: int | UnsetType) -> str:
    """Say that processes beside the kernel were killed; empty if none were."""
    if isinstance(kills, UnsetType) or not kills:
        return ""
    processes = "A process" if kills == 1 else f"{kills} processes"
    return (
        f"{processes} that ran beside the kernel {'was' if kills == 1 else 'were'} killed: the session had "
        "reached its limit of memory."
    )


def note_output(note: str) -> dict[str, Any]:
    """Return a remark by the gateway among a cell's outputs; metadata tells it from the cell's own."""
    data = {"text/plain": f"[cellgate: {note}]"}
    return {"output_type": "display_data", "data": data, "metadata": {"cellgate": {"note": True}}}
