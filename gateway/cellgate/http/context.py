"""The services that handlers may use: one frozen bundle for all of them, built in ``server.assembly``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cellgate.console.assets import Assets
from cellgate.console.sign_ins import SignIns
from cellgate.http.access import AccessPolicy
from cellgate.http.attempts import LoginAttempts
from cellgate.http.metrics import Metrics, Problem
from cellgate.http.tracing import Tracer
from cellgate.identity.derived import DerivedTokens
from cellgate.identity.oidc_sign_in import ProviderSignIn
from cellgate.jobs.jobs import Jobs
from cellgate.packages.installer import Installer
from cellgate.ports.served import ServedPorts
from cellgate.quotas.usage import Usage
from cellgate.record.store.interface import RecordStore
from cellgate.record.trail_writer import TrailWriter
from cellgate.replay.service import Replayer
from cellgate.sessions.document_sessions import NotebookSessions
from cellgate.sessions.exploring import Explorer
from cellgate.sessions.files import SessionFiles
from cellgate.sessions.reader import Archive
from cellgate.sessions.registry import SessionManager
from cellgate.sessions.sandboxes import Sandboxes
from cellgate_kernels.base.threads import ThreadLanes
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.pool.pool import KernelPool
from cellgate_kernels.specs.catalog import KernelspecCatalog


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a running gateway. `keep_alive`: seconds between keep-alives on a quiet stream.

    `open_network`: whether kernels have a network in any case, by the operator's choice of backend.
    `base_url`: the path below which everything is served, such as ``/prefix``; empty for the root. `owner`:
    the id of this gateway, which its answers name. `assets` and `sign_ins` are the console's. `ports`: None
    unless programs' ports are served. `provider`: where browsers sign in at an identity provider, if they
    can. `doors`: the names of those for other systems' clients that are open.
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
    journal: RecordStore
    manager: SessionManager
    archive: Archive
    explorer: Explorer
    files: SessionFiles
    metrics: Metrics
    lanes: ThreadLanes
    jobs: Jobs
    replayer: Replayer
    usage: Usage
    assets: Assets
    sign_ins: SignIns
    derived_tokens: DerivedTokens
    ways: Callable[[], Mapping[str, str]] = dict
    containers: Callable[[], tuple[str, str] | None] = lambda: None
    engine: Engine | None = None
    installer: Installer | None = None
    tracer: Tracer = field(default_factory=Tracer)
    notebook_sessions: NotebookSessions = field(default_factory=NotebookSessions)
    sandboxes: Sandboxes = field(default_factory=Sandboxes)
    keep_alive: float = 15.0
    base_url: str = ""
    owner: str = ""
    ports: ServedPorts | None = None
    provider: ProviderSignIn | None = None
    doors: tuple[str, ...] = ()

    def problems(self) -> list[Problem]:
        """Why the gateway takes no new work now; empty while it does."""
        found = []
        if self.manager.keys.closing:
            found.append(Problem.SHUTTING_DOWN)
        if not self.journal.writable:
            found.append(Problem.STORAGE)
        if self.engine is not None and not self.engine.answers:
            found.append(Problem.CONTAINER_ENGINE)
        if not self.pool.ready:
            found.append(Problem.NO_KERNEL_YET)
        return found
