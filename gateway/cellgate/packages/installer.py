"""From requirements to wheels in the cache, by pip where the cache does not know: one for all sessions.

It applies the operator's policy, keeps the number of installs under way bounded, and lets two that want the
same wait for one another. It knows kernels only as ``pip.Target`` and gives no kernel anything: ``session``
does. Every child process of it ends with the task that waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from cellgate.packages.cache import Entry, Wheel, WheelCache, entry_key
from cellgate.packages.child import Bounds, run, too_large
from cellgate.packages.pip import Found, Pip, Target
from cellgate.packages.places import inside
from cellgate.packages.requirements import Change, Wanted
from cellgate.packages.settings import PackageSettings
from cellgate.packages.unpack import TOO_LARGE
from cellgate.packages.words import log_output, secrets_of
from cellgate.wire.errors import (
    PackageConflict,
    PackageError,
    QueueFull,
    StorageError,
    StorageFull,
    not_written,
)
from cellgate_kernels.distributions import Distribution
from cellgate_kernels.errors import InvalidInput
from cellgate_kernels.kernel import Kernel
from cellgate_kernels.leftovers import Leftovers, make_way
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.tasks import Supervisor

MOST_AT_ONCE, MOST_WAITING = 2, 16
_NUMBER = re.compile(r"[0-9]{1,4}(?= )", re.ASCII)

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Installer:
    """Gets wheels. `root` is its folder, on the file system that kernels' folders of packages are on.

    `secrets` are masked in what the log tells of an installer's output.
    """

    def __init__(
        self,
        settings: PackageSettings,
        catalog: KernelspecCatalog,
        root: Path,
        leftovers: Leftovers,
        secrets: frozenset[str] = frozenset(),
    ) -> None:
        self.settings = settings
        self.root = root
        self.cache = WheelCache(root, settings.cache, settings.lock_life)
        self._catalog = catalog
        self._pip = Pip(settings, secrets)
        self._secrets = secrets_of(settings, secrets)
        self.leftovers = leftovers
        self._work = root / "work"
        make_way(self._work)
        self._work.mkdir(mode=0o700)
        self._free = asyncio.Semaphore(MOST_AT_ONCE)
        self._waiting = 0
        self._same: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changing = asyncio.Lock()
        self._tasks = Supervisor()

    def target(self, kernel: Kernel) -> Target:
        """What wheels must fit. Raises InvalidInput for a kernel that can't have any."""
        environment = kernel.environment
        if environment is None:
            raise InvalidInput(
                "Packages can be installed into a session with a Python kernel only. If this is one, it could"
                " not be asked what it has when it started: restart it and try again"
            )
        if kernel.packages is None:
            raise InvalidInput("This kernel was started when no packages were allowed; restart it first")
        program = self._catalog.get_kernel_spec(kernel.profile.kernelspec).argv[0]
        foreign = bool(kernel.image)
        return Target(environment, sys.executable if foreign else program, foreign)

    async def obtain(self, change: Change, installed: Mapping[str, str], target: Target) -> list[Wheel]:
        """The wheels that `change` adds to what the kernel and the session have, from now on in the cache.

        `installed` are the session's versions by canonical names. Raises PackagesNotAllowed, PackageError and
        its kin, QuotaExceeded, QueueFull, StorageError.
        """
        self.settings.check(change.names)
        unmet = _unmet(change, installed, target.packages)
        if not unmet:
            return []
        wanted = replace(change, install=tuple(unmet))
        kept = {name: version for name, version in installed.items() if name not in wanted.names}
        digest = self._digest(wanted, kept, target)
        same = self._same.setdefault(digest, asyncio.Lock())
        async with same:
            wheels = None if change.upgrade else await asyncio.to_thread(self.cache.lock, digest)
            if wheels is None:
                async with self._turn() as work:
                    wheels = await self._get(wanted, {**kept, **target.packages}, target, work)
                    wheels.sort(key=lambda wheel: wheel.name)
                await self._locked(self.cache.keep_lock, digest, wheels)
        return wheels

    def _digest(self, wanted: Change, kept: Mapping[str, str], target: Target) -> str:
        """What a lock depends on: who else wants the same for the same kernel may use it."""
        known = (
            sorted(each.line for each in wanted.install),
            sorted(wanted.constraints),
            sorted(kept.items()),
            sorted(target.packages.items()),
            (target.environment.python, target.environment.machine, target.environment.libc, target.foreign),
            (self.settings.index, self.settings.links),
        )
        return sha256(msgspec.json.encode(known)).hexdigest()

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[Path, None]:
        """A folder to work in, when it is this install's turn. Raises QueueFull."""
        if self._waiting >= MOST_WAITING:
            raise QueueFull(f"{MOST_WAITING} installs wait already; try again later", retry_after=10)
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            work = Path(mkdtemp(dir=self._work))
            try:
                yield work
            except OSError as error:
                raise storage_error(error) from error
            finally:
                await self.leftovers.remove(work)
        finally:
            self._free.release()

    async def _get(
        self, wanted: Change, installed: Mapping[str, str], target: Target, work: Path
    ) -> list[Wheel]:
        found = await self._pip.resolve(wanted, installed, target, work)
        if len(found) > self.settings.most:
            raise PackageError(
                f"This would install {len(found)} packages; the operator allows {self.settings.most}"
                " (ServeApp.package_count)"
            )
        known = {each: self.cache.get(entry_key(each.sha256, target.minor)) for each in found if each.sha256}
        missing = [each for each in found if known.get(each) is None]
        wheels = [wheel for wheel in known.values() if wheel is not None]
        if missing:
            files = await self._pip.fetch(missing, target, work)
            entries = [_entry(path, digest, missing, target, work) for path, digest in files.items()]
            await self._unpack(list(files), entries, target, work)
            wheels += await self._locked(self.cache.adopt, entries)
            await self._locked(self.cache.evict, wheels)
        return wheels

    async def _unpack(
        self, files: Sequence[Path], entries: Sequence[Entry], target: Target, work: Path
    ) -> None:
        settings = self.settings
        bounds = Bounds(settings.timeout, work, 6 * settings.disk)
        pairs = [str(path) for pair in zip(files, (e.tree for e in entries), strict=True) for path in pair]
        env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LANG": "C.UTF-8", "HOME": str(work)}
        module = ["-P", "-m", "cellgate.packages.unpack"]
        code, said = await run([sys.executable, *module, str(settings.disk), *pairs], env, bounds)
        if code == TOO_LARGE:
            raise too_large(settings.disk)
        if code:
            log_output("A wheel can't be unpacked", said, self._secrets)
            if "No space left on device" in said:
                raise StorageFull("There is no room on the gateway's disk")
            raise PackageError(f"The wheel of {_refused(said, entries)} is not sound, so it is not installed")
        if not target.foreign or target.minor == f"{sys.version_info[0]}{sys.version_info[1]}":
            trees = [str(entry.tree) for entry in entries]
            compiling = ["-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
            # A file that does not compile is no fault: some are for other versions of Python.
            await run([target.interpreter, *compiling, *trees], env, bounds)

    async def _locked(self, work: Callable[..., T], *arguments: object) -> T:
        """Work on the cache in a thread, one at a time, to its end."""
        async with self._changing:
            return await self._tasks.complete(asyncio.to_thread(work, *arguments), "work on the cache")

    async def link(self, wheel: Wheel, site: Path) -> list[str]:
        """Give a wheel's files to a kernel's folder; see `WheelCache.link`."""
        return await self._locked(self.cache.link, wheel, site)

    async def tidy(self, kernels: Collection[str], sessions: Collection[int]) -> None:
        """At the start: remove what a former gateway left, but of these kernels and sessions."""
        await self.leftovers.sweep(self.root)
        await self.leftovers.empty(self.sites, kernels)
        await self.leftovers.empty(self.states, {f"{session}.json" for session in sessions})

    @property
    def sites(self) -> Path:
        """Where each kernel has its folder of packages."""
        return site_folder(self.root)

    @property
    def states(self) -> Path:
        """Where it is written what each session has."""
        folder = self.root / "sessions"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


def site_folder(root: Path) -> Path:
    """Where kernels have their folders of packages, below an installer's `root`."""
    folder = root / "sites"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def storage_error(error: OSError) -> StorageError:
    """What a file system's refusal means."""
    full = "There is no room on the gateway's disk for these packages"
    return not_written(error, full, "The packages can't be kept")


def _unmet(change: Change, installed: Mapping[str, str], environment: Mapping[str, str]) -> list[Wanted]:
    """What is not there already. Raises PackageConflict for what would replace a part of the environment."""
    unmet = []
    for wanted in change.install:
        name = wanted.name
        version = environment.get(name) or installed.get(name)
        if name in environment and wanted.extras:
            raise PackageConflict(
                f"{name} is part of the kernel's environment, so its extras can't be added: name the packages"
                f" that {wanted} stands for"
            )
        if version is not None and wanted.specifier.contains(version, prereleases=True):
            if not wanted.extras and not (change.upgrade and name in installed):
                continue
        elif name in environment:
            raise PackageConflict(
                f"The kernel's environment has {name} {version}, which can't be replaced by {wanted}:"
                " use that version, or ask the operator for a kernel with another"
            )
        unmet.append(wanted)
    return unmet


def _refused(said: str, entries: Sequence[Entry]) -> str:
    """Which package the unpacking refused, by the number in its last line; all of them when there is none."""
    lines = said.strip().splitlines()
    match = _NUMBER.match(lines[-1]) if lines else None
    number = len(entries) if match is None else int(match[0])
    chosen = entries[number : number + 1] or entries
    return ", ".join(f"{entry.name} {entry.version}" for entry in chosen)[:200]


def _entry(path: Path, digest: str, missing: Sequence[Found], target: Target, work: Path) -> Entry:
    """The entry to be of a downloaded wheel. Raises PackageError when it is none that was asked for."""
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
        package = Distribution.read(name, str(version))
    except (InvalidWheelFilename, ValueError) as error:
        logger.warning("The index gave a file that is no wheel: %s", ascii(path.name)[:300])
        raise PackageError(
            "The index gave a file that is no wheel; the gateway's log has its name"
        ) from error
    if package.canonical not in {each.name for each in missing}:
        raise PackageError(f"The index gave {package.canonical}, which nobody asked for")
    key = entry_key(digest, target.minor)
    folder = inside(work / "trees", key)
    (folder / "tree").mkdir(parents=True)
    return Entry(package.canonical, package.version, digest, key, folder)
