"""What handlers may use: one frozen bundle, put together in ``app`` and given to every handler."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.archive import Archive
from gateway.auth import AccessPolicy
from gateway.files.store import SessionFiles
from gateway.jobs import Jobs
from gateway.manager import SessionManager
from gateway.metrics import Metrics
from gateway.notebook_sessions import NotebookSessions
from gateway.packages.installer import Installer
from gateway.record.journal import Journal
from gateway.replayer import Replayer
from kernels.pool import KernelPool
from kernels.provisioners.engine import Engine
from kernels.specs.catalog import KernelspecCatalog
from kernels.threads import ThreadLanes


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a running gateway. `keep_alive` in seconds between signs of life on a quiet stream."""

    version: str
    backend: str
    isolation: str
    access: AccessPolicy
    catalog: KernelspecCatalog
    pool: KernelPool
    journal: Journal
    manager: SessionManager
    archive: Archive
    files: SessionFiles
    metrics: Metrics
    lanes: ThreadLanes
    jobs: Jobs
    replayer: Replayer
    engine: Engine | None = None
    installer: Installer | None = None
    notebook_sessions: NotebookSessions = field(default_factory=NotebookSessions)
    keep_alive: float = 15.0
