"""pip as a program: which wheels a list of requirements needs, and their files. Nothing is built by it.

pip runs under an interpreter that stands for the kernel's, without that interpreter's own packages: what the
kernel has is shown to it as empty metadata, so that it is taken for installed and not downloaded. Sources are
never built, so no code of a package runs here. Source of the report: pip's "Installation Report" page.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path

import msgspec
from packaging.utils import canonicalize_name

from gateway.errors import PackageConflict, PackageError, PackageIndexUnavailable, PackageNotFound
from gateway.packages.child import Bounds, run
from gateway.packages.requirements import Change
from gateway.packages.settings import PackageSettings
from gateway.record.errors import StorageFull
from kernels.limits import MIB

_MISSING = re.compile(r"No matching distribution found for (?P<what>[^\n]+)")
_INDEX = re.compile(
    r"HTTP error|HTTPError|ConnectionError|NewConnectionError|ReadTimeout|ConnectTimeout|Max retries exceeded"
    r"|connection broken|ProtocolError|timed out|SSLError",
)
# In pip's own log alone: it takes an index that fails for one that has nothing.
_UNFETCHED = re.compile(r"Could not fetch URL (?![^\n]*\b(?:403|404|410) Client Error)[^\n]+")
_MOST_LOG = 4 * MIB
_DAMAGED = re.compile(r"DO NOT MATCH THE HASHES|Hash mismatch|HashMismatch|has an invalid wheel|is invalid")
_CREDENTIALS = re.compile(r"//[^/\s@]+@")
LOG = "pip.log"
_QUIET = ("--quiet", "--no-input", "--disable-pip-version-check", "--only-binary", ":all:", "--retries", "1")
_ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True, slots=True)
class Target:
    """A kernel's Python: `packages` are its environment's versions by canonical names.

    `interpreter`: a program of this machine that pip runs under. `foreign`: it is not the kernel's own, so
    pip is told by `machine` and `libc` which wheels fit.
    """

    python: str
    packages: Mapping[str, str]
    interpreter: str
    foreign: bool = False
    machine: str = ""
    libc: str = ""

    @property
    def minor(self) -> str:
        """Python's version as wheels' tags have it, such as ``311``."""
        return "".join(self.python.split(".")[:2])

    def options(self) -> list[str]:
        """pip's options that choose the wheels of this Python."""
        if not self.foreign:
            return []
        abis = (f"cp{self.minor}", "abi3", "none")
        return [
            *("--implementation", "cp", "--python-version", self.python),
            *(word for abi in abis for word in ("--abi", abi)),
            *(word for platform in self._platforms() for word in ("--platform", platform)),
        ]

    def _platforms(self) -> Iterator[str]:
        libc, _, version = self.libc.partition(" ")
        latest = version.partition(".")[2]
        for minor in range(int(latest) if libc == "glibc" and latest.isdecimal() else 17, 4, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            if minor in _ALIASES:
                yield f"{_ALIASES[minor]}_{self.machine}"
        yield f"linux_{self.machine}"


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

    name: str
    version: str
    url: str
    sha256: str | None


class Pip:
    """pip with the operator's settings."""

    def __init__(self, settings: PackageSettings) -> None:
        self._settings = settings
        spec = find_spec("pip")
        self._runner = None if spec is None or spec.origin is None else Path(spec.origin).parent

    async def resolve(
        self, change: Change, installed: Mapping[str, str], target: Target, work: Path
    ) -> list[Found]:
        """What is to be got to make the change, with all that needs, while `installed` stays as it is.

        Raises PackageNotFound, PackageConflict, PackageIndexUnavailable, PackageError and StorageFull.
        """
        await asyncio.to_thread(_show, work / "seen", installed)
        report = work / "report.json"
        constraints = work / "constraints.txt"
        bounds = [f"{name}=={version}\n" for name, version in installed.items()]
        bounds += [f"{bound}\n" for bound in change.constraints]
        constraints.write_text("".join(bounds))
        names = [str(requirement) for requirement in change.install]
        await self._run(
            target,
            work,
            [
                *("install", "--dry-run", *_QUIET, "--report", str(report), "-c", str(constraints)),
                *target.options(),
                *names,
            ],
            names,
        )
        try:
            items = msgspec.json.decode(await asyncio.to_thread(report.read_bytes), type=_Report).install
        except (OSError, msgspec.MsgspecError) as error:
            raise PackageError(f"pip's report can't be read: {error}") from error
        return [
            Found(
                canonicalize_name(item.metadata.name),
                item.metadata.version,
                item.download_info.url,
                item.download_info.archive_info.hashes.get("sha256"),
            )
            for item in items
        ]

    async def fetch(self, found: Sequence[Found], target: Target, work: Path) -> dict[Path, str]:
        """Download these wheels; the files with their SHA-256. Raises as `resolve`."""
        lines = [f"{each.name} @ {each.url}" for each in found]
        hashed = all(each.sha256 for each in found)
        if hashed:
            pairs = zip(lines, found, strict=True)
            lines = [f"{line} --hash=sha256:{each.sha256}" for line, each in pairs]
        listed, folder = work / "wheels.txt", work / "wheels"
        listed.write_text("\n".join(lines) + "\n")
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
            raise _explain(_CREDENTIALS.sub("//", said + unfetched), names)

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


def _show(folder: Path, installed: Mapping[str, str]) -> None:
    """Make metadata by which pip takes these for installed."""
    for name, version in installed.items():
        metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "RECORD").touch()


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


def _explain(said: str, names: Sequence[str]) -> PackageError | StorageFull:
    """What pip's words mean for whoever asked."""
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    brief = " ".join(errors)[:1000] or said[-500:].strip()
    asked = ", ".join(names)[:200]
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return StorageFull("There is no room on the gateway's disk")
    if _DAMAGED.search(said):
        return PackageError(f"A file that the index gave for {asked} is not what it should be: {brief}")
    if "Could not fetch URL" in said or _INDEX.search(said):
        return PackageIndexUnavailable(
            f"The package index does not answer as it should; try again later. Asked for: {asked}. {brief}"
        )
    if "ResolutionImpossible" in said or "conflicting dependencies" in said:
        return PackageConflict(
            f"The versions asked for ({asked}) don't go together, or not with what the session has already:"
            " ask for all at once, or for other versions"
        )
    if (missing := _MISSING.search(said)) is not None:
        return PackageNotFound(
            f"The index has no wheel of {missing['what'].strip()!r} for this kernel's Python; packages that"
            " come as source only are not built here. Check the name and the version"
        )
    return PackageError(f"pip could not get {asked}: {brief}")
