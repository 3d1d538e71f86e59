"""Quotas: a principal's limits, by role and by name, from the operator's file. Pure.

The file is TOML, with a section for each role and for each principal that differs from its role:

[roles.user]
    sessions = 5
    max_memory = "2g"

[principals.ada]
    sessions = 20

A principal's section overrides its role's, key by key. ``quotas_file`` reads the file, and
``usage`` compares the use with the limits.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date, time
from types import MappingProxyType
from typing import Any, Final

from cellgate.identity.host_patterns import HostPattern, parse_host_pattern
from cellgate.identity.principal import Role
from cellgate.identity.tokens import check_name
from cellgate_kernels.base.errors import InvalidInput, nearest
from cellgate_kernels.base.resources import MIB, MOST_BYTES, parse_size

ROLES: Final = tuple(map(str, Role))
MOST_NUMBER: Final = 1_000_000_000
MOST_PATTERNS: Final = 1000
MOST_SECONDS: Final = 30 * 24 * 3600
SHOWN: Final = 60

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Quotas:
    """The limits of one principal; None: no limit. Sizes in bytes, times in seconds.

    `memory`, `cpus`, `disk`: the limits of its live sessions in sum. `record`: the size of its record.
    `network_bytes_per_minute`: the bytes between its sessions and hosts. `max_*`: the highest values that one
    session or one cell may request. `weight`: its share when kernels are short. `network`: the hosts for its
    sessions, private addresses only with `allow_private`.
    """

    sessions: int | None = None
    running: int | None = None
    queued: int | None = None
    memory: int | None = None
    cpus: float | None = None
    disk: int | None = None
    record: int | None = None
    requests_per_minute: int | None = None
    bytes_per_minute: int | None = None
    network_bytes_per_minute: int | None = None
    max_memory: int | None = None
    max_cpus: float | None = None
    max_pids: int | None = None
    max_disk: int | None = None
    max_cell_timeout: float | None = None
    max_lifetime: float | None = None
    weight: float = 1.0
    network: tuple[HostPattern, ...] = ()
    allow_private: bool = False

    @property
    def of_sums(self) -> tuple[float | None, ...]:
        """The limits of what live sessions use in sum."""
        return self.sessions, self.memory, self.cpus, self.disk

    @property
    def of_flows(self) -> tuple[int | None, ...]:
        """The limits of what comes and goes, in the order of `allotment.Flow`."""
        minute = self.requests_per_minute, self.bytes_per_minute, self.network_bytes_per_minute
        return self.running, self.queued, *minute


UNLIMITED: Final = Quotas()


class _Unfit(Exception):
    """A value can't be used; the message names the allowed ones."""


Check = Callable[[Any], Any]


def _number(least: float, most: float, *, whole: bool = False) -> Check:
    kind = "a whole number" if whole else "a number"
    expected = f"{kind} from {least:g} to {most:.15g}"

    def check(value: Any) -> Any:
        types = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, types) or not least <= value <= most:
            raise _Unfit(f"must be {expected}, not {_shown(value)}")
        return value if whole else float(value)

    return check


def _size(least: int) -> Check:
    smallest = f"{least // MIB}m" if least >= MIB else "1 byte"

    def check(value: Any) -> Any:
        try:
            size = parse_size(value)
        except InvalidInput:
            size = 0
        if not least <= size <= MOST_BYTES:
            raise _Unfit(
                f"must be a size such as '512m' or '4g', from {smallest} to 1024t, not {_shown(value)}"
            )
        return size

    return check


def _patterns(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _Unfit(f"must be a list of texts such as ['example.org:443'], not {_shown(value)}")
    if len(value) > MOST_PATTERNS:
        raise _Unfit(f"has {len(value)} entries; at most {MOST_PATTERNS} are taken")
    try:
        return tuple(dict.fromkeys(map(parse_host_pattern, value)))
    except InvalidInput as error:
        raise _Unfit(f"can't be used: {error.message}") from error


def _boolean(value: Any) -> Any:
    if not isinstance(value, bool):
        raise _Unfit(f"must be true or false, not {_shown(value)}")
    return value


_COUNT = _number(1, MOST_NUMBER, whole=True)

# The smallest values are those of a kernel: with less, no session could be opened at all.
CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "sessions": _COUNT,
        "running": _COUNT,
        "queued": _COUNT,
        "memory": _size(64 * MIB),
        "cpus": _number(0.05, 1_000_000),
        "disk": _size(MIB),
        "record": _size(1),
        "requests_per_minute": _COUNT,
        "bytes_per_minute": _size(1),
        # With less, a connection that waits for its turn among many would seem idle.
        "network_bytes_per_minute": _size(MIB),
        "max_memory": _size(64 * MIB),
        "max_cpus": _number(0.05, 1024),
        "max_pids": _number(16, 1_000_000, whole=True),
        "max_disk": _size(MIB),
        "max_cell_timeout": _number(0.01, MOST_SECONDS),
        "max_lifetime": _number(1, MOST_SECONDS),
        "weight": _number(0.01, 100),
        "network": _patterns,
        "allow_private": _boolean,
    }
)
"""The check of each key's value."""

assert [field.name for field in fields(Quotas)] == list(CHECKS)

Section = Mapping[str, Any]


class Policy:
    """The quotas of everybody, from one file. Immutable: another file is another policy."""

    def __init__(
        self, roles: Mapping[str, Section] | None = None, principals: Mapping[str, Section] | None = None
    ) -> None:
        self._roles = {name: dict(section) for name, section in (roles or {}).items()}
        self._principals = {name: dict(section) for name, section in (principals or {}).items()}
        self._of_role = {role: Quotas(**self._roles.get(role, {})) for role in ROLES}
        self._found: dict[tuple[str, str], Quotas] = {}

    def of(self, name: str, role: str) -> Quotas:
        """Return the quotas of the principal of this name and role; equal sections are the same object."""
        own = self._principals.get(name)
        if own is None:
            return self._of_role[role]
        # At most one entry for each section and role.
        if (found := self._found.get((name, role))) is None:
            found = Quotas(**{**self._roles.get(role, {}), **own})
            self._found[name, role] = found
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return NotImplemented
        return self._roles == other._roles and self._principals == other._principals

    __hash__ = None  # type: ignore[assignment]


NO_QUOTAS: Final = Policy()


def parse_quotas(content: bytes, file: str) -> Policy:
    """Return the policy of a file. Raises InvalidInput that names `file`, section and key."""
    try:
        document = tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file}: this is not UTF-8, at byte {error.start}") from error
    except ValueError as error:
        raise InvalidInput(f"{file}: this is not TOML: {error}") from error
    except RecursionError as error:
        raise InvalidInput(f"{file}: this is nested too deeply") from error
    for name in document:
        if name not in {"roles", "principals"}:
            known = "sections are [roles.NAME] and [principals.NAME]"
            raise InvalidInput(
                f"{file}: {_key(name)} is no section{_near(name, ('roles', 'principals'))}; {known}"
            )
    roles = dict(_sections(document.get("roles", {}), "roles", file))
    principals = dict(_sections(document.get("principals", {}), "principals", file))
    return Policy(roles, principals)


def _sections(tables: Any, kind: str, file: str) -> Iterator[tuple[str, Section]]:
    if not isinstance(tables, dict):
        raise InvalidInput(f"{file}: {kind} must have sections such as [{kind}.NAME], not {_shown(tables)}")
    for name, section in tables.items():
        title = f"[{kind}.{_key(name)}]"
        if kind == "roles" and name not in ROLES:
            raise InvalidInput(
                f"{file}: {title} is no role{_near(name, ROLES)}; roles are {', '.join(ROLES)}"
            )
        if kind == "principals":
            try:
                check_name(name)
            except InvalidInput as error:
                raise InvalidInput(f"{file}: {title}: {error.message}") from error
        if not isinstance(section, dict):
            raise InvalidInput(f"{file}: {title} must be a section with keys, not {_shown(section)}")
        yield name, {key: _checked(key, value, f"{file}: {title}") for key, value in section.items()}


def _checked(key: str, value: Any, where: str) -> Any:
    if key not in CHECKS:
        hint = "; a name with dots goes in quotes" if isinstance(value, dict) else ""
        raise InvalidInput(
            f"{where} {_key(key)} is no quota{_near(key, CHECKS)}{hint}; quotas are {', '.join(CHECKS)}"
        )
    try:
        return CHECKS[key](value)
    except _Unfit as unfit:
        raise InvalidInput(f"{where} {key} {unfit}") from unfit


def _near(name: str, known: tuple[str, ...] | Mapping[str, object]) -> str:
    near = nearest(name, known)
    return f" (did you mean {near}?)" if near else ""


def _key(name: str) -> str:
    """Return a key in TOML's form: in quotes unless it is plain."""
    return name if _BARE_KEY.fullmatch(name) and len(name) <= SHOWN else _shown(name)


def _shown(value: Any) -> str:
    """Return a value of the file, shortly."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}"
    if isinstance(value, (date, time)):
        return f"{value}"
    if isinstance(value, int) and abs(value) > MOST_BYTES:
        return "a number that large" if value > 0 else "a number that small"
    if isinstance(value, dict):
        return "a section"
    shown = repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
