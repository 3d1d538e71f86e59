"""A package and its version as validated values: names of PEP 508, versions of PEP 440, nothing else.

Pure. Package names and versions from a kernel, a client, an index or an old record become one of these values
or are refused, before anything is written to a line, a path or a record. ``environment`` collects them;
``record.requirement_lines`` writes the lines that installers read.
"""

from __future__ import annotations

import re

import msgspec
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import InvalidVersion, Version

MOST_NAME, MOST_VERSION = 100, 100
"""The most characters. Both fit into one file name, with pip's own parts between and after them."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


class Distribution(msgspec.Struct, frozen=True):
    """A package of one version, in PEP 440's normal form. Raises ValueError for invalid names or versions."""

    name: str
    version: str

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError("this is no name of a package")
        if normal_version(self.version) != self.version:
            raise ValueError("this is no version in its normal form")

    @classmethod
    def read(cls, name: str, version: str) -> Distribution:
        """Return a distribution with the version in any form that PEP 440 allows, such as ``1.0-RC1``."""
        return cls(name, normal_version(version))

    @property
    def canonical(self) -> NormalizedName:
        """The name by which packages are compared (PEP 503)."""
        return canonicalize_name(self.name)


def is_name(text: str) -> bool:
    """Return whether this is a valid package name that is not too long."""
    return len(text) <= MOST_NAME and _NAME.fullmatch(text) is not None


def normal_version(text: str) -> str:
    """Return the version in PEP 440's normal form. Raises ValueError."""
    # Version ignores surrounding white space, even line breaks, so the original text is never kept.
    if len(text) > MOST_VERSION:
        raise ValueError("this version is too long")
    try:
        normal = str(Version(text))
    except InvalidVersion:
        raise ValueError("this is no version of PEP 440") from None
    if len(normal) > MOST_VERSION:
        raise ValueError("this version is too long")
    return normal
