"""Turns requirements into wheels in the cache, using uv for missing ones; shared by all sessions.

It applies the operator's policy, limits the number of concurrent installs, and lets identical requests wait
for one another. It knows kernels only as ``uv.Target``; ``session`` puts packages into kernels. Wheels are
compiled afterwards, one at a time, because that takes longer than everything else together. Each child
process ends with the task that waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from cellgate.errors import PackageConflict, PackageError, QuotaExceeded, StorageError, not_written
from cellgate.fairness.turns import Turns
from cellgate.files.folder_users import FolderUsers
from cellgate.packages.cache import CacheEntry, Wheel, WheelCache, entry_key
from cellgate.packages.child import ChildLimits, run, too_large
from cellgate.packages.places import inside
from cellgate.packages.requirements import Change, PackageWish
from cellgate.packages.settings import PackageSettings
from cellgate.packages.uv import FoundWheel, Uv, UvTarget
from cellgate.packages.wheel_checks import UnsoundWheel, tidy
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.leftovers import Leftovers, make_way
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.specs.catalog import KernelspecCatalog

MOST_AT_ONCE = 2
MOST_WAITING = 16
PATIENCE = 600.0
"""Most seconds that a request waits for its turn."""
logger = logging.getLogger(__name__)

T = TypeVar("T")


class Installer:
    """Provides wheels. `root`: its folder, on the same file system as the kernels' package folders.

    `secrets` are masked in the installer output that is logged.
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
        self._uv = Uv(settings, secrets)
        self.leftovers = leftovers
        self.users = FolderUsers()
        """Sessions whose kernels share a folder of packages, because one was branched from the other."""
        self._work = root / "work"
        make_way(self._work)
        self._work.mkdir(mode=0o700)
        refusal = "Too many installs are in progress or wait already; try again later"
        self._turns = Turns(MOST_AT_ONCE, MOST_WAITING, PATIENCE, refusal, retry_after=10)
        self._compiling = asyncio.Semaphore(1)
        self._same: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """Each principal's identical requests, of which at most one waits for a turn."""
        self._installing: dict[str, asyncio.Event] = {}
        """Requests in their turn, of all principals, with a future for the end of each."""
        self._changing = asyncio.Lock()
        self._tasks = Supervisor()

    def target(self, kernel: Kernel) -> UvTarget:
        """Return the kernel's Python, which wheels must fit. Raises InvalidInput without packages for it."""
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
        return UvTarget(environment, sys.executable if foreign else program, foreign)

    async def obtain(
        self, principal: str, change: Change, installed: Mapping[str, str], target: UvTarget
    ) -> list[Wheel]:
        """Return the wheels that `change` adds to those of kernel and session, after caching them.

        `principal`: the session's owner.

        `installed`: the session's versions by canonical name. Raises PackagesNotAllowed, PackageError and its
        subclasses, QuotaExceeded, QueueFull, StorageError.
        """
        self.settings.check(change.names)
        unmet = _unmet(change, installed, target.packages)
        if not unmet:
            return []
        wanted = replace(change, install=tuple(unmet))
        kept = {name: version for name, version in installed.items() if name not in wanted.names}
        digest = self._digest(wanted, kept, target)
        async with self._same.setdefault((principal, digest), asyncio.Lock()):
            while True:
                # Only a request in its turn is waited for: another principal's may not get one for long.
                if (running := self._installing.get(digest)) is not None:
                    await running.wait()
                wheels = await self._cached(change, digest)
                if wheels is not None:
                    return wheels
                if digest in self._installing:
                    continue
                async with self._turn(principal) as work:
                    if digest in self._installing:
                        continue  # it got its turn while this one was waiting for its own
                    with self._telling(digest):
                        wheels = await self._cached(change, digest)
                        if wheels is None:
                            wheels = await self._get(wanted, {**kept, **target.packages}, target, work)
                            wheels.sort(key=lambda wheel: wheel.name)
                            await self._locked(self.cache.keep_lock, digest, wheels)
                        return wheels

    async def _cached(self, change: Change, digest: str) -> list[Wheel] | None:
        """Return the wheels of a recently resolved request; an upgrade is resolved each time."""
        return None if change.upgrade else await asyncio.to_thread(self.cache.lock, digest)

    @contextmanager
    def _telling(self, digest: str) -> Iterator[None]:
        """Show identical requests that this one has its turn, until it is over."""
        over = self._installing[digest] = asyncio.Event()
        try:
            yield
        finally:
            del self._installing[digest]
            over.set()

    def _digest(self, wanted: Change, kept: Mapping[str, str], target: UvTarget) -> str:
        """Return a hash of everything that a lock depends on: an equal request can reuse the lock."""
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
    async def _turn(self, principal: str) -> AsyncGenerator[Path, None]:
        """Yield a work folder at this install's turn. Raises QueueFull."""
        async with self._turns.turn(principal), self._folder() as work:
            yield work

    @asynccontextmanager
    async def _folder(self) -> AsyncGenerator[Path, None]:
        """Yield a temporary work folder. Raises StorageError."""
        work: Path | None = None
        try:
            work = Path(mkdtemp(dir=self._work))
            yield work
        except OSError as error:
            raise storage_error(error) from error
        finally:
            if work is not None:
                await self.leftovers.remove(work)

    async def _get(
        self, wanted: Change, installed: Mapping[str, str], target: UvTarget, work: Path
    ) -> list[Wheel]:
        found = await self._uv.resolve(wanted, installed, target, work)
        known = {each: self.cache.get(entry_key(each.sha256, target.minor)) for each in found}
        missing = [each for each in found if known[each] is None]
        wheels = [wheel for wheel in known.values() if wheel is not None]
        if missing:
            # These sizes are compressed; unpacked, the wheels take even more.
            if sum(each.size for each in missing) > self.settings.disk:
                raise too_large(self.settings.disk)
            entries = [_entry(each, target, work) for each in missing]
            await self._uv.unpack(missing, target, work, [entry.tree for entry in entries])
            await asyncio.to_thread(_tidy, entries, target.interpreter, self.settings.disk)
            wheels += await self._locked(self.cache.adopt, entries)
            await self._locked(self.cache.evict, wheels)
        return wheels

    async def compile(self, wheels: Sequence[Wheel], target: UvTarget) -> list[Wheel]:
        """Compile the wheels that are not compiled yet; return all that are now. The rest stay as they were.

        Only an interpreter of the kernel's own version can compile them.
        """
        ours = f"{sys.version_info[0]}{sys.version_info[1]}"
        if target.foreign and target.minor != ours:
            return []
        compiled = []
        for wheel in wheels:
            async with self._compiling:
                found = await asyncio.to_thread(self.cache.get, wheel.key)
                if found is not None and not found.compiled:
                    await self._compile(found, target)
                    found = await asyncio.to_thread(self.cache.get, wheel.key)
            if found is not None and found.compiled:
                compiled.append(found)
        return compiled

    async def _compile(self, wheel: Wheel, target: UvTarget) -> None:
        tree = self.cache.tree(wheel).absolute()
        try:
            async with self._folder() as work:
                prefix = work / "bytecode"
                # Without environment variables and site packages, so that only Python's own code runs.
                command = [target.interpreter, "-I", "-S", "-X", f"pycache_prefix={prefix}"]
                command += ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(tree)]
                limits = ChildLimits(self.settings.timeout, work, 2 * self.settings.disk, nice=True)
                # The exit code proves nothing: some files of a package are for other versions of Python.
                await run(command, {}, limits)
                compiled = prefix.joinpath(*tree.parts[1:])
                compiled.mkdir(parents=True, exist_ok=True)
                await self._locked(self.cache.add_bytecode, wheel, compiled)
        except (PackageError, QuotaExceeded, StorageError) as error:
            logger.warning("%s %s could not be compiled: %s", wheel.name, wheel.version, error.message)

    async def _locked(self, work: Callable[..., T], *arguments: object) -> T:
        """Do work on the cache in a thread, one call at a time, to completion even if cancelled."""
        async with self._changing:
            return await self._tasks.complete(asyncio.to_thread(work, *arguments), "work on the cache")

    async def link(self, wheel: Wheel, site: Path, but: Collection[str] = ()) -> list[str]:
        """Link a wheel's files into a kernel's folder; see `WheelCache.link`."""
        return await self._locked(self.cache.link, wheel, site, but)

    async def tidy(self, kernels: Collection[str], sessions: Collection[int]) -> None:
        """At startup: remove a previous gateway's files, except for these kernels and sessions."""
        await self.leftovers.sweep(self.root)
        await self.leftovers.empty(self.sites, kernels)
        await self.leftovers.empty(self.states, {f"{session}.json" for session in sessions})

    @property
    def sites(self) -> Path:
        """The parent of the kernels' package folders."""
        return site_folder(self.root)

    @property
    def states(self) -> Path:
        """The folder of the files that list each session's packages."""
        folder = self.root / "sessions"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


def site_folder(root: Path) -> Path:
    """Return the parent of the kernels' package folders, below an installer's `root`."""
    folder = root / "sites"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def storage_error(error: OSError) -> StorageError:
    """Return the error for an OSError while packages are stored."""
    full = "There is no room on the gateway's disk for these packages"
    return not_written(error, full, "The packages can't be kept")


def _unmet(change: Change, installed: Mapping[str, str], environment: Mapping[str, str]) -> list[PackageWish]:
    """Return the requirements not met yet. Raises PackageConflict if one would replace a kernel's part."""
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


def _entry(found: FoundWheel, target: UvTarget, work: Path) -> CacheEntry:
    """Return a future cache entry for a wheel, with an empty tree."""
    key = entry_key(found.sha256, target.minor)
    folder = inside(work, key)
    entry = CacheEntry(found.name, found.package.version, found.sha256, key, folder)
    entry.tree.mkdir(parents=True)
    return entry


def _tidy(entries: Sequence[CacheEntry], interpreter: str, most: int) -> None:
    """Make unpacked wheels fit to be shared. Raises PackageError and QuotaExceeded."""
    total = 0
    for entry in entries:
        try:
            total += tidy(entry.tree, interpreter)
        except UnsoundWheel as error:
            logger.warning("The wheel of %s %s is not sound: %s", entry.name, entry.version, error)
            raise PackageError(
                f"The wheel of {entry.name} {entry.version} is not sound, so it is not installed"
            ) from error
    if total > most:
        raise too_large(most)
