"""Runs uv: finds the wheels that a list of requirements needs, and unpacks each into a folder.

uv runs for an interpreter that stands for the kernel's, without that interpreter's own packages: the kernel's
packages are presented as empty metadata, so that uv treats them as installed and does not download them.
Sources are never built, so no code of a package runs here. uv is configured only by the environment that is
built here, not by files or other variables. ``record.requirement_lines`` writes every line it reads.

Results are read from machine-readable files (a plan as JSON, a ``pylock.toml`` of PEP 751) and validated.
Errors are identified by uv's exit code and by the requested wheel. Its messages go to the log; the client
gets only the derivation of why there is no solution.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, NormalizedName, parse_wheel_filename

from cellgate.errors import (
    PackageConflict,
    PackageError,
    PackageIndexUnavailable,
    PackageNotFound,
    StorageFull,
)
from cellgate.packages.child import ChildLimits, run
from cellgate.packages.places import inside
from cellgate.packages.requirements import Change
from cellgate.packages.settings import PackageSettings
from cellgate.packages.uv_output import derivation, is_full, log_output, secrets_of
from cellgate.record.export.requirement_lines import Line, document, hashed_line, pin_line
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.kernel.environment import Environment
from cellgate_kernels.protocol.distributions import Distribution
from cellgate_kernels.specs.uv_command import UnreadableSettings, pip_settings, uv_command

logger = logging.getLogger(__name__)

NO_SOLUTION, FAILED = 1, 2
"""uv's exit codes: the request can't be satisfied or is wrong; and any other error, such as no network."""

LOCK = "pylock.toml"
MOST_TAGS = 500
"""Most platforms that a wheel's name may stand for."""
MOST_ANSWER = 4 * MIB
"""Most bytes of one result file from uv."""

_GLIBC = (17, 28, *range(31, 41))
"""The minor versions of glibc 2 that uv supports as platforms; an image's version is rounded down to one."""
_MACHINES = frozenset({"x86_64", "aarch64"})
_OLDEST_ALIASED = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}

_CERTIFICATES = "PIP_CERT"
"""The only pip variable that is used together with an index that is configured here."""


@dataclass(frozen=True, slots=True)
class UvTarget:
    """A kernel's Python and its packages.

    `interpreter`: a Python on this machine for which uv runs. `foreign`: it is not the kernel's own, so the
    environment's `python`, `machine` and `libc` tell uv which wheels fit.
    """

    environment: Environment
    interpreter: str
    foreign: bool = False

    @property
    def packages(self) -> Mapping[str, str]:
        """The environment's versions by canonical name."""
        return {package.canonical: package.version for package in self.environment.packages}

    @property
    def minor(self) -> str:
        """Python's version as in the tags of wheels, such as ``311``."""
        return "".join(map(str, self.environment.release[:2]))

    def options(self) -> list[str]:
        """uv's options for wheels of this Python. Raises PackageError if uv does not support its platform."""
        words = ["--python", self.interpreter]
        if self.foreign:
            version = ".".join(map(str, self.environment.release))
            words += ["--python-version", version, "--python-platform", self._platform()]
        return words

    def _platform(self) -> str:
        machine = self.environment.machine
        libc, version = self._libc()
        if machine not in _MACHINES:
            raise PackageError(f"No packages can be got for kernels on {machine or 'an unknown machine'}")
        if libc == "musl":
            return f"{machine}-unknown-linux-musl"
        supported = _GLIBC[0]
        if version is not None:
            supported = max((minor for minor in _GLIBC if minor <= version), default=supported)
        return f"{machine}-manylinux_2_{supported}"

    def _libc(self) -> tuple[str, int | None]:
        """Return the C library, and the minor version of a glibc 2."""
        name, _, version = self.environment.libc.partition(" ")
        parts = version.split(".")
        return name, int(parts[1]) if name == "glibc" and len(parts) > 1 else None

    def tags(self) -> list[Tag]:
        """Return the wheel tags that this Python accepts, best first."""
        platforms = list(self._platforms())
        release = self.environment.release[:2]
        return [
            *cpython_tags(release, [f"cp{self.minor}"], platforms),
            *compatible_tags(release, f"cp{self.minor}", platforms),
        ]

    def _platforms(self) -> Iterator[str]:
        machine = self.environment.machine
        libc, version = self._libc()
        if libc == "musl":
            yield from (f"musllinux_1_{minor}_{machine}" for minor in range(9, -1, -1))
        else:
            for minor in range(version or _GLIBC[0], 4, -1):
                yield f"manylinux_2_{minor}_{machine}"
                if minor in _OLDEST_ALIASED:
                    yield f"{_OLDEST_ALIASED[minor]}_{machine}"
        yield f"linux_{machine}"


class _Step(msgspec.Struct, frozen=True):
    name: str
    version: str
    action: str


class _Plan(msgspec.Struct, frozen=True):
    changes: list[_Step]


class _File(msgspec.Struct, frozen=True):
    hashes: dict[str, str]
    name: str = ""
    url: str = ""
    path: str = ""
    size: int = 0

    @property
    def file_name(self) -> str:
        return self.name or unquote((urlsplit(self.url).path or self.path).rpartition("/")[2])


class _Locked(msgspec.Struct, frozen=True):
    name: str
    version: str
    wheels: list[_File] = []


class _Lock(msgspec.Struct, frozen=True):
    packages: list[_Locked] = []


@dataclass(frozen=True, slots=True)
class FoundWheel:
    """A required wheel. `size` of the file in bytes, 0 if the index does not say."""

    package: Distribution
    sha256: str
    size: int = 0

    @property
    def name(self) -> NormalizedName:
        """The package's canonical name."""
        return self.package.canonical

    @property
    def line(self) -> Line:
        """The requirement line for exactly this file."""
        return hashed_line(self.package, self.sha256)


class Uv:
    """uv with the operator's settings."""

    def __init__(self, settings: PackageSettings, secrets: frozenset[str] = frozenset()) -> None:
        self._settings = settings
        self._secrets = secrets_of(settings, secrets)
        self._configured: Mapping[str, str] | None = None

    async def resolve(
        self, change: Change, installed: Mapping[str, str], target: UvTarget, work: Path
    ) -> list[FoundWheel]:
        """Return the wheels that the change needs, with dependencies, while `installed` stays unchanged.

        Raises PackageNotFound, PackageConflict, PackageIndexUnavailable, PackageError and StorageFull.
        """
        packages = [Distribution(name, version) for name, version in installed.items()]
        seen = work / "seen"
        constraints = work / "constraints.txt"
        wanted = work / "wanted.txt"
        await asyncio.to_thread(_show, seen, packages)
        constraints.write_text(document([*map(pin_line, packages), *change.constraints]))
        wanted.write_text(document(each.line for each in change.install))
        plan = work / "plan.json"
        words = ["pip", "install", "--dry-run", "--output-format", "json", "--target", str(seen)]
        words += ["--constraints", str(constraints), "--requirements", str(wanted)]
        code, said = await self._run(target, work, words, plan)
        if code:
            raise await self._why(change, target, work, code, said)
        chosen = await asyncio.to_thread(_read_plan, plan)
        if len(chosen) > self._settings.most:
            raise PackageError(
                f"This would install {len(chosen)} packages; the operator allows {self._settings.most}"
                " (ServeApp.package_count)"
            )
        return await self._files(chosen, target, work)

    async def _files(self, chosen: Sequence[Distribution], target: UvTarget, work: Path) -> list[FoundWheel]:
        """Return the best fitting wheel of each of these packages."""
        if not chosen:
            return []
        code, said = await self._lock(map(pin_line, chosen), target, work)
        if code:
            raise _failure(code, said, [pin_line(each) for each in chosen])
        found = await asyncio.to_thread(_read_lock, work / LOCK, target)
        if {each.package for each in found} != set(chosen):
            raise PackageError("The index gave other packages than it had told of; try again")
        return found

    async def _lock(
        self, lines: Iterable[Line], target: UvTarget, work: Path, *, probe: bool = False
    ) -> tuple[int, str]:
        """Find the existing files for these requirements, without their dependencies.

        The result is in the file LOCK. For a `probe`, an empty result is not logged as a failure.
        """
        wanted = work / "alone.txt"
        lock = work / LOCK
        wanted.write_text(document(lines))
        lock.unlink(missing_ok=True)  # uv would keep the versions in it
        words = ["pip", "compile", "--no-deps", "--format", "pylock.toml", "--output-file", str(lock)]
        return await self._run(target, work, [*words, "--no-header", str(wanted)], probe=probe)

    async def unpack(
        self, found: Sequence[FoundWheel], target: UvTarget, work: Path, trees: Sequence[Path]
    ) -> None:
        """Download these wheels and unpack each into its own folder. Raises as `resolve`, and QuotaExceeded.

        One call downloads all of them into a scratch folder, because uv then downloads in parallel; a call
        for each wheel then needs no network. If the first fails, the others show the faulty wheel.
        """
        code, _ = await self._install(found, target, work, work / "all")
        for each, tree in zip(found, trees, strict=True):
            offline = [] if code else ["--offline"]
            failed, said = await self._install([each], target, work, tree, *offline)
            if failed:
                raise self._unsound(each, failed, said)

    async def _install(
        self, found: Sequence[FoundWheel], target: UvTarget, work: Path, folder: Path, *options: str
    ) -> tuple[int, str]:
        wheels = work / "wheels.txt"
        wheels.write_text(document(each.line for each in found))
        words = ["pip", "install", "--no-deps", "--require-hashes", "--link-mode", "hardlink", *options]
        return await self._run(target, work, [*words, "--target", str(folder), "--requirements", str(wheels)])

    def _unsound(self, found: FoundWheel, code: int, said: str) -> Exception:
        named = f"{found.name} {found.package.version}"
        if code == NO_SOLUTION and not is_full(said):
            return PackageError(
                f"The file that the index gave for {named} is not what it should be: its hash or its form is"
                " wrong, or it is not there. The gateway's log has the details"
            )
        return _failure(code, said, [found.package])

    async def _why(self, change: Change, target: UvTarget, work: Path, code: int, said: str) -> Exception:
        """Return the error that explains why a change has no solution, in uv's words."""
        if code != NO_SOLUTION or is_full(said):
            return _failure(code, said, change.install)
        alone, answer = await self._lock([wanted.line for wanted in change.install], target, work, probe=True)
        if alone == FAILED:
            return _failure(alone, answer, change.install)
        names = _listed(wanted.line for wanted in change.install)
        reason = derivation(answer if alone else said)
        words = f"uv says: {reason}" if reason else "The gateway's log has what uv says"
        if alone:
            return PackageNotFound(
                f"The index has no wheel of {names} for this kernel's Python, or not of each; packages that"
                f" come as source only are not built here. Check names and versions. {words}"
            )
        return PackageConflict(
            f"{names}: these versions don't go together, or not with what the session has already, or need"
            f" what the index has not: ask for all at once, or for other versions. {words}"
        )

    async def _run(
        self,
        target: UvTarget,
        work: Path,
        words: Sequence[str],
        output: Path | None = None,
        *,
        probe: bool = False,
    ) -> tuple[int, str]:
        """Return uv's exit code and the end of its output, which is logged if it failed."""
        command, environment = await self._command([*words, *target.options()], work)
        limits = ChildLimits(self._settings.timeout, work, 6 * self._settings.disk)
        code, said = await run(command, environment, limits, output)
        if code and not (probe and code == NO_SOLUTION):
            log_output("uv could not do what it was asked for", said, self._secrets)
        return code, said

    async def _command(self, words: Sequence[str], work: Path) -> tuple[list[str], dict[str, str]]:
        settings = self._settings
        own = {
            "PATH": os.defpath,
            "HOME": str(work),
            "TMPDIR": str(work),
            "LANG": "C.UTF-8",
            # Per install: its steps share their downloads, and nothing remains afterwards.
            "UV_CACHE_DIR": str(work / "uv"),
            "UV_NO_CONFIG": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_HTTP_RETRIES": "1",
            "UV_NO_PROGRESS": "1",
        }
        told = dict(settings.environment)
        configured = {"cert": told[_CERTIFICATES]} if told.get(_CERTIFICATES) else {}
        if settings.index or settings.links:
            # Only the operator's settings count; as variables, because a URL may contain a password.
            configured |= {"find-links": " ".join(settings.links), "no-index": str(not settings.index)}
            if settings.index:
                configured["index-url"] = settings.index
        else:
            configured = {**await self._of_pip(work), **configured}
        told = {name: value for name, value in told.items() if not name.startswith("PIP_")}
        return uv_command([*words, "--no-build", "--quiet", "--color", "never"], {**own, **told}, configured)

    async def _of_pip(self, work: Path) -> Mapping[str, str]:
        """Return pip's configuration on this machine, read once."""
        if self._configured is None:
            environment = {"PATH": os.defpath, "HOME": str(work), **self._settings.environment}
            try:
                self._configured = await asyncio.to_thread(pip_settings, environment=environment)
            except UnreadableSettings as error:
                # Without these settings uv would ask the public index even for private names.
                log_output("pip's configuration can't be read", str(error), self._secrets)
                raise PackageError(
                    "pip's configuration on the gateway's machine can't be read; the gateway's log says why"
                ) from error
            self._secrets |= secrets_of(self._settings, (), self._configured.values())
        return self._configured


def _failure(code: int, said: str, asked: Sequence[object]) -> Exception:
    """Return the error when uv gave up although there may be a solution."""
    names = _listed(map(str, asked))
    if is_full(said):
        return StorageFull("There is no room on the gateway's disk")
    if code == FAILED:
        return PackageIndexUnavailable(
            f"The package index does not answer as it should; try again later. Asked for: {names}."
            " The gateway's log has the details"
        )
    return PackageError(f"uv could not get {names}. The gateway's log says why")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)[:200]


def _show(folder: Path, installed: Sequence[Distribution]) -> None:
    """Create metadata that makes uv treat these packages as installed."""
    folder.mkdir()
    for package in installed:
        name = package.canonical.replace("-", "_")
        metadata = inside(folder, f"{name}-{package.version}.dist-info")
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"
        )
        (metadata / "RECORD").touch()


def _read(path: Path) -> bytes:
    """Return a file that uv wrote, with content from the index. Raises PackageError."""
    with path.open("rb") as file:
        data = file.read(MOST_ANSWER + 1)
    if len(data) > MOST_ANSWER:
        raise PackageError("The index's answer is too long; ask for fewer packages at once")
    return data


def _read_plan(path: Path) -> list[Distribution]:
    """Return the packages to install. Raises PackageError."""
    try:
        steps = msgspec.json.decode(_read(path), type=_Plan).changes
        if any(step.action != "installed" for step in steps):
            raise ValueError("something is to be replaced")
        return [_package(step.name, step.version) for step in steps]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _unusable(error) from error


def _read_lock(path: Path, target: UvTarget) -> list[FoundWheel]:
    """Return the best fitting file of each package. Raises PackageError."""
    try:
        told = msgspec.convert(tomllib.loads(_read(path).decode()), type=_Lock)
        ranks = {tag: rank for rank, tag in enumerate(target.tags())}
        return [_found(each, ranks) for each in told.packages]
    except (msgspec.MsgspecError, ValueError, RecursionError, InvalidInput) as error:
        raise _unusable(error) from error


def _found(locked: _Locked, ranks: Mapping[Tag, int]) -> FoundWheel:
    file = min(locked.wheels, key=lambda file: _rank(file, ranks))
    package = _package(locked.name, locked.version)
    digest = file.hashes.get("sha256", "").lower()
    hashed_line(package, digest)  # raises unless it is a hash
    return FoundWheel(package, digest, max(file.size, 0))


def _rank(file: _File, ranks: Mapping[Tag, int]) -> int:
    """Rank a file by its tags, the best is lowest; all files that uv names fit.

    The index chooses the name, whose tags are a product: a kilobyte of them stands for millions.
    """
    counts = [len(field.split(".")) for field in file.file_name.rsplit("-", 3)[1:]]
    if math.prod(counts) > MOST_TAGS:
        return len(ranks)
    try:
        tags = parse_wheel_filename(file.file_name)[3]
    except InvalidWheelFilename:
        return len(ranks)
    return min(ranks.get(tag, len(ranks)) for tag in tags)


def _package(name: str, version: str) -> Distribution:
    package = Distribution.read(name, version)
    return Distribution(package.canonical, package.version)


def _unusable(error: Exception) -> PackageError:
    logger.warning("uv's result can't be used: %s", ascii(error)[:500])
    return PackageError(
        "The index has a package whose name, version or hash can't be used; the gateway's log says which"
    )
