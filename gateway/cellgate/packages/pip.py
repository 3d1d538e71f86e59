"""pip as a program: which wheels a list of requirements needs, and their files. Nothing is built by it.

pip runs under an interpreter that stands for the kernel's, without that interpreter's own packages: what the
kernel has is shown to it as empty metadata, so that it is taken for installed and not downloaded. Sources are
never built, so no code of a package runs here. Every line it reads is of ``record.requirement_lines``; what
its report tells is validated here, and what it says goes to ``words`` and no further. Source of the report:
pip's "Installation Report" page.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path

import msgspec
from packaging.utils import NormalizedName

from cellgate.packages.child import Bounds, run
from cellgate.packages.places import inside
from cellgate.packages.requirements import Change
from cellgate.packages.settings import PackageSettings
from cellgate.packages.words import explain, log_output, secrets_of
from cellgate.record.requirement_lines import Line, document, pin_line, wheel_line
from cellgate.wire.errors import PackageError
from cellgate_kernels.distributions import Distribution
from cellgate_kernels.environment import Environment
from cellgate_kernels.errors import InvalidInput
from cellgate_kernels.limits import MIB

logger = logging.getLogger(__name__)

# In pip's own log alone: it takes an index that fails for one that has nothing.
_UNFETCHED = re.compile(r"Could not fetch URL (?![^\n]*\b(?:403|404|410) Client Error)[^\n]+")
_MOST_LOG, _MOST_REPORT = 4 * MIB, 64 * MIB
LOG = "pip.log"
_QUIET = ("--quiet", "--no-input", "--disable-pip-version-check", "--only-binary", ":all:", "--retries", "1")
_ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True, slots=True)
class Target:
    """A kernel's Python, and what it has.

    `interpreter`: a program of this machine that pip runs under. `foreign`: it is not the kernel's own, so
    pip is told by the environment's `machine` and `libc` which wheels fit.
    """

    environment: Environment
    interpreter: str
    foreign: bool = False

    @property
    def packages(self) -> Mapping[str, str]:
        """The environment's versions by canonical names."""
        return {package.canonical: package.version for package in self.environment.packages}

    @property
    def minor(self) -> str:
        """Python's version as wheels' tags have it, such as ``311``."""
        return "".join(map(str, self.environment.release[:2]))

    def options(self) -> list[str]:
        """pip's options that choose the wheels of this Python."""
        if not self.foreign:
            return []
        abis = (f"cp{self.minor}", "abi3", "none")
        return [
            *("--implementation", "cp", "--python-version", ".".join(map(str, self.environment.release))),
            *(word for abi in abis for word in ("--abi", abi)),
            *(word for platform in self._platforms() for word in ("--platform", platform)),
        ]

    def _platforms(self) -> Iterator[str]:
        machine, (libc, _, version) = self.environment.machine, self.environment.libc.partition(" ")
        if not machine:
            yield "any"
            return
        latest = version.split(".")[1:2]
        for minor in range(int(latest[0]) if libc == "glibc" and latest else 17, 4, -1):
            yield f"manylinux_2_{minor}_{machine}"
            if minor in _ALIASES:
                yield f"{_ALIASES[minor]}_{machine}"
        yield f"linux_{machine}"


class _ArchiveInfo(msgspec.Struct, frozen=True):
    hashes: dict[str, str] = {}


class _Download(msgspec.Struct, frozen=True):
    url: str
    archive_info: _ArchiveInfo = _ArchiveInfo()


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    version: str


class _Item(msgspec.Struct, frozen=True):
    download_info: _Download
    metadata: _Metadata


class _Report(msgspec.Struct, frozen=True):
    install: list[_Item]


@dataclass(frozen=True, slots=True)
class Found:
    """A wheel that is needed. `sha256`: as the index or a download told it; None when nobody did."""

    package: Distribution
    url: str
    sha256: str | None

    @property
    def name(self) -> NormalizedName:
        """The package's canonical name."""
        return self.package.canonical

    @property
    def line(self) -> Line:
        """The line of its download."""
        return wheel_line(self.name, self.url, self.sha256)


class Pip:
    """pip with the operator's settings."""

    def __init__(self, settings: PackageSettings, secrets: frozenset[str] = frozenset()) -> None:
        self._settings = settings
        self._secrets = secrets_of(settings, secrets)
        spec = find_spec("pip")
        self._runner = None if spec is None or spec.origin is None else Path(spec.origin).parent

    async def resolve(
        self, change: Change, installed: Mapping[str, str], target: Target, work: Path
    ) -> list[Found]:
        """What is to be got to make the change, with all that needs, while `installed` stays as it is.

        Raises PackageNotFound, PackageConflict, PackageIndexUnavailable, PackageError and StorageFull.
        """
        packages = [Distribution(name, version) for name, version in installed.items()]
        await asyncio.to_thread(_show, work / "seen", packages)
        report = work / "report.json"
        constraints = work / "constraints.txt"
        await asyncio.to_thread(_write, constraints, packages, change.constraints)
        lines = [wanted.line for wanted in change.install]
        await self._run(
            target,
            work,
            [
                *("install", "--dry-run", *_QUIET, "--report", str(report), "-c", str(constraints)),
                *target.options(),
                *lines,
            ],
            lines,
        )
        return await asyncio.to_thread(_read, report)

    async def fetch(self, found: Sequence[Found], target: Target, work: Path) -> dict[Path, str]:
        """Download these wheels; the files with their SHA-256. Raises as `resolve`."""
        listed, folder = work / "wheels.txt", work / "wheels"
        hashed = all(each.sha256 for each in found)
        wheels = found if hashed else [replace(each, sha256=None) for each in found]
        listed.write_text(document(each.line for each in wheels))
        options = ["--require-hashes"] if hashed else []
        await self._run(
            target,
            work,
            [
                *("download", "--no-deps", *_QUIET, *options, *target.options()),
                *("-d", str(folder), "-r", str(listed)),
            ],
            [each.name for each in found],
        )
        return await asyncio.to_thread(_digests, folder)

    async def _run(self, target: Target, work: Path, words: Sequence[str], names: Sequence[str]) -> None:
        if self._runner is None:
            raise PackageError("The gateway's own environment has no pip; install it there")
        runner = str(self._runner / "__pip-runner__.py")
        bounds = Bounds(self._settings.timeout, work, 3 * self._settings.disk)
        code, said = await run(
            [target.interpreter, "-S", runner, *words, "--log", str(work / LOG)],
            self._environment(work),
            bounds,
        )
        if code:
            unfetched = await asyncio.to_thread(_unfetched, work / LOG)
            log_output("pip could not do what it was asked for", said + unfetched, self._secrets)
            raise explain(said + unfetched, names)

    def _environment(self, work: Path) -> dict[str, str]:
        settings = self._settings
        env = {
            "PATH": os.defpath,
            "HOME": str(work),
            "TMPDIR": str(work),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(work / "seen"),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Of this one install: what the first step got is not got twice.
            "PIP_CACHE_DIR": str(work / "http"),
            **settings.environment,
        }
        if settings.index or settings.links:
            # The operator's words alone count; not as arguments, because an address may hold a password.
            env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": " ".join(settings.links)}
            env |= {"PIP_INDEX_URL": settings.index} if settings.index else {"PIP_NO_INDEX": "1"}
        return env


def _show(folder: Path, installed: Sequence[Distribution]) -> None:
    """Make metadata by which pip takes these for installed."""
    folder.mkdir()
    for package in installed:
        name = package.canonical.replace("-", "_")
        metadata = inside(folder, f"{name}-{package.version}.dist-info")
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"
        )
        (metadata / "RECORD").touch()


def _write(path: Path, packages: Sequence[Distribution], constraints: Sequence[Line]) -> None:
    path.write_text(document([*map(pin_line, packages), *constraints]))


def _read(path: Path) -> list[Found]:
    """What pip's report tells, validated: it repeats what the index says. Raises PackageError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_REPORT + 1)
        if len(data) > _MOST_REPORT:
            raise PackageError("pip's report is too long; ask for fewer packages at once")
        return [_found(item) for item in msgspec.json.decode(data, type=_Report).install]
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        logger.warning("pip's report can't be read: %s", ascii(error)[:500])
        raise PackageError("pip's report can't be read; the gateway's log says why") from error


def _found(item: _Item) -> Found:
    try:
        package = Distribution.read(item.metadata.name, item.metadata.version)
        digest = item.download_info.archive_info.hashes.get("sha256")
        found = Found(package, item.download_info.url, None if digest is None else digest.lower())
        wheel_line(found.name, found.url, found.sha256)
    except (ValueError, InvalidInput) as error:
        logger.warning("The index told of a package that can't be used: %s", ascii(item)[:500])
        raise PackageError(
            "The index has a package whose name, version, address or hash can't be used; the gateway's log"
            " says which"
        ) from error
    return found


def _unfetched(log: Path) -> str:
    """What pip's log tells of pages that it could not get."""
    try:
        with log.open("rb") as file:
            text = file.read(_MOST_LOG).decode(errors="replace")
    except OSError:
        return ""
    found = _UNFETCHED.search(text)
    return f"\nERROR: {found[0]}" if found else ""


def _digests(folder: Path) -> dict[Path, str]:
    digests = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            digests[path] = file_digest(file, "sha256").hexdigest()
    return digests
