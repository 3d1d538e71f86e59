"""Masks secrets in the addresses of a program's output: passwords, and queries, which may hold tokens.

Pure. For the logs of the set-up (``install``) and of installing packages. An index chooses parts of such
output, so the time is linear in its length, and an address of any length is masked.
"""

from __future__ import annotations

import re

MASK = "***"
_CREDENTIALS = re.compile(r"(//)[^/\s@]+@")
_WORD = re.compile(r"\S+")
_AROUND = "`'\")],.;:"
"""Punctuation that may follow an address without being part of it."""


def without_secrets(text: str) -> str:
    """Return the text, with the credentials and the queries of all addresses in it masked."""
    return _WORD.sub(_without_query, _CREDENTIALS.sub(rf"\1{MASK}@", text))


def _without_query(found: re.Match[str]) -> str:
    word = found[0]
    address = word.find("://")
    query = word.find("?", address)
    if address < 0 or query < 0:
        return word
    fragment = word.find("#", query)
    end = len(word.rstrip(_AROUND)) if fragment < 0 else fragment
    return f"{word[: query + 1]}{MASK}{word[max(end, query + 1) :]}"
