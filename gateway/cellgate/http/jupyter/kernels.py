"""/api and /api/kernels: Jupyter's own interface to the sessions, in which a kernel is a session.

The specification is the kernels' part of Jupyter Server's REST API.
"""

from __future__ import annotations

from cellgate.http.jupyter.base import JupyterHandler
from cellgate.http.operation import requires
from cellgate.identity.principal import Permission


class ApiHandler(JupyterHandler):
    """The version of the server."""

    public = True

    async def get(self) -> None:
        """Answer with the version."""
        self.check()
        self.answer({"version": self.services.front.version})


class StatusHandler(JupyterHandler):
    """How busy the gateway is."""

    @requires(Permission.READ)
    async def get(self) -> None:
        """Return the counts in Jupyter Server's form."""
        sessions = self.live_sessions()
        self.answer(
            {
                "kernels": len(sessions),
                "connections": sum(session.door.connections for session in sessions),
                "last_activity": max((s.record.last_activity for s in sessions), default=None),
            }
        )


class KernelsHandler(JupyterHandler):
    """The collection."""

    @requires(Permission.READ)
    async def get(self) -> None:
        """Answer with all live kernels of the principal."""
        self.answer([self.kernel_model(session) for session in self.live_sessions()])

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Start a kernel, from the warm pool if one is ready; `env` applies to this kernel only."""
        fields = await self.fields()
        session = await self.start(self.text(fields, "name"), self.strings(fields, "env"))
        model = self.kernel_model(session)
        self.set_location(f"/api/kernels/{model['id']}")
        self.answer(model, 201)


class KernelBase(JupyterHandler):
    """A handler of one kernel, which the path names."""

    def kernel_wanted(self) -> str | None:
        return self.path_args[0]


class KernelHandler(KernelBase):
    """One kernel."""

    @requires(Permission.READ)
    async def get(self, wanted: str) -> None:
        """Answer the kernel's model; once a client has received a cell's end, it finds the kernel idle."""
        session = self.session_of(wanted)
        await session.recorded()
        self.answer(self.kernel_model(session))

    @requires(Permission.RUN)
    async def delete(self, wanted: str) -> None:
        """End it; the record stays."""
        session = self.session_of(wanted)
        await self.services.sessions.manager.delete(self.owner, session.row.key)
        self.set_status(204)


class KernelInterruptHandler(KernelBase):
    """Interrupt the running cell."""

    @requires(Permission.RUN)
    async def post(self, wanted: str) -> None:
        """204, even if nothing runs; the body is ignored."""
        self.session_of(wanted).interrupt(self.principal.name)
        self.set_status(204)


class KernelRestartHandler(KernelBase):
    """A fresh kernel with the same id."""

    @requires(Permission.RUN)
    async def post(self, wanted: str) -> None:
        """Answer with the model once the kernel is ready; the body is ignored."""
        session = self.session_of(wanted)
        await session.restart()
        self.answer(self.kernel_model(session))
