"""How long a fuzz target runs: a few examples in an ordinary run, minutes with ``--fuzz-seconds N``.

A target is a test that takes the fixture `fuzz` and hands it a function and the strategies of its arguments::

    def test_frames(fuzz: Fuzz) -> None:
        fuzz.run(check_frames, st.binary(), st.integers(0, 9), examples=50)

`check_frames` must raise for what must not happen. Without the option it is called with `examples` examples,
or a third of them where CELLGATE_EXAMPLES asks for few.
With it, hypothesis begins again with new random examples until the seconds are over, for each target, and
the test's timeout grows by them. A failing example is made small and printed by hypothesis, as always. The
function is synchronous; one that needs a loop calls ``asyncio.run``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from tests.support.examples import SHARE

EXAMPLES_OF_A_ROUND = 500
LEAST_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Fuzz:
    """The fixture `fuzz`: runs targets for at least `seconds`, or for a few examples when that is 0."""

    seconds: float

    def run(self, target: Callable[..., None], *strategies: SearchStrategy[Any], examples: int = 50) -> None:
        """Call `target` with what the strategies draw, until the budget is used up."""
        chosen = settings(
            deadline=None,
            database=None,
            max_examples=EXAMPLES_OF_A_ROUND if self.seconds else round(examples * max(SHARE, LEAST_SHARE)),
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.data_too_large,
                HealthCheck.large_base_example,
            ],
        )
        end, failed = time.monotonic() + self.seconds, False

        @wraps(target)
        def limited(*arguments: Any, **named: Any) -> None:
            nonlocal failed
            # The rest of a round is passed over when the time is up, unless a failure is being made small.
            if self.seconds and time.monotonic() >= end and not failed:
                return
            try:
                target(*arguments, **named)
            except BaseException:
                failed = True
                raise

        while True:
            # A `given` of its own for each round: one that was run before may begin with the same examples.
            chosen(given(*strategies)(limited))()
            if time.monotonic() >= end:
                return
