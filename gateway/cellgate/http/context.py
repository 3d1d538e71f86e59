"""The services that handlers may use: one frozen bundle for all of them, built in ``server.assembly``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cellgate.http.access import AccessPolicy
from cellgate.http.attempts import LoginAttempts
from cellgate.http.metrics import Metrics, Problem
from cellgate.http.tracing import Tracer, Untraced
from cellgate.jobs.jobs import Jobs
from cellgate.packages.installer import Installer
from cellgate.principals.usage import Usage
from cellgate.record.journal import Journal
from cellgate.record.trail_writer import TrailWriter
from cellgate.replay.service import Replayer
from cellgate.sessions.document_sessions import NotebookSessions
from cellgate.sessions.files import SessionFiles
from cellgate.sessions.reader import Archive
from cellgate.sessions.registry import SessionManager
from cellgate_kernels.pool import KernelPool
from cellgate_kernels.provisioners.engine import Engine
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.threads import ThreadLanes


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a running gateway. `keep_alive`: seconds between keep-alives on a quiet stream.

    `open_network`: whether kernels have a network in any case, by the operator's choice of backend.
    `base_url`: the path below which everything is served, such as ``/prefix``; empty for the root.
    """

    version: str
    backend: str
    isolation: str
    open_network: bool
    access: AccessPolicy
    attempts: LoginAttempts
    trail: TrailWriter
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
    usage: Usage
    ways: Callable[[], Mapping[str, str]] = dict
    engine: Engine | None = None
    installer: Installer | None = None
    tracer: Tracer = field(default_factory=Untraced)
    notebook_sessions: NotebookSessions = field(default_factory=NotebookSessions)
    keep_alive: float = 15.0
    base_url: str = ""

    def problems(self) -> list[Problem]:
        """Why the gateway takes no new work now; empty while it does."""
        found = []
        if self.manager.closing:
            found.append(Problem.SHUTTING_DOWN)
        if not self.journal.writable:
            found.append(Problem.STORAGE)
        if self.engine is not None and not self.engine.answers:
            found.append(Problem.CONTAINER_ENGINE)
        pool = self.pool.statistics()
        if pool.warm + pool.in_use == 0 and self.pool.settings.size > 0:
            found.append(Problem.NO_KERNEL_YET)
        return found
