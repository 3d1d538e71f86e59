"""What a language model is told about the environment of its cells before it tries anything: one paragraph.

Made of the gateway's description of itself; ``tools`` has the rest of the instructions. It names only what
the gateway knows: an operator's own kernelspec may have no list of packages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from cellgate.client import Gateway, GatewayError
from cellgate.wire.answers import EnvironmentModel, GatewayInfo
from cellgate.wire.words import CheckpointMode, LanguageName, NetworkAccess
from cellgate_kernels.specs.languages import Language, find_language

_KNOWN = (
    *("numpy", "pandas", "polars", "pyarrow", "duckdb", "scipy", "scikit-learn", "statsmodels", "sympy"),
    *("networkx", "matplotlib", "seaborn", "plotly", "altair", "pillow", "openpyxl", "sqlalchemy", "lxml"),
    *("xlsxwriter", "python-docx", "python-pptx", "pypdf", "reportlab"),
    *("beautifulsoup4", "requests", "jinja2", "tqdm", "ipywidgets"),
)
"""Packages that are named with their versions, in this order; the others are counted."""

_DENO = "deno"
"""The program that runs JavaScript and TypeScript."""
_RUN_BY = MappingProxyType({"bash": (Language.BASH,), _DENO: (Language.JAVASCRIPT, Language.TYPESCRIPT)})
"""Languages of cells besides Python, by the program that runs them."""
_OURS = ("standard", "minimal")
_MOST_OTHERS = 40
_MOST_NAMED = 20
_PATIENCE = 5.0  # seconds
_MIB, _GIB = 1024**2, 1024**3


@dataclass(frozen=True, slots=True)
class SessionWish:
    """The session that tools work in, as it is asked for; see `Gateway.session`."""

    kernel: str | None = None
    language: LanguageName | None = None
    network: NetworkAccess | None = None
    checkpoint: CheckpointMode | None = None
    environment: str | None = None


@dataclass(frozen=True, slots=True)
class Briefing:
    """What models are told of new sessions: a paragraph, and the languages that their cells may have."""

    text: str
    languages: tuple[str, ...]


UNKNOWN = Briefing("", tuple(Language))
"""What is told of a gateway that has not said what it has."""


async def ask_for_briefing(gateway: Gateway, wanted: SessionWish) -> Briefing:
    """Return the briefing on new sessions of a gateway; `UNKNOWN` if the gateway does not answer now."""
    try:
        async with asyncio.timeout(_PATIENCE):
            info = await gateway.info()
    except (GatewayError, TimeoutError):
        # The tools say what is wrong, when the first of them is used.
        return UNKNOWN
    return Briefing(briefing(info, wanted), served_languages(info, wanted))


def served_languages(info: GatewayInfo, wanted: SessionWish) -> tuple[str, ...]:
    """Return the languages of cells in a new session: all that are not known to be missing."""
    own = None if wanted.language is None else find_language(wanted.language)
    if own is not None and own.kernel_language == Language.TYPESCRIPT:
        return (Language.JAVASCRIPT, Language.TYPESCRIPT)
    environment = _environment(info, wanted)
    if environment is None or not environment.programs:
        return tuple(Language)
    missing = {
        language
        for program, runs in _RUN_BY.items()
        if program not in environment.programs
        for language in runs
    }
    return tuple(language for language in Language if language not in missing)


def briefing(info: GatewayInfo, wanted: SessionWish) -> str:
    """Describe a new session to a model: packages, limits, network, and whether packages can be installed."""
    environment = _environment(info, wanted)
    parts = [] if environment is None else [_found(environment)]
    return " ".join([*parts, _limits(info), _network(info, wanted), _packages(info)])


def _environment(info: GatewayInfo, wanted: SessionWish) -> EnvironmentModel | None:
    """Return the environment of a new session's kernel, if it is Python's and known."""
    kernel = wanted.environment or wanted.kernel or info.default_kernel
    return None if wanted.language not in (None, "python") else info.environment.get(kernel)


def _found(environment: EnvironmentModel) -> str:
    versions = {name.lower(): version for name, version in environment.packages.items()}
    known = [f"{name} {versions[name]}" for name in _KNOWN if name in versions]
    others = sorted(versions.keys() - set(_KNOWN))
    # Of an operator's own list the rest is what matters; of ours it is what the known ones need.
    shown = (
        [] if environment.name in _OURS else [f"{name} {versions[name]}" for name in others[:_MOST_OTHERS]]
    )
    more = len(others) - len(shown)
    said = f"Python {environment.python} with {', '.join([*known, *shown]) or 'no packages'}"
    if more:
        said += f" and {more} more packages (importlib.metadata lists them)"
    if not environment.programs:
        return f"{said}."
    # The tools offer these languages whatever is there.
    without = "" if _DENO in environment.programs else " Neither JavaScript nor TypeScript can be run."
    return f"{said}. Programs: {', '.join(environment.programs)}.{without}"


def _limits(info: GatewayInfo) -> str:
    limits = info.limits
    said = []
    if (memory := limits.get("memory")) is not None:
        said.append(f"{_size(memory)} of memory")
    if (cpus := limits.get("cpus")) is not None:
        said.append(f"{cpus:g} {'processor' if cpus == 1 else 'processors'}")
    if (pids := limits.get("pids")) is not None:
        said.append(f"{pids} processes")
    if (disk := limits.get("disk")) is not None:
        said.append(f"{_size(disk)} of files")
    if (seconds := limits.get("cell_timeout")) is not None:
        said.append(f"{seconds:g} s for a call unless it says otherwise")
    return f"Limits by default: {', '.join(said)}."


def _size(count: float) -> str:
    return f"{count / _GIB:g} GiB" if count >= _GIB else f"{count / _MIB:g} MiB"


def _network(info: GatewayInfo, wanted: SessionWish) -> str:
    if info.open_network:
        return "Code has a network, as the operator has set it up."
    if wanted.network != "allow" or not info.network:
        return "Code reaches no network: downloads and calls of APIs fail."
    return (
        f"Of the network, code reaches only {_some(info.network)}: HTTP_PROXY and HTTPS_PROXY name a proxy,"
        " which programs use by themselves, and whose refusals name the hosts that are allowed."
    )


def _packages(info: GatewayInfo) -> str:
    if not info.packages_allowed:
        return "Packages can't be added: use what is there, and don't try pip."
    which = "any package" if "*" in info.packages_allowed else f"only {_some(info.packages_allowed)}"
    return f"install_packages, or %pip install in a cell, adds {which}; other ways to install fail."


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    shown = ", ".join(names[:_MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown
