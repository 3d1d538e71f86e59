"""Texts that only gateways with the same key can make: what they say needs to be kept nowhere. Pure.

A text has its body in it, for anybody to read, and a proof (HMAC-SHA256) that is bound to a purpose: a text
for one purpose proves nothing for another.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Final

MOST_TEXT: Final = 1024
"""The most characters of a text that is read; a login's takes fewer."""


class TextSigner:
    """Makes and reads texts by a key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, purpose: str, body: bytes) -> str:
        """Return a text with this body, of letters, digits and ``-_.``."""
        return f"{_encoded(body)}.{self._proof(purpose, body)}"

    def read(self, purpose: str, text: str) -> bytes | None:
        """Return the body of a text; None for one that was not made with this key for this purpose."""
        if len(text) > MOST_TEXT or not text.isascii():
            return None
        encoded, _, proof = text.partition(".")
        try:
            body = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        except binascii.Error:
            return None
        # Base64 has several spellings of some bytes; only ours counts, so that a text has one digest.
        whole = _encoded(body) == encoded and hmac.compare_digest(proof, self._proof(purpose, body))
        return body if whole else None

    def _proof(self, purpose: str, body: bytes) -> str:
        named = purpose.encode()
        return _encoded(hmac.digest(self._key, b"%d:%s" % (len(named), named) + body, "sha256"))


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
