"""/v1/sessions/{s}/execute-blocks: several blocks of code, one after another until one fails.

Each block is an execution like any other, recorded as the cell that ran; ``execution.blocks`` turns blocks
into cells. A result is sent as soon as it is ready, so that at most one is held in memory.
"""

from __future__ import annotations

from typing import Any

from tornado.iostream import StreamClosedError

from cellgate.errors import QuotaExceeded, problem_of
from cellgate.execution.blocks import FAILED, Block, check_blocks, exit_code
from cellgate.execution.request import check_execute
from cellgate.execution.results import ResultBuilder
from cellgate.http.base import encode
from cellgate.http.operation import JSON, RUNS, Answer, operation
from cellgate.http.v1.executions import ExecutionAnswers, permitted
from cellgate.principals.principal import Permission
from cellgate.sessions.session import Session
from cellgate.wire.answers import BlocksResult
from cellgate.wire.models import BlocksBody, ExecuteBody
from cellgate.wire.problems import Problem
from cellgate.wire.queries import ResultQuery
from cellgate_kernels.encoding import encode_in_steps
from cellgate_kernels.errors import CellgateError
from cellgate_kernels.structure import INLINE_BYTES


class BlocksHandler(ExecutionAnswers):
    """Run blocks in a session."""

    @operation(
        "Run blocks one after another",
        Answer(200, "The results, in order. The first block that fails ends the run.", {JSON: BlocksResult}),
        query=ResultQuery,
        body={JSON: BlocksBody},
        errors=(*RUNS, QuotaExceeded),
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        """Check all blocks, then run them; a missing session is created."""
        self.check()
        view = self.view()
        body = await self.body(BlocksBody)
        if len(self.raw_body()) > INLINE_BYTES:
            blocks = await self.services.lanes.texts.run(check_blocks, body)
        else:
            blocks = check_blocks(body)
        options = ExecuteBody("", timeout=body.timeout, on_disconnect=body.on_disconnect)
        check_execute(options, self.services.manager.ceilings(self.owner), interactive=False)
        session = await self.services.files.session(self.owner, key)
        language = self.services.catalog.get_kernel_spec(session.row.kernel).language
        cells = [ExecuteBody(block.cell(language), timeout=body.timeout) for block in blocks]
        self._begun = False
        self._texts: list[str] = []
        code, failure = await self._run_all(session, list(zip(blocks, cells, strict=True)), options, view)
        output = await self.services.archive.encoded("".join(self._texts))
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
        """The exit code, and why a later block could not be run at all. Raises if the first one could not."""
        for block, cell in work:
            try:
                result = await self._run(session, block, cell, options, view)
            except CellgateError as error:
                if not self._begun:
                    raise
                return FAILED, problem_of(error)
            parts, text, code = result
            await self._send([b"," if self._begun else b'{"blocks":[', *parts])
            self._begun = True
            self._add_text(text)
            if code:
                return code, None
        return 0, None

    async def _run(
        self, session: Session, block: Block, cell: ExecuteBody, options: ExecuteBody, view: dict[str, Any]
    ) -> tuple[list[bytes], str, int]:
        """The result in JSON, its text, and the exit code."""
        if block.file is not None:
            await self.services.files.write(session, block.file, block.code.encode())
        request = check_execute(cell, self.services.manager.ceilings(self.owner), interactive=False)
        run = session.submit(permitted(self.services, self.login, request))
        builder = run.builder
        self.interrupt_when_gone(session, run, options)
        await run.wait()
        archive, row = self.services.archive, session.row
        if builder is None:
            return await archive.result(row.principal, row.key, run.id, _block_result, view)
        return await archive.made(builder, _block_result, view)

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


def _block_result(builder: ResultBuilder, view: dict[str, Any]) -> tuple[list[bytes], str, int]:
    result = builder.result(**view)
    return encode_in_steps(result), result.text, exit_code(result)
