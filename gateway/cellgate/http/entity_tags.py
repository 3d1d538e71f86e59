"""Entity tags in header fields: what If-Match and If-None-Match say of the file that a request replaces.

It compares nothing; ``files.precondition`` does. Pure. Source: RFC 9110, sections 8.8.3 and 13.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cellgate.files.precondition import ANY, Precondition, Tags
from cellgate_kernels.base.errors import InvalidInput

_ITEM = re.compile(r"""[ \t,]*+((?:W/)?"[^\x00-\x20"\x7f]*+")[ \t]*+(?:,|\Z)""")


def precondition(headers: Mapping[str, str]) -> Precondition | None:
    """Return the condition of a request on the file that is there, if it has one. Raises InvalidInput."""
    match, none_match = _tags(headers, "If-Match"), _tags(headers, "If-None-Match")
    return None if match is None and none_match is None else Precondition(match, none_match)


def _tags(headers: Mapping[str, str], name: str) -> Tags | None:
    value = headers.get(name)
    if value is None:
        return None
    value = value.strip(" \t")
    if value == "*":
        return ANY
    tags, at = set[str](), 0
    while (item := _ITEM.match(value, at)) is not None:
        tags.add(item[1])
        at = item.end()
    if not tags or value[at:].strip(" \t,"):
        raise InvalidInput(
            f'{name}: must be * or ETags with their quotes, such as "1f-2", separated by commas'
        )
    return frozenset(tags)
