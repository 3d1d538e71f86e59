"""Pages that leave the gateway: whatever user code showed, nothing in them runs, loads or sends."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest

from cellgate.jobs.convert import convert
from cellgate.pages import sanitise
from cellgate.pages.html_frame import PAGE_POLICY
from cellgate.replay.page import page
from cellgate.replay.report import NewRun, build_report
from cellgate.wire.answers import Changed, EnvironmentReport, Pair, ReplayFacts, ReplayReport, RestoredFile

pytestmark = pytest.mark.usefixtures("templates_compiled_once")

# ruff: noqa: E501, ISC004 - pieces of markup
# HOST stands for a server that must hear nothing; `moved` and `ran` for what a page may not become.
ALIVE = [
    "<script>document.title = 'ran'; fetch('HOST/fetch')</script>",
    "<img src='HOST/img' onerror=\"document.title = 'ran'\">",
    "<svg><script>document.title = 'ran'</script><image href='HOST/svg-image'/>"
    "<foreignObject><img src='HOST/foreign'></foreignObject><use href='HOST/use#a'/></svg>",
    "<svg onload=\"document.title = 'ran'\"><path fill='url(HOST/fill#a)' d='M0 0h9v9z'/></svg>",
    "<meta http-equiv=refresh content='0;url=HOST/refresh'>",
    "<meta http-equiv='Content-Security-Policy' content='img-src *'><meta charset=utf-7>",
    "<base href='HOST/base/'><img src='relative'>",
    "<form action='HOST/form' method=post id=f><input autofocus onfocus='this.form.submit()'></form>",
    "<iframe src='HOST/frame'></iframe><iframe srcdoc=\"<img src='HOST/srcdoc'>\"></iframe>",
    "<object data='HOST/object'></object><embed src='HOST/embed'><applet code='HOST/applet'></applet>",
    "<link rel=stylesheet href='HOST/css'><link rel=icon href='HOST/icon'><link rel=preconnect href='HOST'>",
    "<style>@import 'HOST/import'; body { background: url(HOST/url) }</style>",
    "<style>@font-face { font-family: x; src: url(HOST/font) } * { font-family: x }</style>",
    "<style>body { background-image: image-set('HOST/set' 1x); --x: u\\72l(HOST/escape) }</style>",
    "<style>a{}</style><style>} body { cursor: url(HOST/cursor), auto } </style></head><img src='HOST/late'>",
    "<p style='background: url(HOST/attribute); list-style: \\75rl(HOST/escaped)'>text</p>",
    "<table background='HOST/background'><tr><td>x</td></tr></table>",
    "<a href=\"javascript:document.title = 'ran'\" id=j target=_top ping='HOST/ping'>j</a>",
    "<a href=' data:text/html,<script>1</script>'>k</a><a href='da&#9;ta:text/html,l'>l</a>"
    "<a href='&#1;DATA:text/html,m'>m</a><a href='&#10;javascript:1'>n</a><a href='file:///etc/passwd'>o</a>",
    "<video src='HOST/video' autoplay></video><audio src='HOST/audio'></audio><input type=image src='HOST/i'>",
    "<picture><source srcset='HOST/srcset'><img srcset='HOST/set2'></picture><video poster='HOST/poster'></video>",
    '<math><mtext><table><mglyph><style><!--</style><img title="--><img src=HOST/mxss>">',
    '<noscript><p title="</noscript><img src=HOST/noscript>"></noscript>',
    "<template><img src='HOST/template'></template><details open ontoggle=\"document.title = 'ran'\">d</details>",
]
UNFINISHED = [
    "<!-- a comment",
    '<b title="an attribute',
    "<style> a {",
    "<script> var a",
    "<textarea>",
    "<title>",
    "<plaintext>",
    "<xmp>",
    "<noembed>",
    "<select><option>",
    "<svg><desc>",
    "</div></div></main></body></html>",
    "\x1b$B",
    "+ADw-script+AD4-document.title = 'ran'+ADw-/script+AD4-",
    "\ufeff<template>",
    "<div>" * 5000,
]
FORBIDDEN = {
    *(
        [
            "script",
            "base",
            "form",
            "iframe",
            "frame",
            "frameset",
            "object",
            "embed",
            "applet",
            "link",
            "template",
            "foreignobject",
            "image",
            "use",
        ]
    ),
    *(
        [
            "video",
            "audio",
            "source",
            "textarea",
            "select",
            "button",
            "noscript",
            "animate",
            "set",
            "title",
            "style",
            "meta",
        ]
    ),
}
WANTED = """
<style scoped>.dataframe tbody tr th { vertical-align: top } #T_0a1b2_row0_col0 { background-color: #f00 }</style>
<table border="1" class="dataframe" id="T_0a1b2"><tr><td class="x" style="color: red; width: calc(1px + 2em)">v</td>
</tr></table><a href="https://example.org/a?b=1">link</a><a href="#here">here</a><h2 id="here">Head</h2>
<img src="data:image/png;base64,iVBORw0KGgo=" width="5" alt="A picture">
<svg viewBox="0 0 9 9"><g transform="translate(1, 2)"><path d="M0 0h9" fill="url(#g)" stroke="rgb(1,2,3)"/></g></svg>
<input type="checkbox" id="fold" checked><label for="fold">Fold</label><details><summary>More</summary>all</details>
"""


def cell(source: str, output: dict[str, Any]) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [output],
        "source": source,
    }


def notebook(*markup: str, **metadata: Any) -> str:
    """A notebook with a cell for each piece of HTML, and one that comes last."""
    cells = [
        cell("show()", {"output_type": "display_data", "data": {kind: piece}, "metadata": {}})
        for piece in markup
        for kind in ("text/html", "text/markdown", "image/svg+xml", "text/latex", "text/plain")
    ]
    cells.append(cell("last", {"output_type": "stream", "name": "stdout", "text": "the last words\n"}))
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4})


class Seen(HTMLParser):
    """The elements of a page and their attributes, by where they stand."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.head: list[tuple[str, dict[str, str | None]]] = []
        self.body: list[tuple[str, dict[str, str | None]]] = []
        self.styles: list[str] = []
        self.text = ""
        self._in: list[tuple[str, dict[str, str | None]]] = self.head
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":
            self._in = self.body
        self._in.append((tag, dict(attrs)))
        self._style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if self._style:
            self.styles.append(data)
        elif self._in is self.body:
            self.text += data


def check(text: str) -> Seen:
    """What must hold of every page."""
    seen = Seen(text)
    assert text.startswith(
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-S'
    )
    metas = [known for tag, known in seen.head if tag == "meta"]
    assert metas[1] == {"http-equiv": "Content-Security-Policy", "content": PAGE_POLICY}
    assert metas[2] == {"http-equiv": "x-dns-prefetch-control", "content": "off"}
    assert {tag for tag, _ in seen.head} == {"html", "head", "meta", "title", "style"}
    assert not FORBIDDEN & {tag for tag, _ in seen.body}
    for tag, known in seen.body:
        # Formulas are written by us; all other MathML is removed.
        assert tag != "math" or known in ({"display": "inline"}, {"display": "block"})
        assert not [name for name in known if name.startswith("on") or name in {"srcdoc", "target", "ping"}]
        assert (known.get("src") or "data:image/").startswith("data:image/"), tag
        assert (known.get("href") or "#").startswith(("#", "https://", "http://", "mailto:")), tag
    ours = "".join(seen.styles).lower()
    assert "url(http" not in ours
    assert "@import" not in ours
    assert "image-set" not in ours
    assert "\x1b" not in text
    assert "\ufeff" not in text
    return seen


def exported(*markup: str) -> str:
    text = "</title><script>1</script>"
    return convert(notebook(*markup, title=text, cellgate={"session": text}), "html")


def replayed(*markup: str) -> str:
    """The page of a replay in which the same pieces came as text, in every place that can have them."""
    cells = json.loads(notebook(*markup))
    runs = [
        NewRun("ok", [{"output_type": "stream", "name": "stdout", "text": piece}], "") for piece in markup
    ]
    runs += [NewRun("died", [], "")] * (len(cells["cells"]) - len(runs))
    text = "".join(markup[:3])
    facts = ReplayFacts(
        session=text,
        head=text,
        kernel=text,
        isolation=text,
        replayed_at=text,
        gateway_version=text,
        environment=EnvironmentReport(agreement=text, changes=[Changed(name=text, recorded=text, now=None)]),
        hash_seed=Pair(recorded=text, now=text),
        files=[RestoredFile(path=text, restored=False, reason=text)],
    )
    return page(build_report(ReplayReport, facts, cells, runs))


@pytest.mark.parametrize("piece", [*ALIVE, *UNFINISHED])
def test_each_piece_of_mischief_leaves_a_whole_and_quiet_page(piece: str) -> None:
    assert "the last words" in check(exported(piece)).text
    assert "last" in check(replayed(piece)).text


def test_all_pieces_together_do_too() -> None:
    assert "the last words" in check(exported(*ALIVE, *UNFINISHED)).text
    assert "the last words" in check(exported("".join(ALIVE + UNFINISHED))).text
    check(replayed(*ALIVE, *UNFINISHED))


def test_the_widgets_of_a_notebook_are_no_way_in() -> None:
    name = "a</script><script>alert(1)"
    state = {"state": {name: {}}, "x": "</script><img src=x onerror=alert(1)>"}
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": name}}
    made = json.loads(notebook(widgets={"application/vnd.jupyter.widget-state+json": state}))
    made["cells"][0]["outputs"] = [{"output_type": "display_data", "data": view, "metadata": {}}]
    check(convert(json.dumps(made), "html"))


def test_what_only_shows_something_stays() -> None:
    seen = check(exported(WANTED))
    styles = "".join(seen.styles)
    for words in ("vertical-align: top", "#T_0a1b2_row0_col0", "background-color: #f00"):
        assert words in styles
    known = {tag: attributes for tag, attributes in seen.body if tag not in {"div", "span", "pre"}}
    assert known["td"] == {"class": "x", "style": "color: red; width: calc(1px + 2em)"}
    assert known["path"] == {"d": "M0 0h9", "fill": "url(#g)", "stroke": "rgb(1,2,3)"}
    assert known["g"] == {"transform": "translate(1, 2)"}
    assert (known["svg"]["viewbox"], known["input"]["type"], known["label"]["for"]) == (
        "0 0 9 9",
        "checkbox",
        "fold",
    )
    links = [attributes["href"] for tag, attributes in seen.body if tag == "a" and "class" not in attributes]
    assert "https://example.org/a?b=1" in links
    pictures = [attributes for tag, attributes in seen.body if tag == "img"]
    assert any(each.get("alt") == "A picture" and each.get("width") == "5" for each in pictures)


class Written(HTMLParser):
    """The attributes that are left of an author's markup, by their names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.known: dict[str, list[str | None]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.known.setdefault(name, []).append(value)


def text_cell(source: str) -> str:
    """The part of a page that an author's Markdown cell has become."""
    made = {"cell_type": "markdown", "id": "x", "metadata": {}, "source": source}
    text = convert(json.dumps({"cells": [made], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), "html")
    check(text)
    begun = text.index('data-mime-type="text/markdown"')
    return text[text.index(">", begun) + 1 : text.index("</main>")]


@pytest.mark.parametrize(
    "source",
    [
        '<div class="jp-Cell jp-CodeCell jp-Notebook-cell"><div class="jp-InputPrompt">In [1]:</div></div>',
        '<p class="cm-editor ansi-red-fg CodeMirror lm-Widget jp-OutputArea cell note math">p = 0.001</p>',
        '<p id="cell-id=4f2e">x</p>\n\n<h2 id="cell-id=4f2e">x</h2>',
        "# cell-id=4f2e",
        '<div data-mime-type="text/plain" aria-label="Cell 3" role="article">x</div>',
        '<p style="display:flex;border:1px solid;background:#eee;font-family:monospace;position:fixed">x</p>',
        '<p style="colo\\72:red; --jp-cell-padding: 9px; background-color : red">x</p>',
        "<style>div { border: 1px solid } .jp-Cell { display: none }</style><div>x</div>",
        "text <style\n>p { border: 1px solid }</style> text",
        '<input type="checkbox" checked id="fold"><label for="fold">x</label><main><section>x</section></main>',
        '<table border="1" bgcolor="#eeeeee" cellpadding="9"><tr><td>x</td></tr></table>',
        "</div></div></main><main class='jp-Notebook'><div class='jp-Cell'>x",
        '[x](#a){.jp-Cell}\n\n![x](data:image/png;base64,iVBORw0KGgo= "jp-Cell")',
        '```html\n<div class="jp-Cell">x</div>\n```',
        "```mermaid\ngraph TD; A --> B\n```",
    ],
)
def test_an_author_s_text_has_nothing_of_a_cell(source: str) -> None:
    left = Written(text_cell(source))
    assert not {"style", "input", "label", "main", "section"} & set(left.tags)
    assert not {"role", "border", "bgcolor", "cellpadding"} & set(left.known)
    assert not [name for name in left.known if name.startswith(("data-", "aria-"))]
    # What nbconvert puts around it ends with elements that have no attributes of their own.
    assert set(left.known.get("class", [])) <= {"anchor-link", "highlight", "nt", "na", "o", "s", "p"}
    assert not [name for name in left.known.get("id", []) if name and name.startswith("cell-id")]
    assert left.known.get("style", []) == []


def test_what_markdown_makes_stays() -> None:
    source = """# Rivers\n\n[there](#Rivers), **bold**, <span style="color: #c00; font-weight:bold">red</span>

| a | b |\n|:--|--:|\n| 1 | 2 |\n\n```python\nx = 1  # note\n```\n\n<details open><summary>More</summary>all</details>

$x^2$ and H<sub>2</sub>O <img src="data:image/png;base64,iVBORw0KGgo=" width="5" alt="A picture">
"""
    text = text_cell(source)
    left = Written(text)
    assert left.known["id"] == ["Rivers"]
    assert "color: #c00; font-weight:bold" in left.known["style"]
    assert "text-align:right" in left.known["style"]
    assert {"highlight", "anchor-link", "c1"} <= set(left.known["class"])
    assert {"details", "summary", "math", "sub", "img", "table", "strong"} <= set(left.tags)


def test_what_is_nested_too_deeply_is_told_instead_of_shown() -> None:
    deep = "<div><table><tr><td></div>" * 1000
    assert sanitise.too_deep(deep)
    assert not sanitise.too_deep("<ul>" + "<li><p>x<p>y" * 5000 + "</ul>")
    assert not sanitise.too_deep("<table>" + "<tr><th>a<td>b" * 5000 + "</table>")
    assert not sanitise.too_deep("<div><br><p>x</p></div>" * 5000)
    assert "nested too deeply" in check(exported(deep)).text


@pytest.mark.parametrize("selector", ["url(http://host.example/)", "a:not(url(x))", "src (x)", "image('x')"])
def test_what_is_no_selector_selects_nothing(selector: str) -> None:
    assert sanitise.rules(f"{selector} {{color: red}} td:nth-child(2) {{color: blue}}") == (
        "td:nth-child(2) {color: blue}"
    )


IN_X = ":where(.x,.x *)"


@pytest.mark.parametrize(
    ("selector", "limited"),
    [
        ("td", f"td{IN_X}"),
        (" a , b > c ", f"a{IN_X}, b > c{IN_X}"),
        ('a[b=", c"]:is(d, e)  f', f'a[b=", c"]:is(d, e)  f{IN_X}'),
        ("a::before", f"a{IN_X}::before"),
        ("a:hover::after", f"a:hover{IN_X}::after"),
        ("a :Before", f"a {IN_X}:Before"),
        (":root", ":root :where(.x)"),
        ("html.dark body::after", "html.dark body :where(.x)::after"),
        ("BODY > p", f"BODY > p{IN_X}"),
        ("a,,b", None),
        ("a,", None),
        ("a['b\nc']", None),
        ("a)", None),
    ],
)
def test_rules_can_be_for_some_elements_alone(selector: str, limited: str | None) -> None:
    """Whatever a selector says, what it selects is in the elements or one of them; its weight stays the same."""
    wanted = "" if limited is None else f"{limited} {{color: red}}"
    assert sanitise.rules(f"{selector} {{color: red}}", (".x",)) == wanted


def test_very_many_selectors_are_limited_in_number() -> None:
    css = "a{c:d}" + "a,a," * 200_000 + "a{c:d}"
    assert len(sanitise.rules(css, (".x",))) < 100


@pytest.mark.parametrize(
    "css",
    ["{" * 20_000, "(" * 20_000, "a{" * 10_000, "/*" * 10_000, "a{b:" + "x" * 10**6 + "}", "'" * 20_000],
)
def test_style_sheets_of_any_shape_end(css: str) -> None:
    assert "url" not in sanitise.rules(css + "} a { b: url(x) }")
    assert "url" not in sanitise.rules(css + "} a { b: url(x) }", (".x",))
    assert len(sanitise.declarations(css)) <= len(css)
