"""The frame of every page that leaves the gateway: it limits what a page may load; nothing runs or sends.

A page shows output of user code. It is served under this policy, and contains it as well, because a saved
file has no headers. The policy is the first element of the page, so no content can precede it. The body comes
from ``sanitise`` or the caller.
"""

from __future__ import annotations

import re
from html import escape

PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:;"
    " form-action 'none'; base-uri 'none'"
)
"""A page may load only its own content. No script runs, no form is sent, and addresses have no other base."""

# Browsers resolve the names of linked hosts in advance, which no policy prevents.
_HEAD = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
    f'<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}">'
    '<meta http-equiv="x-dns-prefetch-control" content="off">'
    '<meta name="referrer" content="no-referrer">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
)
_LONGEST_TITLE = 200
# In a program that ignores the page's charset, an escape character can change the encoding of what follows.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffe\uffff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def document(title: str, style: str, body: str) -> str:
    """Return a page. `title` is text, `style` is CSS that can't close its element, `body` is markup."""
    assert "<" not in style
    shown = escape(title[:_LONGEST_TITLE])
    page = f"{_HEAD}<title>{shown}</title><style>{style}</style></head>{body}</html>\n"
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", page))
