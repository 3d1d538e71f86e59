"""The report of a replay as a single HTML page: no script, no external resources, all text escaped.

Pure. Everything except our own text may come from user code, so none of it is inserted as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from cellgate.pages.html_frame import document
from cellgate.replay.tally import Report, compared, why_none
from cellgate.wire.answers import CellReport, EnvironmentReport, RestoredFile

_STYLE = """
:root { --ink: #1d2430; --soft: #5c6675; --line: #dde2e9; --paper: #fff; --ground: #f5f6f8;
  --good: #14773f; --near: #8a5a00; --open: #6a3fb5; --bad: #b3261e; --add: #e4f5ea; --del: #fdeceb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b4; --line: #343c48;
  --paper: #1b2028; --ground: #12161c; --good: #5fcf8d; --near: #e5b454; --open: #c3a6ff; --bad: #ff8a80;
  --add: #16351f; --del: #431d1b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); }
.sum { font-size: 1.15rem; font-weight: 600; }
.equal { color: var(--good); } .normalised { color: var(--near); } .different { color: var(--bad); }
.unjudged { color: var(--open); } .skipped { color: var(--soft); }
table { border-collapse: collapse; margin: .5rem 0; }
td, th { text-align: left; padding: .15rem 1rem .15rem 0; }
th { font-weight: 500; color: var(--soft); vertical-align: top; }
.map { display: flex; flex-wrap: wrap; gap: 4px; margin: 1rem 0; padding: 0; list-style: none; }
.map a { display: block; min-width: 2rem; padding: .1rem .3rem; text-align: center; text-decoration: none;
  color: var(--paper); border-radius: 4px; font-size: .85rem; }
.map .equal a { background: var(--good); } .map .normalised a { background: var(--near); }
.map .unjudged a { background: var(--open); }
.map .different a { background: var(--bad); } .map .skipped a { background: var(--soft); }
article { background: var(--paper); border: 1px solid var(--line); border-left-width: 5px;
  border-radius: 6px;
  padding: .7rem 1rem; margin: .7rem 0; }
article.equal { border-left-color: var(--good); } article.normalised { border-left-color: var(--near); }
article.unjudged { border-left-color: var(--open); }
article.different { border-left-color: var(--bad); } article.skipped { border-left-color: var(--soft); }
article > * { color: var(--ink); } article h3 { font-size: 1rem; margin: 0; }
article .word { font-weight: 600; }
article.equal .word { color: var(--good); } article.normalised .word { color: var(--near); }
article.unjudged .word { color: var(--open); }
article.different .word { color: var(--bad); } article.skipped .word { color: var(--soft); }
pre { margin: .5rem 0; padding: .6rem .8rem; overflow-x: auto; background: var(--ground); border-radius: 4px;
  font: 13px/1.45 ui-monospace, monospace; max-height: 32rem; }
pre.source { max-height: 14rem; }
pre .a { background: var(--add); display: block; } pre .d { background: var(--del); display: block; }
pre .h { color: var(--soft); display: block; } pre .c { display: block; }
img { max-width: 100%; border: 1px solid var(--line); }
"""

_WORDS = {
    "equal": "equal",
    "normalised": "equal but for what changes from run to run",
    "unjudged": "not to be judged",
    "different": "different",
    "skipped": "not compared",
}
_HEADLINES = {
    "equal": "The notebook gives what it gave.",
    "normalised": "The notebook gives what it gave, but for what changes from run to run.",
    "unjudged": "Nothing differs for sure, but of some cells it can't be judged.",
    "different": "The notebook does not give what it gave.",
}
_ENVIRONMENTS = {
    "same": "the same Python and packages",
    "different": "other versions than recorded",
    "unknown": "not known: the record holds no package lock",
}
_FACTS = (
    ("session", "Session"),
    ("file", "File"),
    ("kernel", "Kernel"),
    ("isolation", "Isolation of the replay"),
    ("head", "Head of the record's chain"),
    ("replayed_at", "Replayed at"),
    ("gateway_version", "Gateway"),
    ("rtol", "Relative tolerance of numbers"),
)


def page(report: Report) -> str:
    """Return a report's whole page."""
    name = str(report.session or getattr(report, "file", None) or "notebook")
    body = (
        *_head(report, name),
        *_environment(report.environment),
        *_files(report.files),
        "<h2>Cells</h2>",
        *(part for cell in report.cells for part in _cell(cell)),
    )
    return document(f"Replay of {name}", _STYLE, f"<body><main>{''.join(body)}</main></body>")


def _head(report: Report, name: str) -> Iterator[str]:
    verdict = report.verdict if compared(report) else "unjudged"
    headline = _HEADLINES[verdict] if compared(report) else why_none(report)
    yield f'<h1>Replay of {escape(name)}</h1><p class="sum {verdict}">{escape(headline)}</p>'
    counts = f"{report.same} cells the same"
    if report.normalised:
        counts += f" ({report.normalised} of them after normalising)"
    counts += f", {report.different} different"
    if report.unjudged:
        counts += f", {report.unjudged} not to be judged"
    if report.skipped:
        counts += f", {report.skipped} not compared"
    yield f'<p>{counts}.</p><ul class="map">'
    for cell in report.cells:
        number = cell.cell
        verdict = cell.verdict
        title = f"cell {number}: {_WORDS[verdict]}"
        yield f'<li class="{verdict}"><a href="#cell-{number}" title="{title}">{number}</a></li>'
    yield "</ul><table>"
    for key, label in _FACTS:
        if known := getattr(report, key, None):
            yield f"<tr><th>{label}</th><td>{escape(str(known))}</td></tr>"
    said = f"{report.hash_seed.recorded or 'not recorded'}; in the replay {report.hash_seed.now}"
    yield f"<tr><th>PYTHONHASHSEED</th><td>{escape(said)}</td></tr>"
    yield "</table>"


def _environment(environment: EnvironmentReport) -> Iterator[str]:
    agreement = environment.agreement
    yield f"<h2>Environment</h2><p>{_ENVIRONMENTS.get(agreement, escape(agreement))}</p>"
    if environment.changes:
        yield "<table><tr><th></th><th>recorded</th><th>now</th></tr>"
        for change in environment.changes:
            values = (change.name, change.recorded or "absent", change.now or "absent")
            yield "<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in values) + "</tr>"
        yield "</table>"


def _files(files: Sequence[RestoredFile]) -> Iterator[str]:
    if files:
        yield "<h2>Input files</h2><table>"
        for file in files:
            said = "restored" if file.restored else f"not restored: {file.reason}"
            yield f"<tr><th>{escape(file.path)}</th><td>{escape(said)}</td></tr>"
        yield "</table>"


def _cell(cell: CellReport) -> Iterator[str]:
    verdict = cell.verdict
    yield f'<article class="{verdict}" id="cell-{cell.cell}">'
    yield f'<h3>Cell {cell.cell} · <span class="word">{_WORDS[verdict]}</span></h3>'
    if cell.inherited:
        yield f'<p class="soft">Inherited from session {escape(cell.inherited)}; not counted above.</p>'
    yield f'<pre class="source">{escape(cell.source)}</pre>'
    if cell.reason:
        yield f'<p class="soft">{escape(cell.reason)}</p>'
    if cell.normalised:
        yield f'<p class="soft">Left out of account: {escape(", ".join(cell.normalised))}.</p>'
    for difference in cell.differences or ():
        yield f"<p><strong>{escape(difference.part)}</strong>: {escape(difference.note)}</p>"
        if difference.diff:
            yield f"<pre>{''.join(map(_diff_line, difference.diff.splitlines()))}</pre>"
        if difference.picture:
            alt = "recorded, now, and the pixels that differ in red"
            yield f'<p><img src="{escape(difference.picture)}" alt="{alt}"></p>'
            yield '<p class="soft">Left: recorded. Middle: now. Right, where sizes agree: what differs.</p>'
    yield "</article>"


def _diff_line(line: str) -> str:
    kind = {"+": "a", "-": "d", "@": "h"}.get(line[:1], "c")
    if line.startswith(("+++", "---")):
        kind = "h"
    return f'<span class="{kind}">{escape(line) or " "}</span>'
