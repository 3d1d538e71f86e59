"""The condition of a request on the file that it writes: that it is as the client has seen it, or not there.

It compares tags, which ``tree.FileState`` makes. It knows no HTTP; ``http.entity_tags`` reads the header
fields. Pure. Source: RFC 9110, section 13.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgate.errors import FileChanged

Tags = frozenset[str]

ANY: Tags = frozenset({"*"})
"""The tags of whatever there is."""
WEAK = "W/"
"""What a tag begins with that two different contents may have."""


@dataclass(frozen=True, slots=True)
class Precondition:
    """What must hold when a file is put into place. `match`: one of these tags is the file's, None for no
    condition. `none_match`: none of these is.
    """

    match: Tags | None = None
    none_match: Tags | None = None

    def check(self, path: str, tag: str | None) -> None:
        """Check the tag of the file that is there; None if there is no file. Raises FileChanged."""
        if self.match is not None and (tag is None or (self.match != ANY and tag not in self.match)):
            raise FileChanged(
                f"There is no file {path!r} any more"
                if tag is None
                else f"{path!r} has changed since its ETag was told: get it again before you replace it"
            )
        if self.none_match is not None and tag is not None:
            known = {each.removeprefix(WEAK) for each in self.none_match}
            if self.none_match == ANY or tag in known:
                raise FileChanged(f"{path!r} is there already, and If-None-Match says not to replace it")
