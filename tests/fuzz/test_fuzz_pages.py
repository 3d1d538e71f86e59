"""Markup and style sheets of user code's: whatever they are, what is left of them shows something and no more."""
# ruff: noqa: E501

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import strategies as st

from cellgate.pages import sanitise
from tests.fuzz.budget import Fuzz

HOST = "http://host.example/"
SHOWN = "a b p div span table tr td svg path g input img details"
"""Tags that may be left."""
FORBIDDEN = (
    "math mtext mglyph style script title textarea template iframe form base meta link object embed image "
    "use foreignObject desc noscript select option xmp plaintext animate"
)
TAGS = f"{SHOWN} {FORBIDDEN}".split()
ATTRIBUTES = (
    "href src style onload onclick srcdoc action formaction target ping xlink:href fill background "
    "http-equiv content id class srcset poster data"
)
WORDS = [
    *(f"<{tag}" for tag in TAGS),
    *(f"</{tag}>" for tag in TAGS),
    *(f" {name}=" for name in ATTRIBUTES.split()),
    *("javascript:x", HOST, f"url({HOST})", f"u\\72l({HOST})", f"@import '{HOST}';", "data:text/html,x"),
    *("<!--", "-->", "--!>", "<![CDATA[", "]]>", '"', "'", ">", "/>", " ", "&lt;", "&#60;", "\0"),
    *("{", "}", ";", ":", "color:red", "a", "/*", "*/", "image-set(", "expression(", ")"),
    *("\x1b$B", "+ADw-", "<style>", "</style>"),
]
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=25).map("".join)
ALLOWED_LINK = re.compile(r"#|https?://|mailto:")


class Left(HTMLParser):
    """Complains of what may not be left."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {each.lower() for each in FORBIDDEN.split()}, tag
        for name, value in attrs:
            told = value or ""
            assert not name.startswith("on"), name
            assert name not in {
                "srcdoc",
                "action",
                "formaction",
                "target",
                "ping",
                "srcset",
                "background",
                "content",
            }
            if name == "src":
                assert told.startswith("data:image/"), told
            elif name.endswith("href"):
                assert ALLOWED_LINK.match(told.lower()), told
            elif name in {"style", "fill"}:
                assert HOST not in told.replace("\\", ""), told
                assert "url(" not in re.sub(r"url\(#[^)]*\)", "", told.lower()), told

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def check_markup(text: str) -> None:
    kept, styles = sanitise.split_styles(text)
    once = sanitise.markup(kept)
    parser = Left(convert_charrefs=True)
    parser.feed(once)
    parser.close()
    # The page's body goes through it as a whole once more.
    whole = sanitise.markup(f"<div>{once}</div><p>after</p>")
    assert whole.endswith("<p>after</p>"), "an output can't swallow what comes after it"
    for css in styles:
        check_css(css)


def check_css(css: str) -> None:
    for left in (sanitise.rules(css).lower(), sanitise.rules(css, (".x",)).lower()):
        assert "<" not in left
        assert "\\" not in left
        assert "@" not in left
        assert not re.search(r"(?:url|image-set|expression|image|src)\s*\(", left)


def test_any_markup_is_reduced_to_what_shows_something(fuzz: Fuzz) -> None:
    fuzz.run(check_markup, TEXTS, examples=300)


def test_any_style_sheet_is_reduced_to_rules_that_load_nothing(fuzz: Fuzz) -> None:
    fuzz.run(check_css, TEXTS, examples=300)
