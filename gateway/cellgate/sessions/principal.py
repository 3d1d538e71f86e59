"""The owner of sessions, as far as the code below HTTP knows: a name, and what they may do.

For now there is one administrator. ``http.access`` finds out who a request comes from, and by which token.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who owns sessions. An `admin` may also remove their records."""

    name: str
    admin: bool = False


DEFAULT = Principal("default", admin=True)
"""Everybody, if there is at most one token."""
