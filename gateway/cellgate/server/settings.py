"""All settings of a gateway, in the groups that ``assembly`` builds it from. Only values.

Each option of ``cellgate serve`` is declared once, by `option`: here, or beside what it is for. ``cli.serve``
makes values of all of them. It imports nothing heavy: the command line reads it for its help.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cellgate.cluster.settings import ClusterSettings
from cellgate.http.listener.settings import ListenerSettings
from cellgate.packages.settings import PackageSettings
from cellgate.sessions.settings import RetentionSettings
from cellgate_kernels.base.options import BYTES, SECONDS, option
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.settings import SOCKET, PoolSettings

if TYPE_CHECKING:
    from pathlib import Path

    from cellgate.http.listener.certificate import TlsFiles
    from cellgate.identity.hub_settings import HubSettings
    from cellgate.identity.oidc_settings import OidcSettings
    from cellgate.ports.origin import PortsOrigin
    from cellgate.quotas.quotas_file import QuotaSettings
    from cellgate.record.store.sqlite.schema import Sync
    from cellgate.sessions.settings import ManagerSettings
    from cellgate_kernels.base.settings import ContainerSettings

ContainerPer = Literal["session", "principal"]
"""The owner of each container."""


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """The gateway's addresses and clients. `keep_alive`: seconds between signs of life on a stream."""

    ip: str = option("127.0.0.1", "The address to listen on.", metavar="ADDRESS")
    port: int = option(8888, "The port to listen on; 0: a free one.", least=0, most=65535, metavar="PORT")
    ports_port: int | None = option(
        None,
        "A second port to listen on, at which browsers reach what programs inside sessions show; 0: a free "
        "one; default: none.",
        least=0,
        most=65535,
        metavar="PORT",
    )
    ports_origin: PortsOrigin | None = None
    allowed_hosts: frozenset[str] = frozenset()
    allowed_origins: frozenset[str] = frozenset()
    base_url: str = option(
        "", "The path below which everything is served, such as /cellgate.", absent="/", metavar="PATH"
    )
    doors: tuple[str, ...] = option(
        (),
        "Doors for clients of other systems: agentrun, azure, dify, e2b, librechat, opensandbox, piston, "
        "replit, terrarium, or all; commas may separate them.",
        metavar="NAME",
    )
    e2b_debug: bool = option(
        False, "Serve E2B's SDKs with E2B_DEBUG, at three ports of localhost without a token."
    )
    login_attempts: int = option(
        10, "Wrong tokens that an address may show at once; then one each 2 seconds. 0: no limit.", least=0
    )
    keep_alive: float = 15.0
    listener: ListenerSettings = field(default_factory=ListenerSettings)
    tls: TlsFiles | None = None


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The storage of the record and the data folder. Sizes in bytes."""

    record: str = option(
        "",
        "A database of PostgreSQL for the record, such as postgresql://user@host/database; default: SQLite,"
        " in the data folder. Put a password into PGPASSFILE, not here.",
        metavar="URL",
        not_empty=True,
    )
    journal_sync: Sync = option(
        "normal",
        "normal: the record survives a crash of the gateway; full: also one of the machine, by fsync."
        " In PostgreSQL it always survives both.",
        among=("normal", "full"),
        metavar="MODE",
    )
    reserve: int = option(
        64 * MIB,
        "Free space on the data folder's disk below which nothing new begins; 0: no reserve.",
        name="storage_reserve",
        unit=BYTES,
        least=0,
    )
    upload_space: int | None = option(
        None, "Size of all uploads in progress together; default: half of the data folder's disk.", unit=BYTES
    )
    retention: RetentionSettings = field(default_factory=RetentionSettings)


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """The kinds of kernels and their start. `container`: with the backend docker. Durations in seconds.

    `gaps`: what the isolation does not hold or have of what a sandbox does, a sentence each.
    """

    backend: str
    isolation: str
    gaps: tuple[str, ...] = ()
    container: ContainerSettings | None = None
    docker_url: str = option(SOCKET, "The container engine's address.", metavar="URL")
    kernel_dirs: tuple[str, ...] = option(
        (), "Folders of kernelspecs; default: cellgate setup's.", metavar="DIR"
    )
    pool: PoolSettings = field(default_factory=PoolSettings)
    warm_kernels: tuple[str, ...] = option((), "Additional kernelspecs to keep warm kernels of.")
    preload: tuple[str, ...] = option(
        (), "Modules that warm Python kernels import in advance, such as numpy.", metavar="MODULE"
    )
    fork_server: bool = option(
        True,
        "Start Python kernels in sandboxes and shared containers as forks of an interpreter that has loaded "
        "numpy, pandas and matplotlib.",
    )
    container_per: ContainerPer = option(
        "session",
        "What each container is for: one session, or all of one user's: more fit, without walls between "
        "them.",
        among=("session", "principal"),
    )
    start_timeout: float = option(60.0, "Seconds that a kernel may take to start.", unit=SECONDS, least=1)
    sleep_after: float | None = option(
        None,
        "Seconds without use after which a kernel is frozen and its memory given back; 0: never; default: at"
        " its session's idle_timeout, where there is swap.",
        unit=SECONDS,
        least=0,
    )
    shutdown_grace: float = option(10.0, "Seconds for running cells at a shutdown.", unit=SECONDS, least=0)
    keep_kernels: bool = option(
        False, "Leave the containers of sessions running at a shutdown; the next start adopts them."
    )


@dataclass(frozen=True, slots=True)
class PeopleSettings:
    """The gateway's users, and services that vouch for them. `token`: the administrator's; None: unneeded.

    `token_file`: the file with that token, if it may change. `cluster_key`: the file with the key that the
    gateways of a cluster share; None: it is in the data folder.
    """

    token: str | None
    quotas: QuotaSettings
    token_file: Path | None = None
    oidc: OidcSettings | None = None
    librechat_key: Path | None = None
    hub: HubSettings | None = None
    cluster_key: Path | None = None


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """All settings of a gateway. `cluster`: of those that share its record; None: it is the only one.

    `cell_hook`: the program that sees all cells before they run.
    """

    data_dir: Path
    version: str
    manager: ManagerSettings
    kernels: KernelSettings
    people: PeopleSettings
    front: FrontSettings = field(default_factory=FrontSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    packages: PackageSettings = field(default_factory=PackageSettings)
    cluster: ClusterSettings | None = None
    tracing: bool = False
    cell_hook: Path | None = None
