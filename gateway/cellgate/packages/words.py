"""What an installer's words mean, said in our own; and the words themselves, for the operator's log.

pip's output repeats what indexes, files and requirements hold, so none of it reaches a client or the record:
it is only searched for what happened. Names in our sentences have passed their grammar. The operator's log
gets the end of the output as one line, without passwords.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote, urlsplit

from cellgate.packages.requirements import parse_requirement
from cellgate.packages.settings import PackageSettings
from cellgate.wire.errors import (
    PackageConflict,
    PackageError,
    PackageIndexUnavailable,
    PackageNotFound,
    StorageFull,
)
from cellgate_kernels.errors import InvalidInput

logger = logging.getLogger(__name__)

LOGGED = 2000
"""Characters of an installer's output that go into the log, at most."""

_MISSING = re.compile(r"No matching distribution found for ([^\n]{1,500})")
_INDEX = re.compile(
    r"HTTP error|HTTPError|ConnectionError|NewConnectionError|ReadTimeout|ConnectTimeout|Max retries exceeded"
    r"|connection broken|ProtocolError|timed out|SSLError|Could not fetch URL",
)
_DAMAGED = re.compile(r"DO NOT MATCH THE HASHES|Hash mismatch|HashMismatch|has an invalid wheel|is invalid")
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_CREDENTIALS = re.compile(r"//[^/\s@]+@")
_MASK, _STACK = "***", "Traceback"


def explain(said: str, names: Sequence[str]) -> PackageError | StorageFull:
    """The error that tells whoever asked for `names`, lines of ours, what happened."""
    asked = ", ".join(names)[:200]
    if _FULL.search(said):
        return StorageFull("There is no room on the gateway's disk")
    if _DAMAGED.search(said):
        return PackageError(
            f"A file that the index gave for {asked} is not what it should be: its hash or its form is wrong."
            " The gateway's log has the details"
        )
    if _INDEX.search(said):
        return PackageIndexUnavailable(
            f"The package index does not answer as it should; try again later. Asked for: {asked}."
            " The gateway's log has the details"
        )
    if "ResolutionImpossible" in said or "conflicting dependencies" in said:
        return PackageConflict(
            f"The versions asked for ({asked}) don't go together, or not with what the session has already:"
            " ask for all at once, or for other versions"
        )
    if (missing := _MISSING.search(said)) is not None:
        return PackageNotFound(
            f"The index has no wheel of {_named(missing[1]) or asked} for this kernel's Python; packages that"
            " come as source only are not built here. Check the name and the version"
        )
    return PackageError(f"pip could not get {asked}. The gateway's log says why")


def _named(text: str) -> str:
    """The requirement that pip names, as we write it; empty when it is none."""
    try:
        return parse_requirement(text.partition(" (from")[0].strip()).line
    except InvalidInput:
        return ""


def secrets_of(settings: PackageSettings, others: Iterable[str] = ()) -> frozenset[str]:
    """What an installer may know and nobody is to read in a log: passwords in addresses, and `others`."""
    addresses = (settings.index, *settings.links, *settings.environment.values())
    found = {secret for address in addresses for secret in _passwords(address)}
    return frozenset(each for each in {*found, *others} if each)


def _passwords(address: str) -> Iterable[str]:
    try:
        parts = urlsplit(address)
        told = parts.password or parts.username
    except ValueError:
        return ()
    return () if told is None else (told, unquote(told))


def log_output(what: str, said: str, secrets: Iterable[str]) -> None:
    """Log the end of an installer's output for the operator: on one line, without passwords and stacks."""
    for secret in sorted(secrets, key=len, reverse=True):
        said = said.replace(secret, _MASK)
    masked = _CREDENTIALS.sub(f"//{_MASK}@", said)
    lines = [line for line in masked.splitlines() if line.strip() and not line.startswith((" ", _STACK))]
    logger.warning("%s: %s", what, ascii("\n".join(lines)[-LOGGED:]))
