"""The gateway's answers about environments that its operator has added. Pure."""

from __future__ import annotations

from typing import Annotated

from cellgate.wire.base import Value, say

_Name = Annotated[str, say("Its name.")]
_Digest = Annotated[
    str, say("What identifies its packages, Python and platform: SHA-256 in hexadecimal, over its lock.")
]


class SessionEnvironment(Value, frozen=True, kw_only=True):
    """The environment of a session's kernel, one of those that the operator has added."""

    name: _Name
    digest: _Digest = ""


class AddedEnvironment(Value, frozen=True, kw_only=True):
    """An environment that the operator has added, which sessions can name."""

    name: _Name
    digest: _Digest = ""
    python: Annotated[str, say("The version of its Python.")] = ""
    packages: Annotated[int, say("How many packages it has; `/v1/info` has their versions.")] = 0


class LockedEnvironment(AddedEnvironment, frozen=True, kw_only=True):
    """An environment with its lock."""

    lock: Annotated[
        str, say("The version of each package, with hashes of its files, as a requirements file.")
    ] = ""


class EnvironmentList(Value, frozen=True, kw_only=True):
    """The environments that sessions can name, beside the one that others get."""

    environments: Annotated[list[AddedEnvironment], say("All of them, by name.")] = []
