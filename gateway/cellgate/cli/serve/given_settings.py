"""Settings in the words of operators, of which ``serve`` makes those of ``server.settings``.

They are names of files, texts that are checked by what knows them, and what depends on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellgate_kernels.base.options import BYTES, DAYS, SECONDS, option


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """What is given, as it is given. Sizes in bytes; None: by the machine."""

    ports_url: str = option(
        "",
        "Where browsers find that, if not at http://HOST:PORT, such as https://*.ports.example.org, by which"
        " each port of each session has an origin of its own.",
        metavar="URL",
    )
    token: str = option(
        "",
        "The administrator's token, at least 8 printable ASCII characters, no spaces; default: a new one at "
        "each start, in gateway.json in the data folder. Users have theirs.",
        metavar="TOKEN",
    )
    token_file: str = option(
        "",
        "The file with that token, which is read again when it changes: the former token is then refused, and"
        " its connections and sign-ins end.",
        metavar="FILE",
    )
    no_auth: bool = option(False, "Ask for no token; on loopback addresses only.")
    backend: str = option(
        "auto",
        "What isolates kernels: docker (containers), sandbox (bubblewrap), landlock (less, without "
        "namespaces), process (nothing), or auto: the best that works.",
        among=("auto", "docker", "sandbox", "landlock", "process"),
        metavar="NAME",
    )
    allow_unsandboxed: bool = option(
        False, "Serve kernels without isolation on an address that other machines can reach."
    )
    allowed_hosts: tuple[str, ...] = option(
        (), "Host names that clients may use for this gateway, in addition to loopback.", metavar="NAME"
    )
    allowed_origins: tuple[str, ...] = option(
        (), "Origins of web pages that may use this gateway.", metavar="ORIGIN"
    )
    tls_cert: str = option(
        "",
        "A PEM file with a certificate and those that signed it, to serve HTTPS; needs --tls-key. It is read"
        " again when it changes.",
        metavar="FILE",
    )
    tls_key: str = option("", "The PEM file with the certificate's private key.", metavar="FILE")
    trusted_proxies: tuple[str, ...] = option(
        (),
        "Addresses or networks, such as 10.0.0.0/8, of proxies whose X-Forwarded-For, -Proto and -Host are "
        "believed; commas may separate them.",
        metavar="CIDR",
    )
    max_memory: int | None = option(None, "A session's most memory; default: the machine's.", unit=BYTES)
    max_cpus: float = option(0.0, "The most processors a session may ask for; default: the machine's.")
    max_pids: int = option(4096, "The most processes and threads a session may ask for.")
    max_disk: int | None = option(
        None,
        "The most disk space a session may ask for; default: half of the data folder's disk.",
        unit=BYTES,
    )
    max_cell_timeout: float = option(
        86400.0, "The most seconds a cell may run, whatever its request or session says.", unit=SECONDS
    )
    max_lifetime: float = option(
        30 * 86400.0, "The most seconds after which a session ends, whatever it asked for.", unit=SECONDS
    )
    quotas: str = option(
        "",
        "The file of quotas, in TOML: what each role and each principal may use; default: no quotas.",
        metavar="FILE",
    )
    cell_hook: str = option(
        "",
        "A program that is asked about each cell before it runs, and may refuse it; default: none.",
        metavar="PROGRAM",
        not_empty=True,
    )
    retention_days: float = option(
        0.0,
        "Days after its last use that an ended session's record is kept; 0: for ever.",
        unit=DAYS,
        least=0,
    )
    log_json: bool = option(False, "Write logs as JSON lines.")
    tracing: bool = option(
        False, "Send traces to an OpenTelemetry collector, as OTEL_* variables say; needs the extra otel."
    )
