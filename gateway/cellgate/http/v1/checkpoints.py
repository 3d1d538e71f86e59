"""/v1/sessions/{s}/checkpoints, /rollback and /undo: moments that a live session can go back to.

``sessions.undo`` keeps them; these handlers only pass requests on.
"""

from __future__ import annotations

import asyncio

from msgspec import structs

from cellgate.errors import Conflict, FileHeld, QuotaExceeded
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, READS, STARTS, WRITES, Answer, operation
from cellgate.identity.principal import Permission
from cellgate.sessions.checkpoints import RolledBack
from cellgate.sessions.model import within
from cellgate.sessions.session import Session
from cellgate.sessions.undo import model_of
from cellgate.wire.answers import CheckpointList, CheckpointModel, Rollback, SessionModel
from cellgate.wire.models import CheckpointBody, RollbackBody
from cellgate_kernels.base.errors import CannotBranch, KernelBusy


class _SessionHandler(BaseHandler):
    def _session(self, key: str) -> Session:
        return self.services.sessions.manager.live(self.owner, key)


class CheckpointsHandler(_SessionHandler):
    """A session's checkpoints."""

    @operation(
        "list_checkpoints",
        "List what a session can go back to",
        Answer(200, "All of them, the oldest first.", {JSON: CheckpointList}),
        description="Checkpoints live as long as the kernel that they were made of, or one made of them.",
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        self.answer(CheckpointList(checkpoints=self._session(key).undo.models()))

    @operation(
        "make_checkpoint",
        "Make a checkpoint",
        Answer(201, "It can be gone back to.", {JSON: CheckpointModel}),
        description=(
            "Keeps all variables and files as they are now. Only idle sessions of Python kernels in a sandbox"
            " or container can have checkpoints."
        ),
        body={JSON: CheckpointBody},
        errors=(*STARTS, Conflict, FileHeld, KernelBusy, CannotBranch, QuotaExceeded),
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        body = await self.body(CheckpointBody)
        session = self._session(key)
        point = await session.rollbacks.checkpoint(body.name, anyway=body.anyway)
        await session.log.commit()
        self.answer(model_of(point), 201)


class CheckpointHandler(_SessionHandler):
    """One of them."""

    @operation(
        "end_checkpoint",
        "End a checkpoint",
        Answer(204, "It can't be gone back to any more, and takes no memory."),
        errors=WRITES,
        needs=Permission.RUN,
    )
    async def delete(self, key: str, name: str) -> None:
        await self._session(key).undo.end(name)
        self.set_status(204)


class _RollbackHandler(_SessionHandler):
    async def _answer(self, session: Session, going: asyncio.Future[RolledBack | None]) -> None:
        found = await going
        await session.log.commit()
        model = within(self.login.reach, session.to_wire())
        if found is not None:
            done = Rollback(checkpoint=found.checkpoint.name, undone=found.undone)
            model = structs.replace(model, rolled_back=done)
        self.answer(model)


class RollbackHandler(_RollbackHandler):
    """Back to a checkpoint."""

    @operation(
        "restore_checkpoint",
        "Go back to a checkpoint",
        Answer(200, "The session, as it was then.", {JSON: SessionModel}),
        description=(
            "Variables and files are what they were. A cell that runs ends as interrupted, and queued cells"
            " are cancelled. The cells since then stay in the record as undone."
        ),
        body={JSON: RollbackBody},
        errors=(*STARTS, Conflict),
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        body = await self.body(RollbackBody)
        session = self._session(key)
        await self._answer(session, session.rollbacks.roll_back(body.checkpoint))


class UndoHandler(_RollbackHandler):
    """Back to before the last cell."""

    @operation(
        "undo_cell",
        "Undo the last cell",
        Answer(200, "The session, as it was before its last cell.", {JSON: SessionModel}),
        description=(
            "Goes back to the newest checkpoint from before the last cell. Of a session with `checkpoint`"
            " `auto` that is the one right before it, unless something stood in the way: `rolled_back` says"
            " how many cells were undone."
        ),
        errors=(*STARTS, Conflict),
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        session = self._session(key)
        await self._answer(session, session.rollbacks.undo_last_cell())
