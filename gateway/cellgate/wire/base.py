"""The two kinds of values on the wire: what is sent to the gateway, and what the gateway sends.

A body is strict: a field that nobody knows is an error of the caller's. A value is lenient: a field of a
newer gateway is ignored, and one that an older gateway did not have gets its default, so that both understand
each other. A field that may be left out has `UNSET` in its type; all others are always sent.
"""

from __future__ import annotations

import msgspec


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what clients send."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what the gateway sends, and of what its record holds."""


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what may be given in an address, and the query of operations that take none."""
