"""The table of paths: which handler serves which resource. Order does not matter; no two overlap."""

from __future__ import annotations

from typing import Any

from cellgate.http.base import BaseHandler
from cellgate.http.context import Services
from cellgate.http.health import HealthHandler, InfoHandler, MetricsHandler, ReadyHandler
from cellgate.http.jupyter.channels import ChannelsHandler
from cellgate.http.jupyter.documents import NotebookSessionHandler, NotebookSessionsHandler
from cellgate.http.jupyter.kernels import (
    ApiHandler,
    KernelHandler,
    KernelInterruptHandler,
    KernelRestartHandler,
    KernelsHandler,
    StatusHandler,
)
from cellgate.http.jupyter.kernelspecs import KernelspecHandler, KernelspecResourceHandler, KernelspecsHandler
from cellgate.http.v1.audit import AuditHandler, AuditVerifyHandler
from cellgate.http.v1.blocks import BlocksHandler
from cellgate.http.v1.event_socket import EventSocketHandler
from cellgate.http.v1.events import EventsHandler
from cellgate.http.v1.executions import (
    CancelHandler,
    ExecuteHandler,
    ExecutionHandler,
    ExecutionsHandler,
    InputHandler,
    OneShotHandler,
)
from cellgate.http.v1.files import FileHandler, FilesHandler
from cellgate.http.v1.notebook import BundleHandler, NotebookHandler
from cellgate.http.v1.output import OutputHandler
from cellgate.http.v1.packages import PackagesHandler
from cellgate.http.v1.replay import ReplayHandler
from cellgate.http.v1.sessions import InterruptHandler, RestartHandler, SessionHandler, SessionsHandler

Route = tuple[str, type[BaseHandler], dict[str, Any]]

# A key or an id is anything but a slash here; what it may be is checked where it is used, so that a bad
# one is a 400 that says why and not a 404.
_ONE = "([^/]*)"


def routes(services: Services) -> list[Route]:
    """All routes with what their handlers get."""
    given = {"services": services}
    session = f"/v1/sessions/{_ONE}"
    execution = f"{session}/executions/{_ONE}"
    table: list[tuple[str, type[BaseHandler]]] = [
        ("/healthz", HealthHandler),
        ("/readyz", ReadyHandler),
        ("/metrics", MetricsHandler),
        ("/v1/info", InfoHandler),
        ("/v1/execute", OneShotHandler),
        ("/v1/sessions", SessionsHandler),
        (session, SessionHandler),
        (f"{session}/interrupt", InterruptHandler),
        (f"{session}/restart", RestartHandler),
        (f"{session}/execute", ExecuteHandler),
        (f"{session}/execute-blocks", BlocksHandler),
        (f"{session}/executions", ExecutionsHandler),
        (execution, ExecutionHandler),
        (f"{execution}/cancel", CancelHandler),
        (f"{execution}/input", InputHandler),
        (f"{execution}/output/{_ONE}", OutputHandler),
        (f"{session}/events", EventsHandler),
        (f"{session}/ws", EventSocketHandler),
        (f"{session}/notebook", NotebookHandler),
        (f"{session}/replay", ReplayHandler),
        (f"{session}/bundle", BundleHandler),
        (f"{session}/audit", AuditHandler),
        (f"{session}/audit/verify", AuditVerifyHandler),
        (f"{session}/packages", PackagesHandler),
        (f"{session}/files", FilesHandler),
        (f"{session}/files/(.*)", FileHandler),
        *_jupyter(),
    ]
    return [(path, handler, given) for path, handler in table]


def _jupyter() -> list[tuple[str, type[BaseHandler]]]:
    """The paths of Jupyter's own interface."""
    kernel = f"/api/kernels/{_ONE}"
    return [
        ("/api/?", ApiHandler),
        ("/api/status", StatusHandler),
        ("/api/kernelspecs", KernelspecsHandler),
        (f"/api/kernelspecs/{_ONE}", KernelspecHandler),
        (f"/kernelspecs/{_ONE}/{_ONE}", KernelspecResourceHandler),
        ("/api/kernels", KernelsHandler),
        (kernel, KernelHandler),
        (f"{kernel}/interrupt", KernelInterruptHandler),
        (f"{kernel}/restart", KernelRestartHandler),
        (f"{kernel}/channels", ChannelsHandler),
        ("/api/sessions", NotebookSessionsHandler),
        (f"/api/sessions/{_ONE}", NotebookSessionHandler),
    ]
