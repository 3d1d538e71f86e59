"""AgentRun's wire: a script in, its output out. https://github.com/jonathan-adly/AgentRun

Each request has a fresh kernel and nothing of the ones before. What it imports is installed where the
operator allows packages. A code that runs too long is answered by a text, as there, and before clients
that wait for half a minute give up. Why a cell hook refuses a script is the whole answer, as of AgentRun's
own check of it.
"""

from __future__ import annotations

from typing import ClassVar

from cellgate.doors.base import Asked, DoorHandler, DoorHealthHandler, Script, printed
from cellgate.hook.program import CellRefused
from cellgate.http.operation import requires
from cellgate.identity.principal import Permission
from cellgate.wire.answers import Result
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.codec.encoding import encode_in_steps

TIMED_OUT = "Execution timed out."
TIMEOUT = 20.0
"""Seconds for a script, as there."""


class AgentRunBody(Asked, frozen=True):
    """A script to run."""

    code: str


class AgentRunHandler(DoorHandler):
    """Run a script."""

    door = "agentrun"

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Run a script and answer its output: stdout and stderr in order, and the traceback of an error."""
        try:
            body = await self.body(AgentRunBody)
        except InvalidInput as error:
            detail = {"loc": ["body"], "msg": error.message, "type": "value_error"}
            self.answer({"detail": [detail]}, 422)
            return
        result = (await self.run_once(Script(body.code, timeout=TIMEOUT, installs=True))).result
        if not self.disconnected:
            await self.answer_made(len(result.text), _answer, result)


class AgentRunHealthHandler(DoorHealthHandler):
    """AgentRun's health."""

    answered: ClassVar[object] = {"status": "ok"}


def _answer(result: Result) -> list[bytes]:
    """Encode a script's result in parts."""
    if result.status == "timeout":
        return encode_in_steps({"output": TIMED_OUT})
    if result.cause == CellRefused.reason and result.error is not None:
        return encode_in_steps({"output": result.error.evalue})
    return encode_in_steps({"output": printed(result)})


ROUTES = (("/agentrun/v1/run/?", AgentRunHandler), ("/agentrun/v1/health/?", AgentRunHealthHandler))
