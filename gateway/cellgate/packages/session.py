"""The packages of one session: installed into its kernel's package folder, moved with it, and removed.

`PackagesHost` holds the session's kernel; wheels come from ``installer``. Changes are made one at a time, in
tasks that end with the session. The list of installed packages is also written to a file, for a gateway that
adopts the kernel. A kernel with any isolation can only read its folder.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from cellgate.errors import PackageError, QuotaExceeded, ShuttingDown, storage
from cellgate.files.workspace import KeptFolder, WorkspaceStore
from cellgate.packages.cache import Wheel, unlink
from cellgate.packages.child import too_large
from cellgate.packages.installer import Installer, storage_error
from cellgate.packages.requirements import Change
from cellgate.packages.settings import not_allowed
from cellgate.packages.uv import UvTarget
from cellgate.wire.events import Package
from cellgate_kernels.base.errors import KernelDied, in_words
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.kernel.kernel import Kernel

logger = logging.getLogger(__name__)

Record = Callable[[str, Mapping[str, Any]], object]
"""Records an event of the session, given its type and fields."""


class Installed(msgspec.Struct, frozen=True):
    """An installed package of the session. `files`: relative to its package folder; `size` in bytes.

    `requested`: by name, not only needed by another package.
    """

    name: str
    version: str
    sha256: str
    size: int
    files: list[str]
    requested: bool = False

    def to_wire(self) -> Package:
        """Return the package as the wire has it."""
        return Package(name=self.name, version=self.version, sha256=self.sha256, requested=self.requested)


@dataclass(frozen=True, slots=True)
class PackagesChange:
    """The result of a change."""

    installed: tuple[Installed, ...] = ()
    removed: tuple[Installed, ...] = ()


class PackagesHost(Protocol):
    """The holder of a session's kernel, as far as packages are concerned."""

    @property
    def current(self) -> Kernel | None:
        """The kernel, if there is one."""

    @property
    def moving(self) -> asyncio.Lock:
        """Held while the session's files are moved: no packages are added or removed then."""

    @property
    def packages(self) -> SessionPackages:
        """The packages of this session."""


@dataclass(slots=True)
class _Folder:
    """The content of a folder of packages, which sessions share after a branch; changed one at a time."""

    installed: dict[str, Installed] = field(default_factory=dict)
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)


class SessionPackages:
    """The packages of a principal's session with this record id. Without an `installer`, it never has any."""

    def __init__(
        self,
        principal: str,
        session_id: int,
        installer: Installer | None,
        ids: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        self._principal = principal
        self.installer = installer
        self.session_id = session_id
        self.ids = ids
        self._folder = _Folder()
        self._tasks = Supervisor(ids)
        self._later = Supervisor(ids)
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the session is ending, so that no more changes are made."""
        return self._closed

    @property
    def busy(self) -> bool:
        """Whether something is being installed or removed."""
        return bool(self._tasks)

    @property
    def _installed(self) -> dict[str, Installed]:
        return self._folder.installed

    @property
    def _one_at_a_time(self) -> asyncio.Lock:
        return self._folder.one_at_a_time

    def models(self) -> list[Package]:
        """Return the session's packages on the wire, by name."""
        return [self._installed[name].to_wire() for name in sorted(self._installed)]

    def versions(self) -> dict[str, str]:
        """Return the session's versions by canonical name."""
        return {name: package.version for name, package in self._installed.items()}

    # Changing

    async def change(self, host: PackagesHost, change: Change, record: Record) -> PackagesChange:
        """Install and remove packages. Raises what `Installer.obtain` does, KernelDied and ShuttingDown.

        A change that is refused, fails or is cancelled leaves the session as it was.
        """
        task = self.begin(host, change, record)
        try:
            return await result_of(task)
        except asyncio.CancelledError:
            # Nobody waits for the result any more, so stop whatever can still be stopped.
            task.cancel()
            await asyncio.wait([task])
            raise

    def begin(self, host: PackagesHost, change: Change, record: Record) -> asyncio.Task[PackagesChange]:
        """Like `change`, but in a task owned by the session."""
        if self._closed:
            raise ShuttingDown("The session is ending")
        return self._tasks.share(self._change(host, change, record), "change of packages")

    async def _change(self, host: PackagesHost, change: Change, record: Record) -> PackagesChange:
        if self.installer is None:
            raise not_allowed()
        async with self._one_at_a_time:
            kernel = host.current
            if kernel is None:
                raise KernelDied("The session has no kernel at the moment; restart it, then install")
            target = self.installer.target(kernel)
            leaving = [name for name in change.uninstall if name in self._installed]
            staying = {name: v for name, v in self.versions().items() if name not in leaving}
            wheels = await self.installer.obtain(self._principal, change, staying, target)
            if not wheels and not leaving:
                return PackagesChange()
            self._check_room(wheels, staying)
            applying = self._apply(host, wheels, leaving, change.names, record)
            changed = await self._tasks.complete(applying, "placing packages")
            if not all(wheel.compiled for wheel in wheels):
                self._later.start(self._add_bytecode(host, wheels, target), "bytecode of packages")
            return changed

    async def _add_bytecode(self, host: PackagesHost, wheels: Sequence[Wheel], target: UvTarget) -> None:
        """Compile installed packages, so that the next import is faster. Nothing depends on it."""
        assert self.installer is not None
        compiled = await self.installer.compile(wheels, target)
        async with self._one_at_a_time, host.moving:
            site = self._site(host)
            for wheel in compiled:
                package = self._installed.get(wheel.name)
                if package is None or package.sha256 != wheel.sha256:
                    continue  # it was removed or replaced in between
                more = wheel.size - package.size
                if sum(each.size for each in self._installed.values()) + more > self.installer.settings.disk:
                    continue
                try:
                    files = await self.installer.link(wheel, site, package.files)
                except OSError as error:
                    logger.warning("A session gets no bytecode of %s: %s", wheel.name, in_words(error))
                    break
                known = [*package.files, *files]
                self._installed[wheel.name] = msgspec.structs.replace(package, files=known, size=wheel.size)
        await self._save()

    def _check_room(self, wheels: Sequence[Wheel], staying: Iterable[str]) -> None:
        assert self.installer is not None
        settings = self.installer.settings
        sizes = {name: self._installed[name].size for name in staying}
        sizes |= {wheel.name: wheel.size for wheel in wheels}
        if sum(sizes.values()) > settings.disk:
            raise too_large(settings.disk)
        if len(sizes) > settings.most:
            raise QuotaExceeded(
                f"The session would have {len(sizes)} packages, and may have {settings.most}; remove some, or"
                " let the operator raise ServeApp.package_count"
            )

    async def _apply(
        self,
        host: PackagesHost,
        wheels: Sequence[Wheel],
        leaving: Sequence[str],
        requested: frozenset[str],
        record: Record,
    ) -> PackagesChange:
        """Change the folder, then record it; if that fails half way, what was added is removed again."""
        assert self.installer is not None
        added: list[Installed] = []
        async with host.moving:
            site = self._site(host)
            replaced = [self._installed[wheel.name] for wheel in wheels if wheel.name in self._installed]
            gone = [self._installed[name] for name in leaving] + replaced
            try:
                await _unlink(site, gone)
                for wheel in wheels:
                    files = await self.installer.link(wheel, site)
                    facts = (wheel.name, wheel.version, wheel.sha256, wheel.size)
                    added.append(Installed(*facts, files, wheel.name in requested))
            except OSError as error:
                # Of the wheel that failed nothing is left; those before it are removed here.
                await _unlink(site, added)
                self._take_over((), gone)
                _record(record, (), gone)
                await self._save()
                if isinstance(error, FileNotFoundError):
                    raise PackageError(
                        "A package was removed from the cache in between; try again"
                    ) from error
                raise storage_error(error) from error
            self._take_over(added, gone)
        _record(record, added, gone)
        await self._save()
        return PackagesChange(tuple(added), tuple(gone))

    def _take_over(self, added: Iterable[Installed], gone: Iterable[Installed]) -> None:
        for package in gone:
            del self._installed[package.name]
        for package in added:
            self._installed[package.name] = package

    def _site(self, host: PackagesHost) -> Path:
        """Return the folder that holds the session's packages now."""
        kernel = host.current
        if kernel is not None and kernel.packages is not None:
            return kernel.packages
        site = self._kept.path
        site.mkdir(mode=0o700, exist_ok=True)
        return site

    # When kernels come and go

    @property
    def _kept(self) -> KeptFolder:
        assert self.installer is not None
        store = WorkspaceStore(self.installer.sites, self.installer.leftovers, self.installer.users)
        return store.of(f"session-{self.session_id}")

    def share(self, other: SessionPackages, kernel: Kernel) -> None:
        """Use the folder of packages of the session whose kernel this one's is a branch of."""
        if kernel.packages is not None and self.installer is not None:
            self._folder = other._folder
            self.installer.users.join(kernel.packages)

    async def restore(self, kernel: Kernel) -> None:
        """Move the session's packages into a fresh kernel's folder."""
        if kernel.packages is not None and self.installer is not None:
            restored = await self._kept.restore(kernel.packages)
            if not restored.alone:
                self._folder = _Folder(self._installed.copy())

    async def keep(self, kernel: Kernel) -> None:
        """Keep an ended kernel's packages for the next; those that others use too are copied."""
        if kernel.packages is not None and self.installer is not None:
            alone = await self._kept.keep(kernel.packages)
            if not alone:
                self._folder = _Folder(self._installed.copy())

    async def leave(self, kernel: Kernel) -> None:
        """Leave an ended kernel's packages to the others that use them, if any."""
        if kernel.packages is not None and self.installer is not None:
            alone = await self._kept.leave(kernel.packages)
            if not alone:
                self._folder = _Folder()

    async def load(self) -> None:
        """Load the list of what a previous gateway had installed in this session."""
        if self.installer is not None:
            path = self._state_file
            with storage("What the session has installed can't be read"):
                found = await asyncio.to_thread(_load, path)
            self._folder = _Folder({package.name: package for package in found})

    @property
    def _state_file(self) -> Path:
        assert self.installer is not None
        return self.installer.states / f"{self.session_id}.json"

    async def _save(self) -> None:
        try:
            await asyncio.to_thread(_save, self._state_file, list(self._installed.values()))
        except OSError as error:
            raise storage_error(error) from error

    async def close(self) -> None:
        """Cancel changes in progress and refuse new ones."""
        self._closed = True
        await self._tasks.cancel()
        await self._later.cancel()

    async def forget(self) -> None:
        """Remove everything, because the session has ended."""
        self._installed.clear()
        if self.installer is not None:
            await self.installer.leftovers.remove(self._state_file)
            await self._kept.remove()


async def result_of(task: asyncio.Task[PackagesChange]) -> PackagesChange:
    """Return the result of a change; see `SessionPackages.change` for what it raises."""
    return await outcome(task, lambda: ShuttingDown("The session has ended"))


async def _unlink(site: Path, packages: Iterable[Installed]) -> None:
    for package in packages:
        await asyncio.to_thread(unlink, site, package.files)


def _record(record: Record, added: Sequence[Installed], gone: Sequence[Installed]) -> None:
    new = {package.name for package in added}
    left = [package for package in gone if package.name not in new]
    for action, packages in (("removed", left), ("installed", added)):
        if packages:
            told = [msgspec.to_builtins(package.to_wire()) for package in packages]
            record("packages", {"action": action, "packages": told})


def _load(path: Path) -> list[Installed]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Installed])
    except FileNotFoundError:
        return []


def _save(path: Path, packages: list[Installed]) -> None:
    draft = path.with_suffix(".new")
    draft.write_bytes(msgspec.json.encode(packages))
    draft.replace(path)
