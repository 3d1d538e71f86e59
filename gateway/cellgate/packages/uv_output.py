"""The installer's output: what is read from it, and the parts for logs and for clients.

uv's output repeats content of indexes, files and requirements. Exit codes and files decide (``uv``); the
output is only searched for an error number of the operating system. The log gets one line of ASCII without
passwords; a client gets uv's derivation alone, which has neither an index's own text nor the operator's
addresses.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from cellgate.packages.settings import PackageSettings
from cellgate_kernels.specs.addresses import MASK, without_secrets

logger = logging.getLogger(__name__)

LOGGED = 2000
"""Maximum number of characters of an installer's output in the log."""
MOST_TOLD = 600
"""Maximum number of characters of uv's derivation in an error."""

# Rust's notation of an OS error.
_FULL = re.compile(rf"\(os error (?:{errno.ENOSPC}|{errno.EDQUOT})\)", re.ASCII)


def is_full(said: str) -> bool:
    """Return whether the installer found the disk full."""
    return _FULL.search(said) is not None


def secrets_of(
    settings: PackageSettings, others: Iterable[str] = (), texts: Iterable[str] = ()
) -> frozenset[str]:
    """Return texts to keep out of logs: passwords in URLs of the settings and in `texts`, and `others`."""
    told = (settings.index, *settings.links, *settings.environment.values(), *texts)
    found = {secret for text in told for address in text.split() for secret in _passwords(address)}
    return frozenset(each for each in {*found, *others} if each)


def _passwords(address: str) -> Iterable[str]:
    try:
        parts = urlsplit(address)
        told = parts.password or parts.username
    except ValueError:
        return ()
    return () if told is None else (told, unquote(told))


def log_output(what: str, said: str, secrets: Iterable[str]) -> None:
    """Log the end of an installer's output for the operator: on one line, without passwords."""
    logger.warning("%s: %s", what, one_line(said, secrets)[-LOGGED:])


def one_line(said: str, secrets: Iterable[str]) -> str:
    """Return an installer's output as printable text on one line, without passwords."""
    for secret in sorted(secrets, key=len, reverse=True):
        said = said.replace(secret, MASK)
    return ascii(" ".join(without_secrets(said).split()))[1:-1]


def derivation(said: str) -> str:
    """Return why uv found no solution: names and versions of packages, joined by uv's words; "" if unknown.

    Left out are hints after the derivation and reasons for yanked releases, which repeat text of the index.
    """
    before, begin, rest = said.partition("Because ")
    if "No solution found" not in before:
        return ""
    for end in ("\n\n", "hint:", "(reason:"):
        rest = rest.partition(end)[0]
    words = (MASK if "/" in word else word for word in (begin + rest).split())
    return ascii(" ".join(words))[1:-1][:MOST_TOLD]
