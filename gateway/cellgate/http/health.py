"""GET /healthz, /readyz, /metrics and /v1/info: the gateway's state, for probes, operators and clients."""

from __future__ import annotations

from dataclasses import asdict
from http import HTTPStatus
from urllib.parse import urlsplit

from msgspec import UNSET

from cellgate.http.base import BaseHandler
from cellgate.http.metrics import PASSING
from cellgate.http.operation import JSON, TEXT, Answer, operation
from cellgate.http.queries import read_query
from cellgate.identity.principal import Permission
from cellgate.wire.answers import (
    Ceilings,
    ContainersModel,
    EnvironmentModel,
    GatewayInfo,
    Health,
    KernelspecModel,
    Readiness,
)
from cellgate.wire.base import Query
from cellgate.wire.queries import ReadyQuery

NO_ROOM = "room"


class HealthHandler(BaseHandler):
    """Liveness: the process answers."""

    public = True

    @operation(
        "get_health",
        "Liveness",
        Answer(200, "The process is alive.", {JSON: Health}),
        public=True,
        query=Query,
    )
    async def get(self) -> None:
        self.answer(Health())


class ReadyHandler(BaseHandler):
    """Readiness: new work is accepted."""

    public = True

    @operation(
        "get_readiness",
        "Readiness",
        Answer(200, "New work is accepted.", {JSON: Readiness}),
        Answer(503, "New work is not accepted; `missing` says why.", {JSON: Readiness}),
        public=True,
        query=ReadyQuery,
    )
    async def get(self) -> None:
        problems = self.services.problems()
        missing = [str(problem) for problem in problems]
        self.is_expected = PASSING.issuperset(problems)
        # Probes may add parameters of their own.
        asked = {name: said for name, said in self.request.query_arguments.items() if name == "new"}
        wanted = read_query(asked, ReadyQuery)
        assert isinstance(wanted, ReadyQuery)
        if wanted.new and self.services.kernels.pool.room() < 1:
            missing.append(NO_ROOM)
        readiness = Readiness(
            status="not_ready" if missing else "ready",
            missing=missing,
            # Reported, but not a reason for 503: these sessions need attention, all others work.
            sessions_not_recorded=self.services.storage.journal.not_recorded or UNSET,
        )
        self.answer(readiness, HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK)


class MetricsHandler(BaseHandler):
    """Prometheus' text format."""

    @operation(
        "get_metrics",
        "Metrics for Prometheus",
        Answer(200, "Prometheus' text format.", {TEXT: None}),
        needs=Permission.METRICS,
        query=Query,
    )
    async def get(self) -> None:
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(self.services.front.metrics.render())


class InfoHandler(BaseHandler):
    """What this gateway is and offers."""

    @operation(
        "get_info",
        "About this gateway",
        Answer(
            200, "Version, isolation, kernels, what is in them, limits and packages.", {JSON: GatewayInfo}
        ),
        query=Query,
    )
    async def get(self) -> None:
        self.services.kernels.catalog.refresh()
        kernels, manager, front = self.services.kernels, self.services.sessions.manager, self.services.front
        specs = {name: kernels.catalog.get_kernel_spec(name) for name in kernels.catalog.find_kernel_specs()}
        installer, ports, user = kernels.installer, front.ports, self.principal.name
        reached_at = urlsplit(f"//{self.request.host}").hostname or ""
        allowed = [] if installer is None else sorted(installer.settings.allowed)
        shared, hook = kernels.containers(), self.services.sessions.hook
        pool = {**asdict(kernels.pool.statistics()), "max_kernels": kernels.pool.settings.max_kernels}
        self.answer(
            GatewayInfo(
                version=front.version,
                backend=kernels.backend,
                isolation=kernels.isolation,
                isolation_gaps=list(kernels.gaps),
                default_kernel=manager.settings.default_kernel,
                kernelspecs={
                    name: KernelspecModel(display_name=spec.display_name, language=spec.language)
                    for name, spec in specs.items()
                },
                limits=manager.terms.default_limits(user).to_wire(),
                ceilings=Ceilings(**manager.terms.ceilings(user).to_wire()),
                environment={
                    name: EnvironmentModel(
                        name=manifest.environment,
                        python=manifest.python,
                        packages=manifest.packages,
                        programs=manifest.programs,
                    )
                    for name, manifest in kernels.catalog.manifests().items()
                },
                packages=allowed,
                packages_allowed=allowed,
                open_network=kernels.open_network,
                network=manager.terms.reachable(user),
                doors=list(front.doors),
                ports=ports is not None,
                ports_url=None if ports is None else ports.origin.described(reached_at),
                cell_hook=None if hook is None else "failing" if hook.failing else "ok",
                pool=pool,
                fork_server=dict(kernels.ways()),
                containers=shared and ContainersModel(per=shared[0], limits=shared[1]),
                sessions=manager.counts(None if self.principal.sees_others else self.owner),
            )
        )
