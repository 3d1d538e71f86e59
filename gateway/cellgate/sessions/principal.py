"""Who owns sessions, as far as the rooms below HTTP know: a name, and what they may do.

One administrator for now. Who somebody is, and by which token, is found out by ``http.access``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who owns sessions. An `admin` may also remove what is recorded of them."""

    name: str
    admin: bool = False


DEFAULT = Principal("default", admin=True)
"""Everybody, where there is one token or none."""
