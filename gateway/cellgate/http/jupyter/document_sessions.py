"""/api/sessions: Jupyter's own sessions, each a path with a kernel. See ``sessions.document_sessions``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cellgate.errors import NotFound
from cellgate.http.jupyter.base import MOST_PATH, JupyterHandler
from cellgate.http.operation import requires
from cellgate.identity.principal import Permission
from cellgate.sessions.changing import entitle
from cellgate.sessions.document_sessions import NotebookSession
from cellgate.sessions.session import Session
from cellgate.wire.owner import new_id, node_in
from cellgate_kernels.base.errors import InvalidInput


class NotebookSessionsBase(JupyterHandler):
    """Shared by the collection and the single session."""

    def entries(self) -> list[NotebookSession]:
        """Return the owner's sessions that the login reaches, oldest first."""
        live = {self.kernel_id(session) for session in self.services.sessions.manager.all_live(self.owner)}
        # Entries of kernels that are gone are forgotten here, so `live` must not be limited by the login.
        known = self.services.sessions.notebook_sessions.of(self.owner, live)
        reached = {self.kernel_id(session) for session in self.live_sessions()}
        return [entry for entry in known if entry.kernel_id in reached]

    def models(self, entries: Iterable[NotebookSession]) -> list[dict[str, Any]]:
        """Jupyter's models of sessions; those whose kernels have just ended are left out."""
        kernels = {self.kernel_id(session): session for session in self.live_sessions()}
        return [self._model(each, kernels[each.kernel_id]) for each in entries if each.kernel_id in kernels]

    def model(self, entry: NotebookSession) -> dict[str, Any]:
        """Jupyter's model of a session. Raises NotFound."""
        return self._model(entry, self.session_of(entry.kernel_id))

    def _model(self, entry: NotebookSession, session: Session) -> dict[str, Any]:
        known = {"id": entry.id, "path": entry.path, "name": entry.name, "type": entry.type}
        model = {**known, "kernel": self.kernel_model(session)}
        if entry.type == "notebook":
            model["notebook"] = {"path": entry.path, "name": entry.name}
        return model

    async def wanted_kernel(self, fields: dict[str, Any], path: str) -> str | None:
        """Return the id of the kernel that the body names, or starts by naming a kernelspec; None if neither.

        `path`: the document of the kernel.
        """
        kernel = fields.get("kernel") or {}
        if not isinstance(kernel, dict):
            raise InvalidInput("kernel must be an object")
        if (given := self.text(kernel, "id")) is not None:
            return self.kernel_id(self.session_of(given))
        if (name := self.text(kernel, "name")) is not None:
            return self.kernel_id(await self.start(name, {}, path))
        return None

    async def _entitle(self, kernel_id: str, path: str, *, rename: bool = True) -> None:
        """Give the session of a kernel its document's path as its title; see `entitle`."""
        session = self.session_of(kernel_id)
        entitle(session, path, rename=rename)
        await session.log.commit()

    def path(self, fields: dict[str, Any]) -> str | None:
        """Return the document's path. Raises InvalidInput."""
        notebook = fields.get("notebook")
        path = self.text(fields, "path")
        if path is None and isinstance(notebook, dict):
            path = self.text(notebook, "path")
        if path is not None and len(path) > MOST_PATH:
            raise InvalidInput(f"path is longer than {MOST_PATH} characters")
        return path


class NotebookSessionsHandler(NotebookSessionsBase):
    """The collection."""

    @requires(Permission.READ)
    async def get(self) -> None:
        """Answer with all sessions of the principal."""
        self.answer(self.models(self.entries()))

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Answer with the session of the path, created if there is none."""
        fields = await self.fields()
        path = self.path(fields)
        if path is None:
            raise InvalidInput("path is missing: a session is a document's")
        entry = next((known for known in self.entries() if known.path == path), None)
        if entry is None:
            name = self.text(fields, "name") or ""
            kind = self.text(fields, "type") or "notebook"
            wanted = await self.wanted_kernel(fields, path) or self.kernel_id(
                await self.start(None, {}, path)
            )
            entry = NotebookSession(self.owner, path, name[:MOST_PATH], kind[:100], wanted, new_id(self.node))
            self.services.sessions.notebook_sessions.put(entry)
            await self._entitle(wanted, path, rename=False)
        self.set_location(f"/api/sessions/{entry.id}")
        self.answer(self.model(entry), 201)


class NotebookSessionHandler(NotebookSessionsBase):
    """One session."""

    def made_at(self) -> str | None:
        return node_in(self.path_args[0])

    def entry(self, wanted: str) -> NotebookSession:
        """Return the principal's session with this id. Raises NotFound."""
        for entry in self.entries():
            if entry.id == wanted:
                return entry
        raise NotFound(f"Session not found: session_id={wanted[:100]!r}")

    @requires(Permission.READ)
    async def get(self, wanted: str) -> None:
        """Answer the session's model."""
        self.answer(self.model(self.entry(wanted)))

    @requires(Permission.RUN)
    async def patch(self, wanted: str) -> None:
        """Change its path, name, type or kernel; the former kernel keeps running."""
        entry = self.entry(wanted)
        fields = await self.fields()
        path = self.path(fields) or entry.path
        changed = replace(
            entry,
            path=path,
            name=(self.text(fields, "name") or entry.name)[:MOST_PATH],
            type=(self.text(fields, "type") or entry.type)[:100],
            kernel_id=await self.wanted_kernel(fields, path) or entry.kernel_id,
        )
        self.services.sessions.notebook_sessions.put(changed)
        await self._entitle(changed.kernel_id, path)
        self.answer(self.model(changed))

    @requires(Permission.RUN)
    async def delete(self, wanted: str) -> None:
        """End it and its kernel; the record stays."""
        entry = self.entry(wanted)
        session = self.session_of(entry.kernel_id)
        self.services.sessions.notebook_sessions.remove(entry)
        await self.services.sessions.manager.delete(self.owner, session.row.key)
        self.set_status(204)
