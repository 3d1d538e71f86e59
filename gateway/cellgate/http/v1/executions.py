"""/v1/sessions/{s}/execute, /executions and the one-shot /v1/execute: run cells, get results, stop cells."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from cellgate.errors import Conflict, Forbidden, NotAcceptable, PackagesNotAllowed
from cellgate.execution.answer_size import DEFAULT_SIZE, AnswerSize
from cellgate.execution.checks import IDEMPOTENCY_KEY, check_idempotency_key, check_session_key, check_text
from cellgate.execution.pictures import Images
from cellgate.execution.request import ExecuteRequest, check_execute
from cellgate.execution.results import encoded_result
from cellgate.execution.run import ExecutionRun
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, NDJSON, PACKAGES, READS, RUNS, SSE, Answer, Format, operation
from cellgate.http.streaming import StreamingHandler
from cellgate.identity.principal import Permission
from cellgate.packages.settings import OUT_OF_SCOPE, not_allowed
from cellgate.sessions.registry import AcceptedExecution
from cellgate.sessions.session import Session
from cellgate.wire.answers import ExecutionPage, Result
from cellgate.wire.events import Event
from cellgate.wire.models import ExecuteBody, InputBody, OneShotBody, SessionBody
from cellgate.wire.queries import ExecutionsQuery, OneShotQuery, ResultQuery
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.codec.structure import INLINE_BYTES

LEAST_TEXT = 100
"""The smallest `max_text`: it must have room for the mark of a cut text."""


def checked_cell(handler: BaseHandler, body: ExecuteBody, *, interactive: bool = False) -> ExecuteRequest:
    """Return the body's cell, with its sender's ceilings and permission to install packages.

    Raises InvalidInput and PackagesNotAllowed.
    """
    ceilings = handler.services.sessions.terms.ceilings(handler.owner)
    request = check_execute(body, ceilings, interactive=interactive)
    if request.packages is not None and handler.services.kernels.installer is None:
        raise not_allowed()
    if Permission.PACKAGES in handler.login.permissions:
        return request
    if request.packages is not None:
        raise PackagesNotAllowed(OUT_OF_SCOPE)
    return replace(request, installs=False)


def _size(max_text: int | None) -> AnswerSize | None:
    if max_text is None:
        return DEFAULT_SIZE
    if 0 < max_text < LEAST_TEXT:
        raise InvalidInput(f"max_text must be at least {LEAST_TEXT}, or 0 for all there is")
    return AnswerSize.of_text(max_text) if max_text else None


def _request_hash(request: ExecuteRequest, language: str | None) -> str:
    relevant = f"{language or ''}{replace(request, allow_stdin=False)!r}"
    return hashlib.sha256(relevant.encode()).hexdigest()


class ExecutionAnswers(StreamingHandler):
    """Answers with an execution's result, with a stream of events, or at once with its present state."""

    def view(self) -> dict[str, Any]:
        """Return the query's options for the result, as keyword arguments."""
        if not self.request.query:
            return {"size": DEFAULT_SIZE, "base_url": self.services.front.base_url}
        query = self.query(OneShotQuery)
        return {
            "plain": query.plain,
            "size": _size(query.max_text),
            "images": Images(query.images),
            "base_url": self.services.front.base_url,
        }

    def idempotency_key(self) -> str | None:
        """Return the request's idempotency key, if any. Raises InvalidInput."""
        return check_idempotency_key(self.request.headers.get(IDEMPOTENCY_KEY))

    async def idempotency(self, key: str | None, hashed: Callable[[], str]) -> tuple[str, str] | None:
        """Return the key with the hash of the request, from `hashed`; None without a key."""
        if key is None:
            return None
        if len(self.raw_body()) > INLINE_BYTES:
            return key, await self.services.storage.lanes.texts.run(hashed)
        return key, hashed()

    async def answer_run(
        self, session: Session, run: ExecutionRun, form: Format, body: ExecuteBody, view: dict[str, Any]
    ) -> None:
        """Answer a submitted execution in the form that the request asks for."""
        if not body.wait and form is Format.JSON:
            path = f"/v1/sessions/{session.row.key}/executions/{run.id}"
            self.set_location(path)
            await self.answer_parts(await self.result(session, run.id, view), 202)
        elif form is Format.JSON:
            builder = run.record.builder
            self.interrupt_when_gone(session, run, body)
            await run.end.wait()
            if self.disconnected:
                return
            if builder is None:
                parts = await self.result(session, run.id, view)
            else:
                parts = await self.services.sessions.archive.made(builder, encoded_result, view)
            del builder  # while a slow client reads, keep only the encoded answer
            await self.answer_parts(parts)
        else:
            self.interrupt_when_gone(session, run, body)
            await self.stream(session.log.follow_execution(run.id, run.record.first_seq - 1), form)

    def interrupt_when_gone(self, session: Session, run: ExecutionRun, body: ExecuteBody) -> None:
        """Stop the cell when its client leaves, if the request asks for it; else log that it goes on."""
        if body.on_disconnect == "interrupt":
            self.stop_when_gone(session, run)
        else:
            self._gone.add_done_callback(lambda _: self._left(session, run))

    @staticmethod
    def _left(session: Session, run: ExecutionRun) -> None:
        if run.end.event is None:
            session.report("A client left; its cell goes on, and its result is kept", execution=run.id)

    def stop_when_gone(self, session: Session, run: ExecutionRun) -> None:
        """Stop the cell when its client leaves."""
        stop = guarded(
            lambda _: session.stop(run.id, "client_disconnected"),
            "interrupt for a client that left",
            session=session.row.key,
            execution=run.id,
        )
        self._gone.add_done_callback(stop)

    async def result(self, session: Session, execution: str, view: dict[str, Any]) -> list[bytes]:
        """Return the result so far of an execution of a live session, as JSON."""
        archive, row = self.services.sessions.archive, session.row
        return await archive.result(row.principal, row.key, execution, encoded_result, view)


class ExecuteHandler(ExecutionAnswers):
    """Run a cell in a session."""

    @operation(
        "run_cell",
        "Run a cell",
        Answer(
            200,
            "The result at the end, or events as they happen. A cell that raises an exception is a 200 too.",
            {JSON: Result, NDJSON: Event, SSE: Event},
        ),
        Answer(202, "It is queued (`wait` is false).", {JSON: Result}, {"Location": "The execution's path."}),
        description="A session that is not there is made. Cells run one at a time, in order of arrival.",
        query=ResultQuery,
        body={JSON: ExecuteBody},
        headers={"Idempotency-Key": "A repeat with the same key is answered with the first one's execution."},
        errors=(*RUNS, NotAcceptable, Conflict, *PACKAGES),
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        form = self.accepted()
        view = self.view()
        body = await self.body(ExecuteBody)
        request = checked_cell(self, body, interactive=form is not Format.JSON or not body.wait)
        hashed = partial(_request_hash, request, body.language)
        idempotency = await self.idempotency(self.idempotency_key(), hashed)
        async with nullcontext() if form is Format.JSON else self.waiting(form) as moved:
            accepted = await self.services.sessions.manager.execute(
                self.owner, key, request, language=body.language, idempotency=idempotency, moved=moved
            )
        await self._answer_accepted(accepted, form, body, view)

    async def _answer_accepted(
        self, accepted: AcceptedExecution, form: Format, body: ExecuteBody, view: dict[str, Any]
    ) -> None:
        session = accepted.session
        if isinstance(accepted.execution, ExecutionRun):
            await self.answer_run(session, accepted.execution, form, body, view)
            return
        execution, first_seq = accepted.execution
        if form is Format.JSON:
            status = 200 if body.wait else 202
            await self.answer_parts(await self.result(session, execution, view), status)
            return
        await self.stream(session.log.follow_execution(execution, first_seq - 1), form)


class OneShotHandler(ExecutionAnswers):
    """Run a cell in a fresh kernel, which is discarded afterwards."""

    @operation(
        "run_cell_once",
        "Run a cell in a fresh kernel",
        Answer(200, "The result, or events as they happen.", {JSON: Result, NDJSON: Event, SSE: Event}),
        description="The kernel is discarded afterwards.",
        query=OneShotQuery,
        body={JSON: OneShotBody},
        errors=(*RUNS, NotAcceptable, *PACKAGES),
        needs=Permission.RUN,
    )
    async def post(self) -> None:
        form = self.accepted()
        view = self.view()
        body = await self.body(OneShotBody)
        request = checked_cell(self, body)
        if not body.wait:
            raise InvalidInput("A one-shot execution is answered when it is finished; wait can't be false")
        manager = self.services.sessions.manager
        wanted = SessionBody(
            kernel=body.kernel,
            language=body.language,
            environment=body.environment,
            limits=body.limits,
            env=body.env,
        )
        request = replace(request, env=())
        if self.login.reach.exact:
            raise Forbidden("This token is for one session; a one-shot execution is a session of its own")
        if body.record and self.login.reach.prefix:
            wanted = structs.replace(wanted, session=self.login.reach.new_key(self.node))
        view["kept"] = body.record
        async with self.waiting(form) as moved:
            session, run = await manager.execute_once(
                self.owner, wanted, request, record=body.record, moved=moved
            )
        try:
            await self.answer_run(session, run, form, body, view)
        finally:
            manager.end_later(session, "one_shot")


class ExecutionsHandler(BaseHandler):
    """The list of a session's executions."""

    @operation(
        "list_executions",
        "List a session's executions",
        Answer(200, "One page, oldest first unless `newest` is set.", {JSON: ExecutionPage}),
        query=ExecutionsQuery,
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        query = self.query(ExecutionsQuery)
        models, following = await self.services.sessions.archive.executions(
            self.owner, key, query, is_gone=lambda: self.disconnected
        )
        self.answer(ExecutionPage(executions=models, next=following))


class ExecutionHandler(ExecutionAnswers):
    """One execution."""

    @operation(
        "get_execution",
        "Get an execution",
        Answer(200, "The result, or what there is so far.", {JSON: Result}),
        query=ResultQuery,
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self, key: str, execution: str) -> None:
        view = self.view()
        archive = self.services.sessions.archive
        parts = await archive.result(self.owner, key, execution, encoded_result, view)
        await self.answer_parts(parts)


class CancelHandler(BaseHandler):
    """Stop one execution."""

    @operation(
        "cancel_execution",
        "Cancel an execution",
        Answer(204, "The execution was removed from the queue, or interrupted."),
        errors=(*READS, Conflict),
        needs=Permission.RUN,
    )
    async def post(self, key: str, execution: str) -> None:
        session = self.services.sessions.manager.get(self.owner, check_session_key(key))
        if session is None or session.runs.find(execution) is None:
            await self.services.sessions.archive.find(self.owner, key, execution)
            raise Conflict("This execution has ended already")
        session.stop(execution, by=self.principal.name)
        self.set_status(204)


class InputHandler(BaseHandler):
    """Answer a cell's input()."""

    @operation(
        "answer_input",
        "Answer a cell's input()",
        Answer(204, "The line was sent to the kernel."),
        body={JSON: InputBody},
        errors=READS,
        needs=Permission.RUN,
    )
    async def post(self, key: str, execution: str) -> None:
        value = check_text((await self.body(InputBody)).value, "value", 1024 * 1024)
        self.services.sessions.manager.live(self.owner, key).runs.answer(execution, value)
        self.set_status(204)
