"""Questions to a session's kernel besides cells, as the wire has them: completions, names, variables.

``cellgate_kernels.kernel.questions`` asks and checks the answers; ``session`` decides when to ask a kernel.
"""

from __future__ import annotations

from msgspec import UNSET

from cellgate.errors import Conflict
from cellgate.execution.checks import check_text
from cellgate.sessions.session import Session
from cellgate.wire.answers import Completion, Inspection, VariableList, VariableModel
from cellgate.wire.models import MOST_ASKED_BYTES, CompleteBody, InspectBody
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.kernel import questions
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.outputs import strip_ansi

TEXT = "text/plain"


async def completion(session: Session, body: CompleteBody) -> Completion:
    """Ask for completions at the cursor. Raises InvalidInput, and the errors of `SessionHolds.ask`."""
    code, cursor = _checked(body)

    async def ask(kernel: Kernel) -> questions.KernelCompletion:
        return await questions.complete(kernel.connection, kernel.exited, code, cursor)

    found = await session.holds.ask(ask)
    return Completion(
        matches=found.matches,
        start=found.start,
        end=found.end,
        types=found.types or UNSET,
        truncated=found.truncated,
    )


async def inspection(session: Session, body: InspectBody) -> Inspection:
    """Inspect the name at the cursor. Raises InvalidInput, and the errors of `SessionHolds.ask`."""
    code, cursor = _checked(body)

    async def ask(kernel: Kernel) -> questions.KernelInspection:
        return await questions.inspect(kernel.connection, kernel.exited, code, cursor, body.detail)

    data = (await session.holds.ask(ask)).data
    return Inspection(found=bool(data), text=strip_ansi(data.get(TEXT, "")), data=data)


async def variables(session: Session) -> VariableList:
    """Return the kernel's variables. Raises Conflict if it can't list them, and as `SessionHolds.ask`."""

    async def ask(kernel: Kernel) -> questions.KernelVariables:
        if not kernel.facts.tells_variables:
            raise Conflict(
                f"Kernels of {kernel.profile.kernelspec!r} tell of no variables; those of Python do that were"
                " started by this version"
            )
        texts = session.slot.secrets is None
        return await questions.variables(kernel.connection, kernel.exited, texts=texts)

    found = await session.holds.ask(ask)
    return VariableList(
        variables=[
            VariableModel(
                name=each.name,
                type=each.type,
                summary=each.summary,
                size=UNSET if each.size is None else each.size,
            )
            for each in found.variables
        ],
        truncated=found.truncated,
    )


def _checked(body: CompleteBody | InspectBody) -> tuple[str, int]:
    """Return the code and the position of the cursor in it. Raises InvalidInput."""
    code = check_text(body.code, "code", MOST_ASKED_BYTES)
    cursor = len(code) if body.cursor is None else body.cursor
    if cursor > len(code):
        raise InvalidInput(f"cursor must be at most {len(code)}, the length of the code in code points")
    return code, cursor
