"""The installer's output: the little that is read from it, and the part that the operator's log gets.

uv's output repeats content of indexes, files and requirements, so none of it reaches a client or the record.
Exit codes and files say what happened (``uv``). The output is only searched for two things: an error number
of the operating system, and names that the index may not have, which are merely requested again. The log gets
the end of the output as one line, without passwords.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from packaging.utils import NormalizedName, canonicalize_name

from cellgate.packages.settings import PackageSettings
from cellgate_kernels.protocol.distributions import is_name
from cellgate_kernels.specs.addresses import MASK, without_secrets

logger = logging.getLogger(__name__)

LOGGED = 2000
"""Maximum number of characters of an installer's output in the log."""

# Rust's notation of an OS error; and uv's message about a package that it can't use.
_FULL = re.compile(rf"\(os error (?:{errno.ENOSPC}|{errno.EDQUOT})\)", re.ASCII)
_MISSING = re.compile(
    r"\b([A-Za-z0-9][A-Za-z0-9._-]{0,99})(?:==\S{1,100})? (?:was not found in |has no (?:usable )?wheels\b)",
    re.ASCII,
)


def is_full(said: str) -> bool:
    """Whether the installer found the disk full."""
    return _FULL.search(said) is not None


def named_as_missing(said: str) -> list[NormalizedName]:
    """Names of packages that the index may not have, or only without a suitable wheel; often none."""
    found = (match[1] for match in _MISSING.finditer(said))
    return list(dict.fromkeys(canonicalize_name(name) for name in found if is_name(name)))


def secrets_of(
    settings: PackageSettings, others: Iterable[str] = (), texts: Iterable[str] = ()
) -> frozenset[str]:
    """What must not appear in a log: passwords in URLs of the settings and in `texts`, and `others`."""
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
    for secret in sorted(secrets, key=len, reverse=True):
        said = said.replace(secret, MASK)
    lines = [line.strip() for line in without_secrets(said).splitlines() if line.strip()]
    logger.warning("%s: %s", what, ascii("\n".join(lines)[-LOGGED:]))
