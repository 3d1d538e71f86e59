"""The frame of every page that leaves the gateway: what it may load, and that nothing in it runs or sends.

A page holds what user code made. It is served under this policy, and carries it in itself, because a saved
file has no headers. The policy comes before everything else in the page, so nothing can come before it.
What stands in the page's body is ``sanitise``'s or the caller's affair.
"""

from __future__ import annotations

import re
from html import escape

PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:;"
    " form-action 'none'; base-uri 'none'"
)
"""What a page may load: what is in it. No script runs, no form is sent, and addresses have no other base."""

# Browsers look up the names of linked hosts in advance, and no policy keeps them from it.
_HEAD = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
    f'<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}">'
    '<meta http-equiv="x-dns-prefetch-control" content="off">'
    '<meta name="referrer" content="no-referrer">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
)
_LONGEST_TITLE = 200
# An escape character can change the encoding of what follows, in a program that does not believe the page.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffe\uffff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def document(title: str, style: str, body: str) -> str:
    """A page. `title` is text; `style` is CSS that can't end its element; `body` is the body's markup."""
    assert "<" not in style
    shown = escape(title[:_LONGEST_TITLE])
    page = f"{_HEAD}<title>{shown}</title><style>{style}</style></head>{body}</html>\n"
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", page))
