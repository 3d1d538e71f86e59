"""The file of quotas: read at the start, and again when it has changed (``watched_file``).

A file that can't be used is an error at the start. ``quotas`` interprets the content.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cellgate.quotas.quotas import Policy, parse_quotas
from cellgate_kernels.base.regular import read_given
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.watched_file import FileForm

LARGEST_FILE = 16 * MIB
"""Ten thousand principals with ten keys each take a sixth of it."""


def read_quotas(path: Path) -> Policy:
    """Return the policy in the file. Blocking. Raises InvalidInput with the file and the fault."""
    return parse_quotas(read_given(path, LARGEST_FILE, "a file of quotas"), str(path))


QUOTAS_FILE: Final = FileForm("quotas", read_quotas)


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """The file of quotas and its policy at the start; without a file nobody has quotas."""

    file: Path | None = None
    policy: Policy = field(default_factory=Policy)
