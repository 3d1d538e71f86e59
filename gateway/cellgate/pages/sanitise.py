"""Reduces HTML and CSS from user code to what is displayed: nothing that runs, loads, sends or navigates.

nh3 (the Rust library ammonia) parses as browsers do and keeps listed elements and attributes; ``style``
elements are taken out first, and their rules are filtered separately. Pure. Pages made from it also have the
policy of ``html_frame``, so that each of the two catches what the other misses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import nh3
import tinycss2

MOST_CSS = 1 << 20
"""Characters of one ``style`` element; longer ones are left out."""
MOST_SELECTORS = 50_000
"""Selectors of one ``style`` element; rules behind them are left out, as each selector becomes longer."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DEEPEST = 500
"""Levels of nested elements; browsers themselves stop at about as many."""

_SHAPES = _words("""
    svg g path rect circle ellipse line polyline polygon text tspan defs linearGradient radialGradient stop
    clipPath
""")
# Without image maps, whose links are invisible; with checkboxes, which fold some displays without a script.
_TAGS = (
    (nh3.ALLOWED_TAGS - {"map", "area"}) | _SHAPES | _words("address big font input label main section tfoot")
)
_LOST = _words("""
    script style title noscript template iframe object embed applet frameset noframes noembed textarea select
    math foreignObject audio video canvas
""")
"""Elements that are removed with all their content. What media hold is for browsers that can't play them."""
_EVERYWHERE = _words("""
    id class style title lang dir align valign width height border cellpadding cellspacing colspan rowspan
    scope headers span start reversed open role face size color bgcolor nowrap datetime
""")
_OF_SHAPES = _words("""
    viewBox preserveAspectRatio d x y x1 y1 x2 y2 cx cy r rx ry fx fy dx dy points offset transform rotate
    gradientTransform gradientUnits spreadMethod clipPathUnits pathLength fill fill-opacity fill-rule
    stroke stroke-width stroke-opacity stroke-dasharray stroke-dashoffset stroke-linecap stroke-linejoin
    stroke-miterlimit stop-color stop-opacity opacity clip-path clip-rule text-anchor dominant-baseline
    font-family font-size font-style font-weight letter-spacing textLength lengthAdjust visibility
""")
# What authors of texts may use: nothing by which a text could look like another part of the page.
_OF_AUTHORS = _EVERYWHERE - _words("bgcolor border cellpadding cellspacing face role")
_AUTHORS_TAGS = _TAGS - _words("input label main section")
_TEXT_STYLES = _words("""
    color font-size font-style font-weight text-align text-decoration vertical-align width max-width height
""")
_CODE_CLASS = re.compile(r"highlight|anchor-link|[a-z]{1,2}[0-9a-z]?")
"""A class that the Markdown renderer gives: to links to headings, and in highlighted code, mostly short."""
_HEADING = re.compile(r"h[1-6]")
_FORMULA = re.compile(r"formula-[0-9a-f]{32}-\d{1,6}")
"""The id of a formula's place; see ``jobs.formulas``."""
_LINK = re.compile(r"#|(?:https?|mailto):", re.IGNORECASE)
"""How a link begins. What browsers pass over before and in a scheme, such as a blank, would hide another."""
_PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|webp|bmp|avif|svg\+xml);base64,[A-Za-z0-9+/=\s]*")

# Functions that CSS may call. None of them loads anything, unlike url, image-set, src and future ones.
_FUNCTIONS = _words("""
    rgb rgba hsl hsla hwb lab lch oklab oklch color color-mix calc min max clamp var attr counter counters
    linear-gradient radial-gradient conic-gradient repeating-linear-gradient repeating-radial-gradient
    translate translatex translatey translate3d scale scalex scaley rotate skew skewx skewy matrix
    repeat minmax fit-content blur brightness contrast grayscale opacity saturate drop-shadow
    cubic-bezier steps
""")
_OF_SELECTORS = _words("""
    not is where has lang dir nth-child nth-last-child nth-of-type nth-last-of-type
""")
_OLD_PSEUDO_ELEMENTS = _words("before after first-line first-letter")
"""Those that may be written with one colon."""
_LONGEST_NAME = 40
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_WITHOUT_END = _words("area base br col embed hr img input link meta param source track wbr")
_ENDED_BY_NEXT = _words("dd dt li option p tbody td tfoot th thead tr")
_SCOPES = _words("applet button caption marquee object select svg math table td template th")
_NAME = re.compile(r"(?<![-\w])[-\w]*+\Z")
_OWN_PART = re.compile(r"url\(#[-\w.:]+\)", re.IGNORECASE)
_UNSAFE = ("\\", "<", "@", "/*", "{", "}")
"""An escape may spell any name; the others may end the construct that they are in."""


def _harmless(value: str) -> bool:
    """Return whether a CSS value calls only functions that load nothing."""
    if any(mark in value for mark in _UNSAFE):
        return False
    return all(name in _FUNCTIONS or not name for name in _called(value))


def _called(value: str) -> Iterator[str]:
    """Yield the name before each opening parenthesis; of a name too long for a function, its end."""
    at = value.find("(")
    while at >= 0:
        found = _NAME.search(value[max(0, at - _LONGEST_NAME) : at].rstrip())
        yield "" if found is None else found[0].lower()
        at = value.find("(", at + 1)


def declarations(text: str) -> str:
    """Return the declarations that load nothing, as for a ``style`` attribute."""
    return ";".join(part for part in text.split(";") if ":" in part and _harmless(part))


def _attribute(tag: str, name: str, value: str) -> str | None:
    if name == "style":
        return declarations(value) or None
    if name == "src":
        return value if _PICTURE.fullmatch(value) else None
    if name == "href":
        return value if _LINK.match(value) else None
    if tag in _SHAPES and name not in _EVERYWHERE:
        return value if _harmless(_OWN_PART.sub("", value)) else None
    return value


def _cleaner_of(
    tags: Collection[str],
    everywhere: frozenset[str],
    attribute_filter: Callable[[str, str, str], str | None],
    attributes: Mapping[str, frozenset[str]] = MappingProxyType({}),
    **options: Any,
) -> nh3.Cleaner:
    """Return a cleaner of these elements and attributes, with the rules that hold for all HTML.

    `everywhere`: the attributes that every element may have; `attributes`: more, by element.
    """
    own = {"a": _words("href hreflang"), "img": _words("src alt"), **dict.fromkeys(_SHAPES, _OF_SHAPES)}
    allowed = {"*": everywhere, **own, **attributes}
    return nh3.Cleaner(
        tags=set(tags),
        clean_content_tags=set(_LOST),
        attributes={tag: set(names) for tag, names in allowed.items()},
        attribute_filter=attribute_filter,
        url_schemes={"http", "https", "mailto", "data"},
        url_relative=lambda url: url if url.startswith("#") else None,
        link_rel="noopener noreferrer",
        **options,
    )


def _attribute_of_author(tag: str, name: str, value: str) -> str | None:
    if name == "class":
        return " ".join(filter(_CODE_CLASS.fullmatch, value.split())) or None
    if name == "id":
        # Headings are linked to. The page's own cells have ids such as `cell-id=4f2e`.
        own = _HEADING.fullmatch(tag) is not None and not value.startswith("cell-id")
        return value if own or _FORMULA.fullmatch(value) else None
    if name == "style":
        parts = (part for part in value.split(";") if part.partition(":")[0].strip().lower() in _TEXT_STYLES)
        return declarations(";".join(parts)) or None
    return _attribute(tag, name, value)


_cleaner = _cleaner_of(
    _TAGS,
    _EVERYWHERE,
    _attribute,
    {"input": _words("checked disabled"), "label": _words("for")},
    set_tag_attribute_values={"input": {"type": "checkbox"}},
    generic_attribute_prefixes={"data-", "aria-"},
)
_authors_cleaner = _cleaner_of(_AUTHORS_TAGS, _OF_AUTHORS, _attribute_of_author)


def authors_markup(text: str) -> str:
    """Return the HTML of a text as `markup` does, without anything by which it could pass for a cell.

    Classes, ids and styles of the page are left out, and all style sheets; what Markdown itself makes stays.
    A picture can still show whatever it likes.
    """
    return _authors_cleaner.clean(text)


def markup(text: str) -> str:
    """Return a balanced piece of HTML, whatever `text` is, with listed elements and attributes only."""
    return _cleaner.clean(text)


def too_deep(text: str) -> bool:
    """Return whether elements are nested too deep: parsing time grows with the square of the depth.

    An estimate: an end tag closes the nearest element of its name, unless a table cell or the like is nearer.
    """
    stack: list[str] = []
    for tag in _TAG.finditer(text):
        name = tag[2].lower()
        if not tag[1]:
            if name in _WITHOUT_END:
                continue
            if name in _ENDED_BY_NEXT:
                _end_before(stack, name)
            stack.append(name)
            if len(stack) > DEEPEST:
                return True
            continue
        for place in range(len(stack) - 1, -1, -1):
            if stack[place] == name:
                del stack[place:]
            if place == len(stack) or stack[place] in _SCOPES:
                break
    return False


def _end_before(stack: list[str], name: str) -> None:
    """Close a previous item and its paragraph before an item of a list; likewise cells and rows."""
    for place in range(len(stack) - 1, -1, -1):
        if stack[place] not in _ENDED_BY_NEXT:
            return
        if stack[place] == name:
            del stack[place:]
            return


def split_styles(text: str) -> tuple[str, list[str]]:
    """`text` without its ``style`` elements, and the contents of these.

    It need not find them as a browser would: `markup` removes those it leaves, `rules` checks those it takes.
    """
    lowered = text.lower()
    # A letter that becomes longer in lower case would shift all positions after it.
    if len(lowered) != len(text) or "<style" not in lowered:
        return text, []
    kept: list[str] = []
    styles: list[str] = []
    at = 0
    while (start := lowered.find("<style", at)) >= 0:
        opened = lowered.find(">", start)
        end = lowered.find("</style", start)
        if opened < 0 or end < opened:
            break
        kept.append(text[at:start])
        styles.append(text[opened + 1 : end])
        closed = lowered.find(">", end)
        at = len(text) if closed < 0 else closed + 1
    return "".join([*kept, text[at:]]), styles


def _selects_only(selector: str) -> bool:
    """Return whether the text is a selector; one with a function such as `url` is none."""
    if any(mark in selector for mark in _UNSAFE):
        return False
    return all(name.lower() in _OF_SELECTORS for name in _called(selector))


def rules(css: str, inside: Sequence[str] = ()) -> str:
    """Return the plain rules of a style sheet that load nothing: no ``@`` rules, no nesting.

    With `inside`, selectors of elements, they are for these elements and what is in them alone; what is said
    of the page's root or body is said of these elements. An ``@scope`` would do the same, but programs that
    do not know it leave out all that is in it.
    """
    if len(css) > MOST_CSS:
        return ""
    try:
        return "\n".join(_rules(css, inside))
    except RecursionError:
        return ""


def _rules(css: str, inside: Sequence[str]) -> Iterator[str]:
    left = MOST_SELECTORS
    for rule in tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True):
        if rule.type != "qualified-rule":
            continue
        selector = tinycss2.serialize(rule.prelude).strip()
        content = [token for token in rule.content if token.type != "comment"]
        kept = declarations(tinycss2.serialize(content))
        if not (kept and selector and _selects_only(selector)):
            continue
        if inside:
            parts = _parts(rule.prelude)
            left -= len(parts)
            if left < 0:
                return
            if not all(parts) or _broken(rule.prelude):
                continue
            selector = ", ".join(_limited(part, inside) for part in parts)
        yield f"{selector} {{{kept}}}"


def _parts(prelude: Sequence[Any]) -> list[list[Any]]:
    """Split a list of selectors at its commas: the tokens of each, without blanks around them."""
    parts: list[list[Any]] = [[]]
    for each in prelude:
        if each == ",":
            parts.append([])
        elif parts[-1] or each.type != "whitespace":
            parts[-1].append(each)
    for part in parts:
        while part and part[-1].type == "whitespace":
            part.pop()
    return parts


def _broken(tokens: Sequence[Any]) -> bool:
    """Return whether there is something in them that is no token, such as half of a string."""
    left = list(tokens)
    while left:
        token = left.pop()
        if token.type == "error":
            return True
        left.extend(getattr(token, "arguments", None) or getattr(token, "content", None) or ())
    return False


def _limited(part: Sequence[Any], inside: Sequence[str]) -> str:
    """Return a selector of the same elements as far as they are `inside`; it weighs as much as before.

    The limit is put to the last compound, which selects, and before its pseudo-element, behind which it could
    not stand. Where that compound is the page's root or body, the elements themselves take their place.
    """
    start = 1 + max(
        (at for at, token in enumerate(part) if token.type == "whitespace" or token in (">", "+", "~")),
        default=-1,
    )
    end = next((at for at in range(start, len(part)) if _is_pseudo_element(part, at)), len(part))
    own, behind = tinycss2.serialize(part[:end]), tinycss2.serialize(part[end:])
    places = ",".join(inside)
    if _is_root(part[start:end]):
        return f"{own} :where({places}){behind}"
    return f"{own}:where({places},{','.join(f'{place} *' for place in inside)}){behind}"


def _is_pseudo_element(part: Sequence[Any], at: int) -> bool:
    if part[at] != ":" or at + 1 == len(part):
        return False
    following = part[at + 1]
    return following == ":" or (following.type == "ident" and following.lower_value in _OLD_PSEUDO_ELEMENTS)


def _is_root(compound: Sequence[Any]) -> bool:
    if compound and compound[0] == ":":
        return len(compound) > 1 and compound[1].type == "ident" and compound[1].lower_value == "root"
    return bool(compound) and compound[0].type == "ident" and compound[0].lower_value in ("html", "body")
