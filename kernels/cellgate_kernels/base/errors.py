"""The base of every error that Cellgate raises on purpose, and the kernels' own, each with a stable `reason`.

The mapping to HTTP status codes is in ``cellgate.errors``, which extends this tree.
A message is public: it says what happened and what to do, and contains no secret and no stack.

    CellgateError
    ├── InvalidInput            bad_request          the caller's input, named in the message
    │   └── KernelspecNotFound  bad_request
    ├── BackendUnavailable      kernel_start_failed  the isolation backend can't run here
    │   └── ImageMissing        image_missing        the engine does not have the kernel image
    ├── KernelStartFailed       kernel_start_failed  one kernel did not become ready
    ├── KernelDied              kernel_died          the kernel ended while it was needed
    ├── KernelBusy              busy                 the kernel runs a cell, so it can't be branched now
    ├── CannotBranch            cannot_branch        what a kernel has can't be forked
    ├── PortUnanswered          port_unanswered      nothing answers on a port inside the sandbox
    ├── PoolExhausted           pool_exhausted       all capacity is in use; try later
    │   └── DeadlinePassed      pool_exhausted       the caller would not wait any longer
    └── GatewayFault            internal_error       a bug in the gateway
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Final

from cellgate_kernels.base.branching import Obstacle, way_round


class CellgateError(Exception):
    """Base of the tree. `reason` is a stable word: a metric label and the wire's `reason` field."""

    reason: ClassVar[str] = "internal_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidInput(CellgateError):
    """The caller's input can't be used; nothing was changed."""

    reason = "bad_request"


class KernelspecNotFound(InvalidInput):
    """No kernelspec has this name."""


class BackendUnavailable(CellgateError):
    """The isolation backend can't run on this machine; the message says what to install."""

    reason = "kernel_start_failed"


class ImageMissing(BackendUnavailable):
    """The container engine does not have the kernel image; the message says how to make it."""

    reason = "image_missing"


class KernelStartFailed(CellgateError):
    """A kernel was launched and did not become ready; the message holds the end of its own log."""

    reason = "kernel_start_failed"


class KernelDied(CellgateError):
    """The kernel ended while it was needed."""

    reason = "kernel_died"


class KernelBusy(CellgateError):
    """The kernel runs a cell, or is being branched already; nothing was changed."""

    reason = "busy"


class CannotBranch(CellgateError):
    """The kernel can't be branched because of `obstacles`, one at least. Nothing was changed."""

    reason = "cannot_branch"

    def __init__(self, obstacles: tuple[Obstacle, ...]) -> None:
        super().__init__(f"The kernel can't be branched as it is. {way_round(obstacles)}")
        self.obstacles = obstacles


class PortUnanswered(CellgateError):
    """No program answers on a port of a kernel's sandbox."""

    reason = "port_unanswered"


class PoolExhausted(CellgateError):
    """All capacity is in use and none became free in time. `retry_after` is in seconds."""

    reason = "pool_exhausted"

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlinePassed(PoolExhausted):
    """The caller's own deadline passed while it waited in line for a kernel, after `patience` seconds."""

    def __init__(self, patience: float) -> None:
        super().__init__(
            "The cell's timeout passed while it waited in line for a kernel, and it did not run."
            " Try again later, or with a longer timeout.",
            retry_after=max(1.0, patience),
        )


class GatewayFault(CellgateError):
    """An internal error of the gateway, named in its log. The caller's request was valid."""

    def __init__(self, message: str = "The gateway failed at this; its log says why") -> None:
        super().__init__(message)


_NUMBER: Final = re.compile(r"\[Errno -?\d+\] ?", re.IGNORECASE)


def in_words(error: BaseException) -> str:
    """Return an error in words, with its file: for the system's errors, and others caught beside them.

    ``tests/house.py`` checks that none of these is worded otherwise.
    """
    named = error.filename if isinstance(error, OSError) else None
    words = in_brief(error)
    return f"{words} ({os.fsdecode(named)})" if isinstance(named, (str, bytes, os.PathLike)) else words


def in_brief(error: BaseException) -> str:
    """Return an error in words, without the system's number and without its file: the sentence names that."""
    # asyncio and requests put the system's own text into theirs.
    words = _NUMBER.sub("", error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return words or type(error).__name__


LONGEST_MISTYPED: Final = 64
"""Most letters of a word that can be misspelt: comparing two words takes the square of their length."""
_ALIKE: Final = 0.6
"""The least similarity of a known word to a mistyped one (difflib's ratio)."""


def nearest(word: str, known: Iterable[str], *, alike: float = _ALIKE) -> str | None:
    """Return the known word that was probably meant, as a suggestion; None if none is near."""
    if len(word) > LONGEST_MISTYPED:
        return None
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=alike)
    return near[0] if near else None


_MOST_NAMES: Final = 1000


def near_file(path: Path) -> str:
    """Return a suggestion to append to an error about a missing file; nothing if no file is near."""
    try:
        names = [] if path.exists() else os.listdir(path.parent)  # noqa: PTH208 - names are compared
    except (OSError, ValueError):
        return ""
    near = nearest(path.name, names[:_MOST_NAMES])
    return f"; did you mean {shlex.quote(str(path.with_name(near)))}?" if near else ""
