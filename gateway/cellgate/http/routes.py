"""The table of paths: which handler serves which resource. Order does not matter; no two overlap.

All paths are below the base URL; by default that is the root.
"""

from __future__ import annotations

import re
from typing import Any

from cellgate.http import console, health
from cellgate.http.base import BaseHandler, BaseUrlHandler
from cellgate.http.jupyter import channels, document_sessions, kernels, kernelspecs, login
from cellgate.http.openapi.description import Document, DocumentedHandler, DocumentHandler, PageHandler
from cellgate.http.services import Services
from cellgate.http.v1 import (
    audit,
    blocks,
    checkpoints,
    cluster,
    environments,
    event_socket,
    events,
    executions,
    explore,
    files,
    introspection,
    me,
    notebook,
    output,
    packages,
    ports,
    processes,
    replay,
    sessions,
    tokens,
    trail,
    usage,
    usage_sums,
    user_secrets,
    users,
    widgets,
)
from cellgate.http.v1 import console as console_url
from cellgate_kernels.base.errors import InvalidInput

Route = tuple[str, type[BaseHandler], dict[str, Any]]

_USER = "/v1/users/{user}"
_EXECUTION = "/v1/sessions/{session}/executions/{execution}"
_PROCESS = "/v1/sessions/{session}/processes/{process}"

TABLE: tuple[tuple[str, type[BaseHandler]], ...] = (
    ("/healthz", health.HealthHandler),
    ("/readyz", health.ReadyHandler),
    ("/metrics", health.MetricsHandler),
    ("/openapi.json", DocumentHandler),
    ("/docs", PageHandler),
    ("/v1/info", health.InfoHandler),
    ("/v1/environments", environments.EnvironmentsHandler),
    ("/v1/environments/{environment}", environments.EnvironmentHandler),
    ("/v1/me", me.MeHandler),
    ("/v1/audit", trail.TrailHandler),
    ("/v1/usage", usage.UsageHandler),
    ("/v1/usage/sums", usage_sums.UsageSumsHandler),
    ("/v1/usage/export", usage_sums.UsageExportHandler),
    ("/v1/users", users.UsersHandler),
    (_USER, users.UserHandler),
    (_USER + "/tokens", tokens.TokensHandler),
    (_USER + "/tokens/{token}", tokens.TokenHandler),
    (_USER + "/secrets", user_secrets.SecretsHandler),
    (_USER + "/secrets/{secret}", user_secrets.SecretHandler),
    ("/v1/cluster", cluster.ClusterHandler),
    ("/v1/console", console_url.ConsoleUrlHandler),
    ("/v1/execute", executions.OneShotHandler),
    ("/v1/sessions", sessions.SessionsHandler),
    ("/v1/sessions/{session}", sessions.SessionHandler),
    ("/v1/sessions/{session}/interrupt", sessions.InterruptHandler),
    ("/v1/sessions/{session}/restart", sessions.RestartHandler),
    ("/v1/sessions/{session}/branch", sessions.BranchHandler),
    ("/v1/sessions/{session}/explore", explore.ExploreHandler),
    ("/v1/sessions/{session}/tree", sessions.TreeHandler),
    ("/v1/sessions/{session}/checkpoints", checkpoints.CheckpointsHandler),
    ("/v1/sessions/{session}/checkpoints/{checkpoint}", checkpoints.CheckpointHandler),
    ("/v1/sessions/{session}/rollback", checkpoints.RollbackHandler),
    ("/v1/sessions/{session}/undo", checkpoints.UndoHandler),
    ("/v1/sessions/{session}/complete", introspection.CompleteHandler),
    ("/v1/sessions/{session}/inspect", introspection.InspectHandler),
    ("/v1/sessions/{session}/variables", introspection.VariablesHandler),
    ("/v1/sessions/{session}/variables/{variable}", introspection.RowsHandler),
    ("/v1/sessions/{session}/execute", executions.ExecuteHandler),
    ("/v1/sessions/{session}/execute-blocks", blocks.BlocksHandler),
    ("/v1/sessions/{session}/executions", executions.ExecutionsHandler),
    (_EXECUTION, executions.ExecutionHandler),
    (_EXECUTION + "/cancel", executions.CancelHandler),
    (_EXECUTION + "/input", executions.InputHandler),
    (_EXECUTION + "/output/{index}", output.OutputHandler),
    ("/v1/sessions/{session}/processes", processes.ProcessesHandler),
    (_PROCESS, processes.ProcessHandler),
    (_PROCESS + "/input", processes.ProcessInputHandler),
    (_PROCESS + "/signal", processes.ProcessSignalHandler),
    ("/v1/sessions/{session}/ports/{port}", ports.PortHandler),
    ("/v1/sessions/{session}/events", events.EventsHandler),
    ("/v1/sessions/{session}/ws", event_socket.EventSocketHandler),
    ("/v1/sessions/{session}/notebook", notebook.NotebookHandler),
    ("/v1/sessions/{session}/replay", replay.ReplayHandler),
    ("/v1/sessions/{session}/widgets", widgets.WidgetsHandler),
    ("/v1/sessions/{session}/widgets/{widget}", widgets.WidgetHandler),
    ("/v1/sessions/{session}/bundle", notebook.BundleHandler),
    ("/v1/sessions/{session}/audit", audit.AuditHandler),
    ("/v1/sessions/{session}/audit/verify", audit.AuditVerifyHandler),
    ("/v1/sessions/{session}/packages", packages.PackagesHandler),
    ("/v1/sessions/{session}/files", files.FilesHandler),
    ("/v1/sessions/{session}/files/{path}", files.FileHandler),
)
"""The paths of our own interface, as `/openapi.json` shows them."""

_KERNEL = "/api/kernels/{kernel}"

JUPYTER: tuple[tuple[str, type[BaseHandler]], ...] = (
    ("/api/?", kernels.ApiHandler),
    ("/api/status", kernels.StatusHandler),
    ("/api/kernelspecs", kernelspecs.KernelspecsHandler),
    ("/api/kernelspecs/{name}", kernelspecs.KernelspecHandler),
    ("/kernelspecs/{name}/{file}", kernelspecs.KernelspecResourceHandler),
    ("/api/kernels", kernels.KernelsHandler),
    (_KERNEL, kernels.KernelHandler),
    (_KERNEL + "/interrupt", kernels.KernelInterruptHandler),
    (_KERNEL + "/restart", kernels.KernelRestartHandler),
    (_KERNEL + "/channels", channels.ChannelsHandler),
    ("/api/sessions", document_sessions.NotebookSessionsHandler),
    ("/api/sessions/{session}", document_sessions.NotebookSessionHandler),
    ("/login", login.LoginHandler),
)
"""The paths of Jupyter's own interface."""

CONSOLE: tuple[tuple[str, type[BaseHandler]], ...] = (
    ("/", console.ConsoleHandler),
    ("/console/sign-in", console.SignInHandler),
    ("/console/sign-out", console.SignOutHandler),
    ("/console/oidc", console.ProviderHandler),
    ("/console/oidc/callback", console.ProviderAnswerHandler),
    ("/console/hub", console.HubHandler),
    ("/oauth_callback", console.HubAnswerHandler),
    ("/console/{asset}", console.ConsoleFileHandler),
)
"""The paths of the page for people: for its browser alone, so they may change with it."""

_NAMED = re.compile(r"\{(\w+)\}")
# A key or an id is anything but a slash here; the handlers check it, so that a bad one gets a 400 with the
# reason, not a 404.
_ONE, _REST = "([^/]*)", "(.*)"
_ASSET = r"([^?]*\.[A-Za-z0-9]{1,8})"
"""The name of a file, which ends in a dot and a few letters; other names do not match.

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
    found.sort(key=lambda route: route[1] is not executions.ExecuteHandler)
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
