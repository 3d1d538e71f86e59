"""The door's table of paths. Order matters: what no other path takes is told to be absent."""

from __future__ import annotations

from typing import Final

from cellgate.doors.e2b.base import AbsentHandler
from cellgate.doors.e2b.cells import CellHandler, E2bHealthHandler
from cellgate.doors.e2b.commands import E2bProcessHandler, JoinHandler, StartHandler
from cellgate.doors.e2b.contexts import ContextHandler, ContextRestartHandler, ContextsHandler
from cellgate.doors.e2b.control import (
    ConnectHandler,
    ForkHandler,
    PauseHandler,
    ResumeHandler,
    SandboxDetailHandler,
    SandboxesHandler,
    SandboxMetricsHandler,
    TimeoutHandler,
)
from cellgate.doors.e2b.files import E2bFilesHandler, FilesystemHandler
from cellgate.doors.e2b.watching import (
    WatchDirHandler,
    WatcherEventsHandler,
    WatcherRemovalHandler,
    WatchersHandler,
)

PREFIX: Final = "/e2b"
ROUTES: Final = (
    ("/e2b/v2/sandboxes", SandboxesHandler),
    ("/e2b/sandboxes", SandboxesHandler),
    ("/e2b/sandboxes/{sandbox}", SandboxDetailHandler),
    ("/e2b/v2/sandboxes/{sandbox}/connect", ConnectHandler),
    ("/e2b/sandboxes/{sandbox}/connect", ConnectHandler),
    ("/e2b/sandboxes/{sandbox}/pause", PauseHandler),
    ("/e2b/sandboxes/{sandbox}/resume", ResumeHandler),
    ("/e2b/sandboxes/{sandbox}/timeout", TimeoutHandler),
    ("/e2b/sandboxes/{sandbox}/fork", ForkHandler),
    ("/e2b/sandboxes/{sandbox}/metrics", SandboxMetricsHandler),
    ("/e2b/execute", CellHandler),
    ("/e2b/contexts", ContextsHandler),
    ("/e2b/contexts/{context}", ContextHandler),
    ("/e2b/contexts/{context}/restart", ContextRestartHandler),
    ("/e2b/health", E2bHealthHandler),
    ("/e2b/files", E2bFilesHandler),
    ("/e2b/filesystem.Filesystem/WatchDir", WatchDirHandler),
    ("/e2b/filesystem.Filesystem/CreateWatcher", WatchersHandler),
    ("/e2b/filesystem.Filesystem/GetWatcherEvents", WatcherEventsHandler),
    ("/e2b/filesystem.Filesystem/RemoveWatcher", WatcherRemovalHandler),
    ("/e2b/filesystem.Filesystem/{call}", FilesystemHandler),
    ("/e2b/process.Process/Start", StartHandler),
    ("/e2b/process.Process/Connect", JoinHandler),
    ("/e2b/process.Process/{call}", E2bProcessHandler),
    ("/e2b/{path}", AbsentHandler),
)
