"""Rules for differences between two runs of the same code that mean nothing, or that are undecidable.

Pure. The rules in `VARYING` replace what is known to vary from run to run by a mark: the address in an
object's repr, the clock of the run. The rules in `DOUBTFUL` do so for what may vary but may just as well be a
result: a duration, a UUID. Texts that are the same only after the latter count neither as the same nor as
different. ``compare`` decides what is compared; each rule looks at only one piece of text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from cellgate.replay.moments import Window
from cellgate.replay.numbers import largest_difference
from cellgate.replay.sets import order_sets

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)

Applies = Callable[[re.Match[str], Window | None], bool]


@dataclass(frozen=True, slots=True)
class Context:
    """What is known about two runs besides their texts.

    `markup`: the text is HTML or SVG. `drawn`: it is what a library draws a chart or a widget from.
    """

    recorded: Window | None = None
    replayed: Window | None = None
    rtol: float = 0.0
    markup: bool = False
    drawn: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why two texts are not identical: because of certain `rules`, and because of `doubts`."""

    rules: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """Replaces matches of `pattern` by `mark`, if `applies` (when given) accepts the match.

    A group named ``kept`` is preserved, where it matched. `of_markup`: only in HTML and SVG. `of_drawn`: only
    in what charts and widgets are drawn from.
    """

    name: str
    pattern: re.Pattern[str]
    mark: str
    applies: Applies | None = None
    of_markup: bool = False
    of_drawn: bool = False

    def apply(self, text: str, window: Window | None, sign: str) -> tuple[str, list[str]]:
        """`text` with each mark between two `sign` characters, and what the marks replaced."""
        found: list[str] = []
        names = self.pattern.groupindex

        def replace(match: re.Match[str]) -> str:
            if self.applies is not None and not self.applies(match, window):
                return match[0]
            found.append(match[0])
            # The group is in one alternative of some patterns only, and None where another one matched.
            kept = (match["kept"] or "") if "kept" in names else ""
            return f"{kept}{sign}{self.mark}{sign}"

        return self.pattern.sub(replace, text), found


# ---- times ------------------------------------------------------------------------------------------------

_ISO = re.compile(
    r"(?<![\d.-])(\d{4})([-/]?)(\d{2})\2(\d{2})[T _-](\d{2})(:?)(\d{2})(?:\6(\d{2})(?:[.,](\d{1,9}))?)?"
    r"(?P<zone> ?(?:Z\b|UTC\b|[+-]\d{2}:?\d{2}\b))?(?![\d:])"
)
_CTIME = re.compile(
    r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +"
    r"(?:(\w{3}) +(\d{1,2}) (\d{2}:\d{2}:\d{2}) (\d{4})"
    r"|(\d{1,2}) (\w{3}) (\d{4}) (\d{2}:\d{2}:\d{2})(?: (?:GMT|UTC|[+]0000)\b)?)"
)
_EPOCH = re.compile(r"(?<![\w.])(\d{10})(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?(?![\w.])")
_TIME_OF_DAY = re.compile(r"(?<![\d:.-])([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,]\d{1,9})?(?![\d:-])")
_DATE = re.compile(r"(?<![\d-])(\d{4})-(\d{2})-(\d{2})(?![\d-]|[T ]\d{2}:)")


def _iso(match: re.Match[str]) -> tuple[datetime, timedelta] | None:
    year, month, day, hour, minute, second = (int(match[n] or 0) for n in (1, 3, 4, 5, 7, 8))
    zone = (match["zone"] or "").strip()
    try:
        tzinfo = None
        if zone[:1] in {"+", "-"}:
            tzinfo = datetime.strptime(zone.replace(":", ""), "%z").tzinfo
        elif zone:
            tzinfo = UTC
        told = datetime(year, month, day, hour, minute, second, tzinfo=tzinfo)
    except ValueError:
        return None
    if not match[8]:
        return told, _MINUTE
    fraction = match[9] or ""
    return told + _SECOND * float(f"0.{fraction or 0}"), _SECOND / 10 ** min(6, len(fraction))


def _of_run(match: re.Match[str], window: Window | None) -> bool:
    told = _iso(match)
    return told is not None and window is not None and window.holds(*told)


def _ctime(match: re.Match[str]) -> datetime | None:
    first = match[1] is not None
    month, day, clock, year = match.group(1, 2, 3, 4) if first else match.group(6, 5, 8, 7)
    if month not in _MONTHS:
        return None
    try:
        return datetime.fromisoformat(f"{year}-{_MONTHS.index(month) + 1:02}-{int(day):02}T{clock}")
    except ValueError:
        return None


def _ctime_of_run(match: re.Match[str], window: Window | None) -> bool:
    told = _ctime(match)
    return told is not None and window is not None and window.holds(told, _SECOND)


def _epoch_of_run(match: re.Match[str], window: Window | None) -> bool:
    return window is not None and window.holds(datetime.fromtimestamp(int(match[1]), UTC), _SECOND)


def _perhaps(read: Callable[[re.Match[str]], object], known: Applies) -> Applies:
    """Return whether a time may be one of the run: any may, if the run's time is unknown."""
    return lambda match, window: known(match, window) if window is not None else read(match) is not None


def _time_of_run(match: re.Match[str], window: Window | None) -> bool:
    told = time(int(match[1]), int(match[2]), int(match[3]))
    return window is not None and window.holds_time(told, _SECOND)


def _date_of_run(match: re.Match[str], window: Window | None) -> bool:
    try:
        told = date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return False
    return window is not None and window.holds_date(told)


# ---- IPython's and tqdm's own lines -----------------------------------------------------------------------

_SPAN = r"[\d.]++(?:e[+-]?\d++)? ?(?:ns|[µμu]s|ms|min|s|h|d)(?>(?: [\d.]++ ?(?:min|s|h))*)"
_TIMING = re.compile(
    rf"^CPU times: user {_SPAN}, sys: {_SPAN}, total: {_SPAN} *\n"
    rf"Wall time: {_SPAN} *(?:\nCompiler : {_SPAN} *)?(?:\nParser   : {_SPAN} *)?$"
    r"|^(?:The slowest run took [\d.]+ times longer than the fastest\. [^\n]{0,200}\n)?"
    rf"{_SPAN} ± {_SPAN} per loop \(mean ± std\. dev\. of \d+ runs?, [\d,]+ loops? each\)$",
    re.MULTILINE,
)
_CLOCK = re.compile(
    r"(?:\d+:)?\d+:\d\d(?:<(?:(?:\d+:)?\d+:\d\d|\?))?, +(?:[\d.]++|\?)[kMGTPE]?"
    r"[^\s,\]/]{0,20}/[^\s,\]/]{1,20}(?P<after>(?:, [^\]]*)?\])"
)


@dataclass(frozen=True, slots=True)
class _Progress:
    """tqdm's lines: only a bar's last drawing counts, without its clock and its speed."""

    name: str = "progress bars"
    of_markup: bool = False
    of_drawn: bool = False

    def apply(self, text: str, window: Window | None, sign: str) -> tuple[str, list[str]]:
        """Replace progress bars; see `Rule.apply`."""
        if " [" not in text or "/" not in text:
            return text, []
        found: list[str] = []
        return "\n".join(_drawn(line, sign, found) for line in text.split("\n")), found


def _drawn(line: str, sign: str, found: list[str]) -> str:
    kept: list[str] = []
    bar_before = False
    for piece in line.split("\r"):
        bar = _bar(piece, sign)
        if bar is None:
            if piece.strip() or not bar_before:
                kept.append(piece)
                bar_before = False
            continue
        found.append(piece)
        if bar_before or kept == [""]:
            kept.pop()
        kept.append(bar)
        bar_before = True
    return "\r".join(kept)


def _bar(piece: str, sign: str) -> str | None:
    """Return a drawing of a bar without its clock; None if it is not a bar."""
    before, opened, clock = piece.rstrip().rpartition(" [")
    known = _CLOCK.fullmatch(clock)
    if not opened or known is None:
        return None
    return f"{before} [{sign}progress{sign}{known['after']}"


@dataclass(frozen=True, slots=True)
class _Sets:
    """Puts the members of sets into a fixed order; nothing is removed."""

    name: str = "order of sets"
    of_markup: bool = False
    of_drawn: bool = False

    def apply(self, text: str, window: Window | None, sign: str) -> tuple[str, list[str]]:
        """Put sets in order; see `Rule.apply`."""
        ordered = order_sets(text)
        return ordered, [] if ordered == text else [text]


_KERNEL = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_BRANCH_FOLDER = re.compile(
    rf"(?<![\w.-])/(?:branches|sessions|sessions/{_KERNEL}\.branches)/{_KERNEL}(?![\w.-])"
)
# A kernel in a container that it shares has its own folder in /tmp.
_OWN_TMP = r"(?:[0-9a-f]{8}-[0-9a-f]{4}/)?"
_HOME = re.compile(r"(?<![\w.-])/tmp/[0-9a-f]{8}-[0-9a-f]{4}/home(?![\w-])")


@dataclass(frozen=True, slots=True)
class _BranchFolders:
    """The folder of a branch, or of a session in a shared container, by the name that the replay's own folder
    has: it replays in no branch. The home of such a session likewise.
    """

    name: str = "folders of branches"
    of_markup: bool = False
    of_drawn: bool = False

    def apply(self, text: str, window: Window | None, sign: str) -> tuple[str, list[str]]:
        """Replace folders of branches; see `Rule.apply`."""
        found = [*_BRANCH_FOLDER.findall(text), *_HOME.findall(text)]
        return _HOME.sub("/tmp/home", _BRANCH_FOLDER.sub("/workspace", text)), found  # noqa: S108


_HEX = "[0-9a-f]{32}"

AnyRule = Rule | _Progress | _Sets | _BranchFolders

# ---- the rules --------------------------------------------------------------------------------------------

VARYING: tuple[AnyRule, ...] = (
    Rule(
        "memory addresses",
        re.compile(r"(?P<kept>(?:<|&lt;)[^\n]{1,300}? at )0x[0-9a-fA-F]{8,16}(?=>|&gt;|, file |, line )"),
        "address",
    ),
    # pandas' Styler: T_ and five hex digits; matplotlib's SVG: a letter and ten.
    Rule(
        "identifiers of markup",
        re.compile(r"\bT_[0-9a-f]{5}(?=[_\"' ])|(?<=[\"#])[a-z][0-9a-f]{10}(?=[\")])"),
        "id",
        of_markup=True,
    ),
    # What ipywidgets, IPython and Altair name as theirs, wherever it is printed.
    Rule(
        "identifiers of widgets and displays",
        re.compile(
            rf"(?P<kept>\bIPY_MODEL_|\b(?:model_id|comm_id|display_id)[\"']?(?: ?: ?|=)[\"']?|\baltair-viz-)"
            rf"{_HEX}(?![0-9a-f])"
        ),
        "id",
    ),
    # plotly gives its elements UUIDs; Altair counts its views and parameters, also those of cells that a
    # replay leaves out.
    Rule(
        "identifiers of charts",
        re.compile(rf"(?P<kept>\bid=[\"']|\(\s{{0,80}}[\"']|[\"']uid[\"']: ?[\"']){_KERNEL}(?=[\"'])"),
        "id",
        of_drawn=True,
    ),
    Rule(
        "identifiers of charts",
        re.compile(r"(?P<kept>\"(?:name|param|views)\": ?(?:\[\s{0,80})?\")(?:view|param)_\d{1,9}(?=\")"),
        "id",
        of_drawn=True,
    ),
    Rule(
        "temporary names",
        re.compile(
            rf"/tmp/{_OWN_TMP}ipykernel_\d+/\d+\.py"  # noqa: S108
            rf"|(?:/var|/usr)?/tmp/{_OWN_TMP}tmp[a-z0-9_]{{8}}(?![a-z0-9_])"
        ),
        "temporary",
    ),
    _BranchFolders(),
    Rule(
        "execution counts",
        re.compile(r"\b(?P<kept>Cell |Input |File )In ?\[\d+\]|<ipython-input-\d+-[0-9a-f]+>"),
        "cell",
    ),
    Rule("timestamps", _ISO, "time", _of_run),
    Rule("timestamps", _CTIME, "time", _ctime_of_run),
    Rule("timestamps", _EPOCH, "time", _epoch_of_run),
    Rule("execution times", _TIMING, "timing"),
    _Progress(),
    _Sets(),
)
"""What is known to vary, wherever it appears."""

# Of a longer number the rest is told apart: each of its commas may be where a number begins.
_AMOUNT = r"\d++(?:,\d{3}){0,6}(?:\.\d++)?(?:e[+-]?\d++)?"
DOUBTFUL: tuple[AnyRule, ...] = (
    Rule("timestamps", _ISO, "time", _perhaps(_iso, _of_run)),
    Rule("timestamps", _CTIME, "time", _perhaps(_ctime, _ctime_of_run)),
    Rule("times of day", _TIME_OF_DAY, "time", _time_of_run),
    Rule("dates", _DATE, "date", _date_of_run),
    Rule(
        "durations",
        re.compile(
            rf"(?i)\b(?P<kept>(?:wall|cpu|user|real|sys|total|elapsed|took)(?: time)?:? )"
            rf"(?:{_AMOUNT} ?(?:ns|[µμu]s|m(?:s|in(?:utes?)?)|s(?:ec(?:s|onds?)?)?|h)\b ?)+"
        ),
        "duration",
    ),
    Rule(
        "durations",
        re.compile(rf"(?<![\w.])(?:{_AMOUNT} ?(?:ns|µs|μs|us|ms)|\d+\.\d+ ?(?:s|secs?|seconds?))\b"),
        "duration",
    ),
    Rule(
        "identifiers",
        re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b"),
        "id",
    ),
    Rule("memory addresses", re.compile(r"\b0x[57][0-9a-f]{11}\b"), "address"),
)
"""What may vary, but may also be a result."""


def explain(recorded: str, replayed: str, context: Context) -> Explanation | None:
    """Return the rules that make both texts equal; None if they differ."""
    if recorded == replayed:
        return Explanation()
    sign = _unused(recorded, replayed)
    if sign is None:
        return None
    sure: list[str] = []
    known = _reduce(VARYING, (recorded, replayed), context, sign, sure)
    if known[0] == known[1] or _within(*known, context.rtol, sure):
        return Explanation(tuple(sure))
    doubts: list[str] = []
    perhaps = _reduce(DOUBTFUL, known, context, sign, doubts)
    if perhaps[0] == perhaps[1] or _within(*perhaps, context.rtol, sure):
        return Explanation(tuple(sure), tuple(doubts))
    return None


def shown(recorded: str, replayed: str, context: Context) -> tuple[str, str]:
    """Return both texts with known variations as ``<mark>``, which do not clutter a diff."""
    sign = _unused(recorded, replayed)
    if sign is None:
        return recorded, replayed
    first, second = _reduce(VARYING, (recorded, replayed), context, sign, [])
    mark = re.compile(f"{sign}([a-z]+){sign}")
    return mark.sub(r"<\1>", first), mark.sub(r"<\1>", second)


def _unused(recorded: str, replayed: str) -> str | None:
    """Return a private-use character that is in neither text, so that no text has a mark of its own."""
    candidates = map(chr, range(0xE000, 0xF8FF))
    return next((sign for sign in candidates if sign not in recorded and sign not in replayed), None)


def _reduce(
    rules: tuple[AnyRule, ...], texts: tuple[str, str], context: Context, sign: str, used: list[str]
) -> tuple[str, str]:
    recorded, replayed = texts
    for rule in rules:
        if recorded == replayed:
            break
        if (rule.of_markup and not context.markup) or (rule.of_drawn and not context.drawn):
            continue
        recorded, before = rule.apply(recorded, context.recorded, sign)
        replayed, after = rule.apply(replayed, context.replayed, sign)
        if before != after and rule.name not in used:
            used.append(rule.name)
    return recorded, replayed


def _within(recorded: str, replayed: str, rtol: float, used: list[str]) -> bool:
    if not rtol:
        return False
    largest = largest_difference(recorded, replayed, rtol)
    if largest is None:
        return False
    used.append(f"numbers within {rtol:g} (largest difference {largest:.2g})")
    return True
