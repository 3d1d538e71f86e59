"""The door's table of paths. Order matters: what no other path takes is told to be absent."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from cellgate.doors.opensandbox.base import EXECD, PREFIX, ExecdHandler, OpenSandboxHandler
from cellgate.doors.opensandbox.codes import (
    ContextListHandler,
    NewContextHandler,
    OneContextHandler,
    RunCodeHandler,
)
from cellgate.doors.opensandbox.commands import (
    CommandHandler,
    CommandLogsHandler,
    CommandStatusHandler,
    ExecdMetricsHandler,
    PingHandler,
)
from cellgate.doors.opensandbox.control import (
    EndpointHandler,
    LatencyHandler,
    NewSandboxHandler,
    OneSandboxHandler,
    RenewHandler,
    ResumedHandler,
    SandboxMetadataHandler,
    SleepHandler,
)
from cellgate.doors.opensandbox.files import (
    FilesDownloadHandler,
    FilesInfoHandler,
    FilesModeHandler,
    FilesMoveHandler,
    FilesRemovalHandler,
    FilesReplaceHandler,
    FilesSearchHandler,
    FilesUploadHandler,
    FolderListHandler,
    FoldersHandler,
)
from cellgate.doors.sandbox.errors import Unsupported

ABSENT: Final = MappingProxyType(
    {
        "snapshots": "there are no snapshots here",
        "templates": "there are no templates here: an image can be the name of an operator's environment",
        "networkpolicy": "the operator alone says which network a sandbox has",
        "policy": "the operator alone says which network a sandbox has",
        "diagnostics": "there are no logs of a sandbox here; its session's record has what it did",
        "session": "there are no sessions of Bash here; make a context of Bash, which keeps variables too",
        "isolated": "there are no isolated sessions here; make another sandbox",
        "pty": "there are no terminals here",
        "proxy": "ask for the endpoint of a port, and use that",
    }
)
"""Why some of OpenSandbox is not there, by a word of the path."""


class MissingRouteHandler(OpenSandboxHandler):
    """Everything of OpenSandbox that is not there."""

    def session_wanted(self) -> str | None:
        return None

    async def _absent(self, *_: str) -> None:
        self.check()
        words = self.request.path[:200].split("/")
        why = next((ABSENT[word] for word in words if word in ABSENT), "this gateway has nothing of it there")
        raise Unsupported(f"{self.request.method} {self.request.path[:80]}: {why}")

    _absent.needs = frozenset()  # type: ignore[attr-defined]
    get = head = post = delete = patch = put = _absent


class MissingExecdRouteHandler(ExecdHandler, MissingRouteHandler):
    """Everything of a sandbox's daemon that is not there, for whoever may use the daemon."""


_SANDBOXES: Final = f"{PREFIX}/v1/sandboxes"
_ONE: Final = _SANDBOXES + "/{sandbox}"
_EXECD: Final = EXECD + "/{sandbox}"

ROUTES: Final = (
    (_SANDBOXES, NewSandboxHandler),
    (_ONE, OneSandboxHandler),
    (_ONE + "/metadata", SandboxMetadataHandler),
    (_ONE + "/renew-expiration", RenewHandler),
    (_ONE + "/pause", SleepHandler),
    (_ONE + "/resume", ResumedHandler),
    (_ONE + "/endpoints/{port}", EndpointHandler),
    (f"{PREFIX}/v1/metrics/events", LatencyHandler),
    (_EXECD + "/ping", PingHandler),
    (_EXECD + "/metrics", ExecdMetricsHandler),
    (_EXECD + "/code", RunCodeHandler),
    (_EXECD + "/code/context", NewContextHandler),
    (_EXECD + "/code/contexts", ContextListHandler),
    (_EXECD + "/code/contexts/{context}", OneContextHandler),
    (_EXECD + "/command", CommandHandler),
    (_EXECD + "/command/status/{process}", CommandStatusHandler),
    (_EXECD + "/command/{process}/logs", CommandLogsHandler),
    (_EXECD + "/files", FilesRemovalHandler),
    (_EXECD + "/files/upload", FilesUploadHandler),
    (_EXECD + "/files/download", FilesDownloadHandler),
    (_EXECD + "/files/info", FilesInfoHandler),
    (_EXECD + "/files/search", FilesSearchHandler),
    (_EXECD + "/files/mv", FilesMoveHandler),
    (_EXECD + "/files/permissions", FilesModeHandler),
    (_EXECD + "/files/replace", FilesReplaceHandler),
    (_EXECD + "/directories", FoldersHandler),
    (_EXECD + "/directories/list", FolderListHandler),
    (_EXECD + "/{path}", MissingExecdRouteHandler),
    (PREFIX + "/{path}", MissingRouteHandler),
)
