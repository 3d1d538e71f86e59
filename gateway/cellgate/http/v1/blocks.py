"""/v1/sessions/{s}/execute-blocks: several blocks of code, one after another until one fails.

Each block is an execution like any other, recorded as the cell that ran; ``execution.blocks`` turns blocks
into cells. A result is sent as soon as it is ready, so that at most one is held in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tornado.iostream import StreamClosedError

from cellgate.errors import QuotaExceeded, problem_of
from cellgate.execution.answer_size import AnswerSize, images_in, shorten
from cellgate.execution.blocks import FAILED, Block, check_blocks, exit_code
from cellgate.execution.request import check_execute
from cellgate.execution.results import ResultBuilder
from cellgate.http.message import encode
from cellgate.http.operation import JSON, RUNS, Answer, operation
from cellgate.http.v1.executions import ExecutionAnswers, checked_cell
from cellgate.identity.principal import Permission
from cellgate.sessions.session import Session
from cellgate.wire.answers import BlocksResult
from cellgate.wire.models import BlocksBody, ExecuteBody
from cellgate.wire.problems import Problem
from cellgate.wire.queries import ResultQuery
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.codec.encoding import encode_in_steps
from cellgate_kernels.codec.structure import INLINE_BYTES

INLINE_MARKDOWN = 4096
"""Bytes of a Markdown text that are parsed at once: the parser takes fifty milliseconds at the worst."""


@dataclass(frozen=True, slots=True)
class _BlockAnswer:
    """A block's result in JSON, and its part of the answer. `size`: how much may follow; None for any."""

    parts: list[bytes]
    text: str
    exit_code: int
    size: AnswerSize | None


class BlocksHandler(ExecutionAnswers):
    """Run blocks in a session."""

    @operation(
        "run_blocks",
        "Run blocks one after another",
        Answer(200, "The results, in order. The first block that fails ends the run.", {JSON: BlocksResult}),
        query=ResultQuery,
        body={JSON: BlocksBody},
        errors=(*RUNS, QuotaExceeded),
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        view = self.view()
        body = await self.body(BlocksBody)
        if len(self.raw_body()) > (INLINE_BYTES if body.markdown is None else INLINE_MARKDOWN):
            blocks = await self.services.storage.lanes.texts.run(check_blocks, body)
        else:
            blocks = check_blocks(body)
        options = ExecuteBody("", timeout=body.timeout, on_disconnect=body.on_disconnect)
        check_execute(options, self.services.sessions.manager.ceilings(self.owner), interactive=False)
        session = await self.services.sessions.files.session(self.owner, key)
        language = self.services.kernels.catalog.get_kernel_spec(session.row.kernel).language
        cells = [ExecuteBody(block.cell(language), timeout=body.timeout) for block in blocks]
        self._begun = False
        self._texts: list[str] = []
        size: AnswerSize | None = view["size"]
        code, failure = await self._run_all(session, list(zip(blocks, cells, strict=True)), options, view)
        text = "".join(self._texts)
        if size is not None:
            text = shorten(text, size.text, "GET of each block's execution with ?max_text=0")
        output = await self.services.sessions.archive.encoded(text)
        await self._send(
            [b'],"exit_code":%d,"output":' % code, *output, b',"problem":%s}\n' % encode(failure)]
        )

    async def _run_all(
        self,
        session: Session,
        work: list[tuple[Block, ExecuteBody]],
        options: ExecuteBody,
        view: dict[str, Any],
    ) -> tuple[int, Problem | None]:
        """Return the exit code, and why a later block could not run. Raises if the first one could not."""
        for block, cell in work:
            try:
                answer = await self._run(session, block, cell, options, view)
            except CellgateError as error:
                if not self._begun:
                    raise
                return FAILED, problem_of(error)
            view = {**view, "size": answer.size}
            await self._send([b"," if self._begun else b'{"blocks":[', *answer.parts])
            self._begun = True
            self._add_text(answer.text)
            if answer.exit_code:
                return answer.exit_code, None
        return 0, None

    async def _run(
        self, session: Session, block: Block, cell: ExecuteBody, options: ExecuteBody, view: dict[str, Any]
    ) -> _BlockAnswer:
        if block.file is not None:
            await self.services.sessions.files.write(session, block.file, block.code.encode())
        run = session.submit(checked_cell(self, cell))
        builder = run.record.builder
        self.interrupt_when_gone(session, run, options)
        await run.end.wait()
        archive, row = self.services.sessions.archive, session.row
        if builder is None:
            return await archive.result(row.principal, row.key, run.id, _block_answer, view)
        return await archive.made(builder, _block_answer, view)

    def _add_text(self, text: str) -> None:
        if text and self._texts and not self._texts[-1].endswith("\n"):
            self._texts.append("\n")
        if text:
            self._texts.append(text)

    async def _send(self, parts: list[bytes]) -> None:
        """Write parts of the answer, if the client is still there."""
        if self.disconnected:
            return
        if not self._begun:
            self.set_header("Content-Type", "application/json; charset=utf-8")
        try:
            await self.write_parts(parts)
        except StreamClosedError:
            self.on_connection_close()


def _block_answer(builder: ResultBuilder, view: dict[str, Any]) -> _BlockAnswer:
    result = builder.result(**view)
    parts = encode_in_steps(result)
    size: AnswerSize | None = view["size"]
    if size is not None:
        in_json, as_files = images_in(result.outputs)
        size = size.without(sum(map(len, parts)) - in_json, as_files)
    return _BlockAnswer(parts, result.text, exit_code(result), size)
