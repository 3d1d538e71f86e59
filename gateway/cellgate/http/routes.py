"""The table of paths: which handler serves which resource. Order does not matter; no two overlap.

All paths are below the base URL; by default that is the root.
"""

from __future__ import annotations

import re
from typing import Any

from cellgate.http.base import BaseHandler, BaseUrlHandler
from cellgate.http.console import (
    ConsoleFileHandler,
    ConsoleHandler,
    ProviderAnswerHandler,
    ProviderHandler,
    SignInHandler,
    SignOutHandler,
)
from cellgate.http.health import HealthHandler, InfoHandler, MetricsHandler, ReadyHandler
from cellgate.http.jupyter.channels import ChannelsHandler
from cellgate.http.jupyter.document_sessions import NotebookSessionHandler, NotebookSessionsHandler
from cellgate.http.jupyter.kernels import (
    ApiHandler,
    KernelHandler,
    KernelInterruptHandler,
    KernelRestartHandler,
    KernelsHandler,
    StatusHandler,
)
from cellgate.http.jupyter.kernelspecs import KernelspecHandler, KernelspecResourceHandler, KernelspecsHandler
from cellgate.http.jupyter.login import LoginHandler
from cellgate.http.openapi.description import Document, DocumentedHandler, DocumentHandler, PageHandler
from cellgate.http.services import Services
from cellgate.http.v1.audit import AuditHandler, AuditVerifyHandler
from cellgate.http.v1.blocks import BlocksHandler
from cellgate.http.v1.checkpoints import CheckpointHandler, CheckpointsHandler, RollbackHandler, UndoHandler
from cellgate.http.v1.console import ConsoleUrlHandler
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
from cellgate.http.v1.explore import ExploreHandler
from cellgate.http.v1.files import FileHandler, FilesHandler
from cellgate.http.v1.introspection import CompleteHandler, InspectHandler, VariablesHandler
from cellgate.http.v1.me import MeHandler
from cellgate.http.v1.notebook import BundleHandler, NotebookHandler
from cellgate.http.v1.output import OutputHandler
from cellgate.http.v1.packages import PackagesHandler
from cellgate.http.v1.ports import PortHandler
from cellgate.http.v1.processes import (
    ProcessesHandler,
    ProcessHandler,
    ProcessInputHandler,
    ProcessSignalHandler,
)
from cellgate.http.v1.replay import ReplayHandler
from cellgate.http.v1.sessions import (
    BranchHandler,
    InterruptHandler,
    RestartHandler,
    SessionHandler,
    SessionsHandler,
    TreeHandler,
)
from cellgate.http.v1.trail import TrailHandler
from cellgate.http.v1.usage import UsageHandler
from cellgate_kernels.base.errors import InvalidInput

Route = tuple[str, type[BaseHandler], dict[str, Any]]

_EXECUTION = "/v1/sessions/{session}/executions/{execution}"
_PROCESS = "/v1/sessions/{session}/processes/{process}"

TABLE: tuple[tuple[str, type[BaseHandler]], ...] = (
    ("/healthz", HealthHandler),
    ("/readyz", ReadyHandler),
    ("/metrics", MetricsHandler),
    ("/openapi.json", DocumentHandler),
    ("/docs", PageHandler),
    ("/v1/info", InfoHandler),
    ("/v1/me", MeHandler),
    ("/v1/audit", TrailHandler),
    ("/v1/usage", UsageHandler),
    ("/v1/console", ConsoleUrlHandler),
    ("/v1/execute", OneShotHandler),
    ("/v1/sessions", SessionsHandler),
    ("/v1/sessions/{session}", SessionHandler),
    ("/v1/sessions/{session}/interrupt", InterruptHandler),
    ("/v1/sessions/{session}/restart", RestartHandler),
    ("/v1/sessions/{session}/branch", BranchHandler),
    ("/v1/sessions/{session}/explore", ExploreHandler),
    ("/v1/sessions/{session}/tree", TreeHandler),
    ("/v1/sessions/{session}/checkpoints", CheckpointsHandler),
    ("/v1/sessions/{session}/checkpoints/{checkpoint}", CheckpointHandler),
    ("/v1/sessions/{session}/rollback", RollbackHandler),
    ("/v1/sessions/{session}/undo", UndoHandler),
    ("/v1/sessions/{session}/complete", CompleteHandler),
    ("/v1/sessions/{session}/inspect", InspectHandler),
    ("/v1/sessions/{session}/variables", VariablesHandler),
    ("/v1/sessions/{session}/execute", ExecuteHandler),
    ("/v1/sessions/{session}/execute-blocks", BlocksHandler),
    ("/v1/sessions/{session}/executions", ExecutionsHandler),
    (_EXECUTION, ExecutionHandler),
    (_EXECUTION + "/cancel", CancelHandler),
    (_EXECUTION + "/input", InputHandler),
    (_EXECUTION + "/output/{index}", OutputHandler),
    ("/v1/sessions/{session}/processes", ProcessesHandler),
    (_PROCESS, ProcessHandler),
    (_PROCESS + "/input", ProcessInputHandler),
    (_PROCESS + "/signal", ProcessSignalHandler),
    ("/v1/sessions/{session}/ports/{port}", PortHandler),
    ("/v1/sessions/{session}/events", EventsHandler),
    ("/v1/sessions/{session}/ws", EventSocketHandler),
    ("/v1/sessions/{session}/notebook", NotebookHandler),
    ("/v1/sessions/{session}/replay", ReplayHandler),
    ("/v1/sessions/{session}/bundle", BundleHandler),
    ("/v1/sessions/{session}/audit", AuditHandler),
    ("/v1/sessions/{session}/audit/verify", AuditVerifyHandler),
    ("/v1/sessions/{session}/packages", PackagesHandler),
    ("/v1/sessions/{session}/files", FilesHandler),
    ("/v1/sessions/{session}/files/{path}", FileHandler),
)
"""The paths of our own interface, as `/openapi.json` shows them."""

_KERNEL = "/api/kernels/{kernel}"

JUPYTER: tuple[tuple[str, type[BaseHandler]], ...] = (
    ("/api/?", ApiHandler),
    ("/api/status", StatusHandler),
    ("/api/kernelspecs", KernelspecsHandler),
    ("/api/kernelspecs/{name}", KernelspecHandler),
    ("/kernelspecs/{name}/{file}", KernelspecResourceHandler),
    ("/api/kernels", KernelsHandler),
    (_KERNEL, KernelHandler),
    (_KERNEL + "/interrupt", KernelInterruptHandler),
    (_KERNEL + "/restart", KernelRestartHandler),
    (_KERNEL + "/channels", ChannelsHandler),
    ("/api/sessions", NotebookSessionsHandler),
    ("/api/sessions/{session}", NotebookSessionHandler),
    ("/login", LoginHandler),
)
"""The paths of Jupyter's own interface."""

CONSOLE: tuple[tuple[str, type[BaseHandler]], ...] = (
    ("/", ConsoleHandler),
    ("/console/sign-in", SignInHandler),
    ("/console/sign-out", SignOutHandler),
    ("/console/oidc", ProviderHandler),
    ("/console/oidc/callback", ProviderAnswerHandler),
    ("/console/{asset}", ConsoleFileHandler),
)
"""The paths of the page for people: for its browser alone, so they may change with it."""

_NAMED = re.compile(r"\{(\w+)\}")
# A key or an id is anything but a slash here; the handlers check it, so that a bad one gets a 400 that says
# why, not a 404.
_ONE, _REST = "([^/]*)", "(.*)"
_ASSET = r"([^?]*\.[A-Za-z0-9]{1,8})"
"""The name of a file, which ends in a dot and a few letters; what is no file does not.

A pattern that could also match without its last part would look at a long path again for each of its dots.
"""

MOST_BASE_URL = 1024
_BASE_URL = re.compile(r"(?:/(?!\.\.?(?:/|$))(?>(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+))*")


def check_base_url(given: str) -> str:
    """Return the base URL as `Services` has it: it begins with a slash and ends without; "" for the root.

    Raises InvalidInput. Slashes at its ends may be left out or added.
    """
    path = given.strip("/")
    base_url = f"/{path}" if path else ""
    if len(base_url) > MOST_BASE_URL or not _BASE_URL.fullmatch(base_url):
        raise InvalidInput("base_url must be a path such as /cellgate, without scheme, host, query or dots")
    return base_url


def routes(services: Services) -> list[Route]:
    """Return all routes, with the arguments of their handlers."""
    given = {"services": services}
    base_url = services.front.base_url
    document = Document(TABLE, services.front.version, base_url)
    described = given | {"document": document}
    own = [
        (pattern(path), handler, described if issubclass(handler, DocumentedHandler) else given)
        for path, handler in TABLE
    ]
    found = own + [(pattern(path), handler, given) for path, handler in (*JUPYTER, *CONSOLE)]
    # Paths are tried in turn, and most requests bring a cell.
    found.sort(key=lambda route: route[1] is not ExecuteHandler)
    if not base_url:
        return found
    prefix = re.escape(base_url)
    bare: Route = (prefix, BaseUrlHandler, given)
    return [bare, *((prefix + path, handler, arguments) for path, handler, arguments in found)]


def paths() -> dict[type[BaseHandler], str]:
    """Return the path of each handler, with names in braces, for logs and the audit trail."""
    named = {handler: path.rstrip("?") for path, handler in (*JUPYTER, *CONSOLE)}
    return named | {handler: path for path, handler in TABLE}


def pattern(path: str) -> str:
    """Return the regular expression of a path; a `{path}` or an `{asset}` may contain slashes."""
    return _NAMED.sub(lambda named: {"path": _REST, "asset": _ASSET}.get(named[1], _ONE), path)
