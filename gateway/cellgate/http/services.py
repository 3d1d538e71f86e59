"""The parts of a running gateway for handlers, in five groups, which ``server.assembly`` opens.

A handler names the group of the part that it needs, as in ``services.people.usage``. Groups do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellgate.http.metrics import Problem
from cellgate.sessions.document_sessions import NotebookSessions
from cellgate.sessions.sandboxes import Sandboxes

if TYPE_CHECKING:
    from cellgate.cluster.allotments import NodeAllotments
    from cellgate.cluster.membership import Membership
    from cellgate.cluster.owners import KeyOwners
    from cellgate.cluster.uses import NodeUses
    from cellgate.console.assets import Assets
    from cellgate.console.sign_ins import SignIns
    from cellgate.hook.program import HookProgram
    from cellgate.http.access import AccessPolicy
    from cellgate.http.attempts import LoginAttempts
    from cellgate.http.hop.hop import Hop
    from cellgate.http.metrics import Metrics
    from cellgate.http.tracing import Tracer
    from cellgate.identity.derived import DerivedTokens
    from cellgate.identity.hub_sign_in import HubSignIn
    from cellgate.identity.oidc_sign_in import ProviderSignIn
    from cellgate.identity.user_keeper import UserKeeper
    from cellgate.jobs.jobs import Jobs
    from cellgate.packages.installer import Installer
    from cellgate.ports.served import ServedPorts
    from cellgate.quotas.usage import Usage
    from cellgate.record.store.interface import RecordStore
    from cellgate.record.trail_writer import TrailWriter
    from cellgate.replay.service import Replayer
    from cellgate.sessions.exploring import Explorer
    from cellgate.sessions.files import SessionFiles
    from cellgate.sessions.reader import Archive
    from cellgate.sessions.registry import SessionRegistry
    from cellgate.sessions.terms import SessionTerms
    from cellgate_kernels.base.threads import ThreadLanes
    from cellgate_kernels.engine.engine import Engine
    from cellgate_kernels.pool.pool import KernelPool
    from cellgate_kernels.specs.catalog import KernelspecCatalog


@dataclass(frozen=True, slots=True)
class Cluster:
    """This gateway as a node of a cluster, the owners of the sessions there, and the uses of quotas.

    `allotments`: of the quotas that are not reserved one by one.
    """

    membership: Membership
    owners: KeyOwners
    uses: NodeUses
    allotments: NodeAllotments


@dataclass(frozen=True, slots=True)
class Storage:
    """The record with its audit trail, and the threads that work on files and long texts.

    `cluster`: the gateways that share the record; None if this is the only one.
    """

    journal: RecordStore
    trail: TrailWriter
    lanes: ThreadLanes
    cluster: Cluster | None = None


@dataclass(frozen=True, slots=True)
class Kernels:
    """The available kernels, and their sources.

    `open_network`: whether they have a network in any case, by the operator's choice of backend. `ways`: how
    each kernelspec's kernels start. `containers`: the notice about containers that several sessions share.
    `gaps`: what the isolation does not hold or have of what a sandbox does, a sentence each.
    """

    backend: str
    isolation: str
    gaps: tuple[str, ...]
    open_network: bool
    catalog: KernelspecCatalog
    pool: KernelPool
    ways: Callable[[], Mapping[str, str]]
    containers: Callable[[], tuple[str, str] | None]
    engine: Engine | None = None
    installer: Installer | None = None


@dataclass(frozen=True, slots=True)
class People:
    """The users, their ways to sign in, and their quotas.

    `sign_ins`: browsers' at the console. `provider`: the identity provider where browsers sign in, if any;
    `hub`: the JupyterHub.
    """

    access: AccessPolicy
    attempts: LoginAttempts
    usage: Usage
    sign_ins: SignIns
    derived_tokens: DerivedTokens
    users: UserKeeper
    provider: ProviderSignIn | None = None
    hub: HubSignIn | None = None


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions, and the operations on them and their records. `hook`: sees cells before they run."""

    manager: SessionRegistry
    terms: SessionTerms
    archive: Archive
    explorer: Explorer
    files: SessionFiles
    jobs: Jobs
    replayer: Replayer
    notebook_sessions: NotebookSessions = field(default_factory=NotebookSessions)
    sandboxes: Sandboxes = field(default_factory=Sandboxes)
    hook: HookProgram | None = None


@dataclass(frozen=True, slots=True)
class Front:
    """The gateway's own presentation. `keep_alive`: seconds between keep-alives on a quiet stream.

    `base_url`: the path below which everything is served, such as ``/prefix``; empty for the root. `owner`:
    the id of this gateway, which its answers name. `assets`: the console's. `doors`: the names of those for
    other systems' clients that are open. `ports`: None unless programs' ports are served. `hop`: hands
    requests on to other gateways of the cluster; None without one.
    """

    version: str
    owner: str
    base_url: str
    keep_alive: float
    doors: tuple[str, ...]
    assets: Assets
    metrics: Metrics
    tracer: Tracer
    ports: ServedPorts | None = None
    hop: Hop | None = None


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a running gateway, each group above those before it."""

    storage: Storage
    people: People
    kernels: Kernels
    sessions: Sessions
    front: Front

    def problems(self) -> list[Problem]:
        """Return why the gateway takes no new work now; empty while it does."""
        found = []
        if self.sessions.manager.keys.closing:
            found.append(Problem.SHUTTING_DOWN)
        if self.storage.cluster is not None and self.storage.cluster.membership.draining:
            found.append(Problem.DRAINING)
        if not self.storage.journal.writable:
            found.append(Problem.STORAGE)
        if self.kernels.engine is not None and not self.kernels.engine.answers:
            found.append(Problem.CONTAINER_ENGINE)
        if not self.kernels.pool.ready:
            found.append(Problem.NO_KERNEL_YET)
        return found
