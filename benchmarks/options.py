"""The command line's options for all benchmarks, and their progress on stderr."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """`backend` of Cellgate's kernels; `peer_python` runs jupyter_kernel_gateway; `quick` is a trial run.

    `former`: another checkout of Cellgate, to compare with.
    """

    backend: str = "process"
    peer_python: Path = Path(sys.executable)
    quick: bool = False
    former: Path | None = None

    def count(self, full: int, trial: int) -> int:
        """How often to measure: `full`, or `trial` in a quick run, whose figures mean nothing."""
        return trial if self.quick else full


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)
