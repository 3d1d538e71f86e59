"""From requirements to wheels in the cache, by pip where the cache does not know: one for all sessions.

It applies the operator's policy, keeps the number of installs under way bounded, and lets two that want the
same wait for one another. It knows kernels only as ``pip.Target`` and gives no kernel anything: ``session``
does. Every child process of it ends with the task that waits for it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec
from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from gateway.errors import PackageConflict, PackageError, QueueFull
from gateway.packages.cache import Entry, Wheel, WheelCache
from gateway.packages.child import Bounds, run, too_large
from gateway.packages.pip import Found, Pip, Target
from gateway.packages.requirements import Change
from gateway.packages.settings import PackageSettings
from gateway.packages.unpack import TOO_LARGE
from gateway.record.errors import StorageError, StorageFull
from kernels.errors import InvalidInput
from kernels.kernel import Kernel
from kernels.provisioners.folders import remove_tree
from kernels.specs.catalog import KernelspecCatalog

MOST_AT_ONCE, MOST_WAITING = 2, 16

T = TypeVar("T")


class Installer:
    """Gets wheels. `root` is its folder, on the file system that kernels' folders of packages are on."""

    def __init__(self, settings: PackageSettings, catalog: KernelspecCatalog, root: Path) -> None:
        self.settings = settings
        self.root = root
        self.cache = WheelCache(root, settings.cache, settings.lock_life)
        self._catalog = catalog
        self._pip = Pip(settings)
        self._work = root / "work"
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(mode=0o700)
        self._free = asyncio.Semaphore(MOST_AT_ONCE)
        self._waiting = 0
        self._same: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changing = asyncio.Lock()

    def target(self, kernel: Kernel) -> Target:
        """What wheels must fit. Raises InvalidInput for a kernel that can't have any."""
        environment = kernel.environment
        if environment is None:
            raise InvalidInput("Packages can be installed into sessions with a Python kernel only")
        if kernel.packages is None:
            raise InvalidInput("This kernel was started when no packages were allowed; restart it first")
        packages = {str(canonicalize_name(name)): v for name, v in environment.packages.items()}
        program = self._catalog.get_kernel_spec(kernel.profile.kernelspec).argv[0]
        foreign = bool(kernel.image)
        return Target(
            environment.python,
            packages,
            sys.executable if foreign else program,
            foreign,
            environment.machine,
            environment.libc,
        )

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
            sorted(map(str, wanted.install)),
            sorted(map(str, wanted.constraints)),
            sorted(kept.items()),
            sorted(target.packages.items()),
            (target.python, target.machine, target.libc, target.foreign),
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
                await asyncio.shield(remove_tree(work))
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
        known = {each: self.cache.get(_key(each.sha256, target)) for each in found if each.sha256}
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
        module = ["-P", "-m", "gateway.packages.unpack"]
        code, said = await run([sys.executable, *module, str(settings.disk), *pairs], env, bounds)
        if code == TOO_LARGE:
            raise too_large(settings.disk)
        if code:
            if "No space left on device" in said:
                raise StorageFull("There is no room on the gateway's disk")
            raise PackageError(f"A wheel can't be unpacked: {said.strip().splitlines()[-1][:500]}")
        if not target.foreign or target.minor == f"{sys.version_info[0]}{sys.version_info[1]}":
            trees = [str(entry.tree) for entry in entries]
            compiling = ["-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
            # A file that does not compile is no fault: some are for other versions of Python.
            await run([target.interpreter, *compiling, *trees], env, bounds)

    async def _locked(self, work: Callable[..., T], *arguments: object) -> T:
        """Work on the cache in a thread, one at a time, to its end."""
        async with self._changing:
            return await finish(asyncio.to_thread(work, *arguments))

    async def link(self, wheel: Wheel, site: Path) -> list[str]:
        """Give a wheel's files to a kernel's folder; see `WheelCache.link`."""
        return await self._locked(self.cache.link, wheel, site)

    def tidy(self, kernels: Collection[str], sessions: Collection[int]) -> None:
        """Remove what a former gateway left of kernels and sessions but these. Blocks; for the start."""
        for folder in self.sites.iterdir():
            if folder.name not in kernels:
                shutil.rmtree(folder, ignore_errors=True)
        for state in self.states.iterdir():
            if state.stem not in {str(session) for session in sessions}:
                state.unlink()

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


async def finish(work: Awaitable[T]) -> T:
    """The result of work that is not to be left half done: a cancellation waits for its end."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def storage_error(error: OSError) -> StorageError:
    """What a file system's refusal means."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFull("There is no room on the gateway's disk for these packages")
    return StorageError(f"The packages can't be kept: {error.strerror}")


def _unmet(change: Change, installed: Mapping[str, str], environment: Mapping[str, str]) -> list[Requirement]:
    """What is not there already. Raises PackageConflict for what would replace a part of the environment."""
    unmet = []
    for requirement in change.install:
        name = canonicalize_name(requirement.name)
        version = environment.get(name) or installed.get(name)
        if name in environment and requirement.extras:
            raise PackageConflict(
                f"{name} is part of the kernel's environment, so its extras can't be added: name the packages"
                f" that {requirement} stands for"
            )
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            if not requirement.extras and not (change.upgrade and name in installed):
                continue
        elif name in environment:
            raise PackageConflict(
                f"The kernel's environment has {name} {version}, which can't be replaced by {requirement}:"
                " use that version, or ask the operator for a kernel with another"
            )
        unmet.append(requirement)
    return unmet


def _key(digest: str, target: Target) -> str:
    return f"{digest}-{target.minor}"


def _entry(path: Path, digest: str, missing: Sequence[Found], target: Target, work: Path) -> Entry:
    """The entry to be of a downloaded wheel. Raises PackageError when it is none that was asked for."""
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise PackageError(f"The index gave {path.name[:100]!r}, which is no wheel") from error
    if name not in {each.name for each in missing}:
        raise PackageError(f"The index gave {path.name[:100]!r}, which nobody asked for")
    folder = work / "trees" / _key(digest, target)
    (folder / "tree").mkdir(parents=True)
    return Entry(name, str(version), digest, _key(digest, target), folder)
