"""What differs between two runs of the same code although nothing does: addresses, times, random names.

Pure. Each rule replaces what it knows by a mark such as ``<address>`` and has a name for the report. Times of
the clock count only when they are near the moment at which the cell ran, so that dates in data are still
compared. ``compare`` decides what is compared; no rule looks at more than one piece of text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

NEAR = timedelta(hours=26)
"""How far a clock time may be from the run: every time zone, and a cell that ran for hours."""
NEAR_OF_DAY = timedelta(minutes=10)
"""The same for a time without a date, taken as UTC: such times are common in data."""

_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"
_UNIT = r"(?:ns|µs|μs|us|ms|s|sec|secs|second|seconds|min|minutes|h)"
_SMALL_UNIT = r"(?:ns|µs|μs|us|ms)"
_ISO = re.compile(
    r"\b(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?)(?: ?Z\b| ?[+-]\d{2}:?\d{2}\b| UTC\b)?"
)
_CTIME = re.compile(
    r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +"
    r"(?:(\w{3}) +(\d{1,2}) (\d{2}:\d{2}:\d{2}) (\d{4})"
    r"|(\d{1,2}) (\w{3}) (\d{4}) (\d{2}:\d{2}:\d{2})(?: \S{3,5})?)"
)
_EPOCH = re.compile(r"(?<![\w.])(\d{10})(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?(?![\w.])")
_TIME_OF_DAY = re.compile(r"(?<![\d:.-])([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,]\d{1,9})?(?![\d:-])")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Replace = Callable[[re.Match[str], datetime | None], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` is replaced by `mark`, where `applies` (if any) says that this match is meant."""

    name: str
    pattern: re.Pattern[str]
    mark: str
    applies: Callable[[re.Match[str], datetime | None], bool] | None = None

    def apply(self, text: str, ran_at: datetime | None) -> str:
        """`text` with all that this rule knows replaced."""
        if self.applies is None:
            return self.pattern.sub(self.mark, text)
        applies = self.applies
        return self.pattern.sub(lambda match: self.mark if applies(match, ran_at) else match[0], text)


def _near(moment: datetime, ran_at: datetime | None) -> bool:
    return ran_at is None or abs(moment - ran_at) <= NEAR


def _iso(match: re.Match[str], ran_at: datetime | None) -> bool:
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{match[2][:8]}")
    except ValueError:
        return False
    return _near(moment.replace(tzinfo=UTC), ran_at)


def _ctime(match: re.Match[str], ran_at: datetime | None) -> bool:
    first = match[1] is not None
    month, day, time, year = match.group(1, 2, 3, 4) if first else match.group(6, 5, 8, 7)
    if month not in _MONTHS:
        return False
    try:
        moment = datetime.fromisoformat(f"{year}-{_MONTHS.index(month) + 1:02}-{int(day):02}T{time}")
    except ValueError:
        return False
    return _near(moment.replace(tzinfo=UTC), ran_at)


def _epoch(match: re.Match[str], ran_at: datetime | None) -> bool:
    return ran_at is not None and _near(datetime.fromtimestamp(int(match[1]), UTC), ran_at)


def _time_of_day(match: re.Match[str], ran_at: datetime | None) -> bool:
    if ran_at is None:
        return False
    moment = ran_at.replace(hour=int(match[1]), minute=int(match[2]), second=int(match[3]))
    apart = abs(moment - ran_at)
    return min(apart, timedelta(days=1) - apart) <= NEAR_OF_DAY


_DURATION = rf"{_NUMBER} ?{_UNIT}\b"
RULES = (
    Rule("memory addresses", re.compile(r"\b0x[0-9a-fA-F]{6,16}\b"), "<address>"),
    Rule(
        "random identifiers",
        re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b"),
        "<id>",
    ),
    # pandas' Styler: T_ and five hex digits; matplotlib's SVG: a letter and ten.
    Rule(
        "random identifiers",
        re.compile(r"\bT_[0-9a-f]{5}(?=[_\"' ])|(?<=[\"#])[a-z][0-9a-f]{10}(?=[\")])"),
        "<id>",
    ),
    Rule("temporary names", re.compile(r"/tmp/ipykernel_\d+/\d+\.py|/tmp/tmp\w{8}\b"), "<temporary>"),  # noqa: S108
    Rule("execution counts", re.compile(r"\bIn ?\[\d+\]|<ipython-input-\d+-[0-9a-f]+>"), "<cell>"),
    Rule("timestamps", _ISO, "<time>", _iso),
    Rule("timestamps", _CTIME, "<time>", _ctime),
    Rule("timestamps", _EPOCH, "<time>", _epoch),
    Rule(
        "execution times",
        re.compile(rf"\b(?:{_DURATION} ± {_DURATION} per loop \([^)\n]*\)|CPU times: [^\n]*)"),
        "<timing>",
    ),
    Rule(
        "execution times",
        re.compile(rf"(?i)\b((?:wall|cpu|user|real|sys|total|elapsed|took)(?: time)?:? )(?:{_DURATION} ?)+"),
        r"\1<duration>",
    ),
    # Progress bars (tqdm): 00:01<00:00, 3.20it/s
    Rule(
        "execution times",
        re.compile(r"\b\d+:\d\d(?::\d\d)?<(?:\d+:\d\d(?::\d\d)?|\?), *(?:[\d.]+|\?) ?\w+/\w+"),
        "<progress>",
    ),
    Rule("execution times", re.compile(rf"(?<![\w.]){_NUMBER} ?{_SMALL_UNIT}\b"), "<duration>"),
    Rule(
        "execution times",
        re.compile(r"(?<![\w.])\d+\.\d+ ?(?:s|sec|secs|second|seconds)\b"),
        "<duration>",
    ),
    Rule("timestamps", _TIME_OF_DAY, "<time>", _time_of_day),
)


def normalise(text: str, ran_at: datetime | None = None) -> str:
    """`text` with what may differ from run to run replaced by marks.

    `ran_at`: when the cell ran, aware. Without it every full timestamp counts as one of the run's.
    """
    for rule in RULES:
        text = rule.apply(text, ran_at)
    return text


def what_differs(
    recorded: str, replayed: str, recorded_at: datetime | None, replayed_at: datetime | None
) -> tuple[str, ...] | None:
    """The names of the rules after which both texts are the same; None when no rules make them so."""
    used: list[str] = []
    for rule in RULES:
        if recorded == replayed:
            break
        recorded_next, replayed_next = rule.apply(recorded, recorded_at), rule.apply(replayed, replayed_at)
        if (recorded_next, replayed_next) != (recorded, replayed) and rule.name not in used:
            used.append(rule.name)
        recorded, replayed = recorded_next, replayed_next
    return tuple(used) if recorded == replayed else None
