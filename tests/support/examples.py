"""How many examples hypothesis tries: as many as a test asks for, or a share of them for a quick look.

CELLGATE_EXAMPLES is that share: ``make test`` and ``make test-all`` set a small one, ``make test-nightly``
does not, and 10 makes a long night of it. Tests that try each of many cases in turn, such as a change of
each byte, try the same share of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")

SHARE = float(os.environ.get("CELLGATE_EXAMPLES", "1"))
FEWEST = 5


def examples(count: int = 100) -> settings:
    """The settings of a test: no example has a deadline, for machines have other things to do."""
    return settings(deadline=None, max_examples=max(FEWEST, round(count * SHARE)))


def share(cases: Sequence[T]) -> Sequence[T]:
    """All of many cases that are alike, or some of them for a quick look, in their order."""
    if SHARE >= 1:
        return cases
    count = max(FEWEST, round(len(cases) * SHARE))
    chosen = sorted(random.sample(range(len(cases)), min(count, len(cases))))
    return [cases[place] for place in chosen]
