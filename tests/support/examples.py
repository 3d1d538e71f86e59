"""How many examples hypothesis tries: as many as a test asks for, or a share of them for a quick look.

CELLGATE_EXAMPLES is that share: ``make test-fast`` sets a small one, and 10 makes a long night of it.
"""

from __future__ import annotations

import os

from hypothesis import settings

SHARE = float(os.environ.get("CELLGATE_EXAMPLES", "1"))
FEWEST = 5


def examples(count: int = 100) -> settings:
    """The settings of a test: no example has a deadline, for machines have other things to do."""
    return settings(deadline=None, max_examples=max(FEWEST, round(count * SHARE)))
