"""/v1/sessions/{s}/explore: alternatives to the next cell, each run in a branch of the session, side by side.

``sessions.exploring`` runs them. Their results are read from the record one after the other, once all have
ended, so that at most one is held in memory. Together they are as large as one answer may be.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import UNSET, UnsetType, structs
from tornado.iostream import StreamClosedError

from cellgate.errors import Conflict, FileHeld, QuotaExceeded, problem_of
from cellgate.execution.answer_size import AnswerSize, images_in
from cellgate.execution.checks import check_session_key
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.results import ResultBuilder
from cellgate.http.message import encode
from cellgate.http.operation import JSON, RUNS, Answer, operation
from cellgate.http.v1.executions import ExecutionAnswers, checked_cell
from cellgate.identity.principal import Permission
from cellgate.sessions.exploring import Explored, Fate, Keep, Plan, SessionExploration, branch_keys
from cellgate.wire import answers
from cellgate.wire.models import MOST_ALTERNATIVES, ExecuteBody, ExploreBody
from cellgate.wire.problems import Problem
from cellgate.wire.queries import ResultQuery
from cellgate_kernels.base.errors import CannotBranch, CellgateError, InvalidInput, KernelBusy
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.codec.encoding import encode_in_steps
from cellgate_kernels.protocol.execution import Status


@dataclass(frozen=True, slots=True)
class _Part:
    """An alternative in JSON, and the size left for the others; None: unlimited."""

    parts: list[bytes]
    left: AnswerSize | None


class ExploreHandler(ExecutionAnswers):
    """Run alternatives in branches of a session."""

    @operation(
        "explore_alternatives",
        "Run alternatives in branches, side by side",
        Answer(200, "What came of each alternative, in the order given.", {JSON: answers.Exploration}),
        description=(
            "Each cell runs in a branch of the session as it is now. As many run at once as there are places "
            "and quotas for, the others in turn. The session's own cells wait until all have ended. With "
            "`keep` `first_ok` those after one that has ended well may be left out. Only idle sessions of "
            "Python kernels in a sandbox or container can be explored."
        ),
        query=ResultQuery,
        body={JSON: ExploreBody},
        headers={"Idempotency-Key": "A repeat with the same key is answered with what came of the first."},
        errors=(*RUNS, Conflict, FileHeld, KernelBusy, CannotBranch, QuotaExceeded),
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        view = self.view()
        body = await self.body(ExploreBody)
        plan = await self._plan(check_session_key(key), body)
        going = await self.services.sessions.explorer.begin(self.owner, key, plan)
        await self._answer(going if isinstance(going, list) else await self._ended(going, body), view)

    async def _ended(self, going: SessionExploration, body: ExploreBody) -> list[Explored]:
        if body.on_disconnect == "interrupt":
            self._gone.add_done_callback(
                guarded(lambda _: going.stop("client_disconnected"), "stop for a client that left")
            )
        return await going.ended()

    async def _plan(self, session: str, body: ExploreBody) -> Plan:
        """Return the requested exploration. Raises InvalidInput, Forbidden, PackagesNotAllowed."""
        if not 1 <= len(body.cells) <= MOST_ALTERNATIVES:
            raise InvalidInput(f"cells has {len(body.cells)} cells; from 1 to {MOST_ALTERNATIVES} are taken")
        idempotency_key = self.idempotency_key()
        cells = tuple(self._cell(code, body) for code in body.cells)
        branches = branch_keys(self.owner, session, len(cells), idempotency_key)
        for branch in branches:
            self.login.reach.branch_key(branch)
        idempotency = await self.idempotency(idempotency_key, partial(_request_hash, body))
        return Plan(cells, branches, Keep(body.keep), body.anyway, idempotency)

    def _cell(self, code: str, body: ExploreBody) -> ExecuteRequest:
        return checked_cell(self, ExecuteBody(code, timeout=body.timeout, on_disconnect=body.on_disconnect))

    async def _answer(self, found: list[Explored], view: dict[str, Any]) -> None:
        left: AnswerSize | None = view["size"]
        self.set_header("Content-Type", "application/json; charset=utf-8")
        opening = b'{"results":['
        try:
            for index, each in enumerate(found):
                if self.disconnected:
                    return
                size = None if left is None else left.share(len(found) - index)
                part = await self._part(each, {**view, "size": size}, left)
                left = part.left
                await self.write_parts([opening, *part.parts])
                opening = b","
            await self.write_parts([b"]}\n"])
        except StreamClosedError:
            self.on_connection_close()

    async def _part(self, each: Explored, view: dict[str, Any], left: AnswerSize | None) -> _Part:
        problem = UNSET if each.refusal is None else problem_of(each.refusal)
        if each.branch is not None and each.execution is not None:
            archive = self.services.sessions.archive
            try:
                return await archive.result(
                    self.owner, each.branch, each.execution, _ran, view, each.fate, problem, left
                )
            except CellgateError as error:
                # The branch was purged meanwhile, or the record can't be read.
                problem = problem_of(error)
        cause = each.fate if problem is UNSET else problem.reason
        model = answers.Alternative(
            session=each.branch or "",
            execution=each.execution or "",
            status=Status.CANCELLED if each.execution is None else "",
            cause=cause,
            branch=each.fate.value,
            problem=problem,
        )
        return _Part([encode(model)], left)


def _ran(
    builder: ResultBuilder,
    view: dict[str, Any],
    fate: Fate,
    problem: Problem | UnsetType,
    left: AnswerSize | None,
) -> _Part:
    result = builder.result(**view)
    model = answers.Alternative(**structs.asdict(result), branch=fate.value, problem=problem)
    parts = encode_in_steps(model)
    if left is not None:
        in_json, as_files = images_in(result.outputs)
        left = left.without(sum(map(len, parts)) - in_json, as_files)
    return _Part(parts, left)


def _request_hash(body: ExploreBody) -> str:
    return hashlib.sha256(encode(structs.replace(body, on_disconnect="continue"))).hexdigest()
