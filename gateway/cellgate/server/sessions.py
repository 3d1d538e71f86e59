"""Opens sessions and the readers of their records and files, and adopts the previous gateway's sessions."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from cellgate.egress.policy import EgressPolicy
from cellgate.egress.shared import Egress
from cellgate.files.former import FormerFolders
from cellgate.files.workspace import WorkspaceStore
from cellgate.hook.program import HookProgram
from cellgate.http.services import Kernels, People, Services, Sessions, Storage
from cellgate.jobs.jobs import Jobs
from cellgate.quotas.usage import Usage
from cellgate.record.export.session_export import Exports
from cellgate.record.keys import load_key
from cellgate.record.spill import Spills
from cellgate.record.spill_ledger import SpillLedger, SpillWatch
from cellgate.replay.service import Replayer
from cellgate.server.kernels import KernelGround, shared_disk, without_proxy
from cellgate.server.settings import GatewaySettings
from cellgate.sessions.adoption import Recovery
from cellgate.sessions.exploring import Explorer
from cellgate.sessions.files import SessionFiles, UploadSpace
from cellgate.sessions.meter import KernelMeter
from cellgate.sessions.ownership import Alone
from cellgate.sessions.parts import SessionObserver, SharedParts, SleepWays
from cellgate.sessions.reader import Archive
from cellgate.sessions.registry import SessionRegistry
from cellgate_kernels.base.leftovers import make_way
from cellgate_kernels.base.trees import half_of_disk
from cellgate_kernels.kernel.launcher import KernelFolders, runtime_name

logger = logging.getLogger(__name__)


async def open_sessions(
    settings: GatewaySettings,
    storage: Storage,
    people: People,
    kernels: Kernels,
    folders: KernelFolders,
    observer: SessionObserver,
    stack: AsyncExitStack,
) -> Sessions:
    """Open the registry of sessions, and the rooms that read and convert their records and files."""
    pool, usage, journal, lanes = kernels.pool, people.usage, storage.journal, storage.lanes
    directory, reserve = people.access.authentication.directory, settings.storage.reserve
    workspaces = WorkspaceStore(folders.workspaces, folders.leftovers, reserve=reserve)
    egress = Egress(
        lanes.lookups,
        partial(_policy_of, usage),
        unfit=without_proxy(settings.kernels),
        pass_bytes=usage.pass_network,
    )
    stack.push_async_callback(egress.close)
    spilled = _watched_ledger(settings, stack)
    disk = shared_disk(settings)
    hook = await _open_hook(settings, stack)
    parts = SharedParts(
        pool,
        workspaces,
        spilled,
        kernels.installer,
        lanes.record,
        weight_of=lambda principal: usage.quotas(principal).weight,
        admits=lambda principal: not directory.is_shut_out(principal),
        usage=usage,
        observer=observer,
        secrets=directory,
        egress=egress,
        ownership=Alone() if storage.cluster is None else storage.cluster.owners,
        former=None if disk is None else FormerFolders(disk, workspaces, folders.leftovers, lanes.bulk),
        sleep=None if settings.kernels.sleep_after == 0 else SleepWays(lanes.files, lanes.sleep),
        hook=hook,
    )
    manager = SessionRegistry(journal, kernels.catalog, parts, settings.manager)
    staging = _emptied(folders.workspaces.parent)
    exports = _open_exports(settings, storage, spilled, staging if disk is None else None, stack)
    archive = Archive(journal, manager, exports, lanes.texts, KernelMeter(pool.processes, lanes.bulk))
    most = settings.storage.upload_space
    space = UploadSpace(staging, reserve=reserve, most=half_of_disk(staging) if most is None else most)
    files = SessionFiles(journal, manager, lanes, space)
    stack.push_async_callback(files.close)
    jobs = Jobs(staging, spilled, lanes.files)
    stack.push_async_callback(jobs.finished)
    return Sessions(
        manager=manager,
        terms=manager.terms,
        archive=archive,
        explorer=Explorer(manager, journal),
        files=files,
        jobs=jobs,
        hook=hook,
        replayer=Replayer(manager, archive, files, jobs, settings.version),
    )


def _watched_ledger(settings: GatewaySettings, stack: AsyncExitStack) -> SpillLedger:
    """Return the ledger of what waits on the disk for clients, which gives way when the disk fills."""
    spilled = SpillLedger(settings.data_dir, settings.storage.reserve)
    watch = SpillWatch(spilled)
    stack.push_async_callback(watch.close)
    watch.start()
    return spilled


async def _open_hook(settings: GatewaySettings, stack: AsyncExitStack) -> HookProgram | None:
    """Start the program that sees cells before they run, if there is one."""
    if settings.cell_hook is None:
        return None
    hook = HookProgram(settings.cell_hook)
    stack.push_async_callback(hook.close)
    await hook.open()
    return hook


def _open_exports(
    settings: GatewaySettings,
    storage: Storage,
    spilled: SpillLedger,
    staging: Path | None,
    stack: AsyncExitStack,
) -> Exports:
    """Open the exports, which wait for clients in `staging`; None: in a folder in the data folder."""
    folder = _emptied(settings.data_dir) if staging is None else staging
    spills = Spills(folder, spilled, storage.lanes.files)
    stack.push_async_callback(spills.ends.finished)
    exports = Exports(storage.journal, settings.version, load_key(settings.data_dir), spills)
    stack.push_async_callback(exports.close)
    return exports


async def recover_sessions(services: Services, ground: KernelGround) -> None:
    """Adopt the previous gateway's sessions with living kernels, and remove its other leftovers."""
    manager, engine, left = services.sessions.manager, ground.engine, ground.left
    kernels = left if engine is not None else {}
    recovery = Recovery(services.storage.journal, ground.launcher, kernels, manager.opener)
    adopted, ended = await recovery.recover()
    if adopted or ended:
        logger.info("Sessions of the previous gateway: %d go on, %d have ended", adopted, ended)
    if engine is not None:
        await engine.reap()
    in_use = manager.kernel_ids()
    if services.kernels.installer is not None:
        await services.kernels.installer.tidy(in_use, manager.session_ids())
    for kernel_id in left.keys() - in_use:
        ground.store.remove(kernel_id)
    await ground.folders.leftovers.empty(
        ground.folders.runtime, {runtime_name(kernel_id) for kernel_id in in_use}
    )


def _policy_of(usage: Usage, principal: str) -> EgressPolicy | None:
    """Return the policy of a principal's network by the file of quotas; None without one."""
    quotas = usage.quotas(principal)
    return EgressPolicy(quotas.network, quotas.allow_private) if quotas.network else None


def _emptied(place: Path) -> Path:
    """Return an empty folder in a gateway's folder, for files on their way, such as uploads."""
    staging = place / "uploads"
    make_way(staging)
    staging.mkdir(mode=0o700)
    return staging
