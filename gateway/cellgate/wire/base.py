"""The base classes of everything on the wire: what clients send, and what the gateway sends.

A body is strict: an unknown field is an error of the caller. A value is lenient: a field of a newer gateway
is ignored, and one that an older gateway did not have gets its default, so that different versions understand
each other. A field that may be left out has `UNSET` in its type; all others are always sent.
"""

from __future__ import annotations

import msgspec
from msgspec import Meta


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of request bodies."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the gateway's answers, and of the events in its record."""


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the parameters of a query string, and the query of operations that take none."""


def say(text: str) -> Meta:
    """Return what describes a field in the API's document: ``Annotated[str, say("The name.")]``."""
    return Meta(description=text)
