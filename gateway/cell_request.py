"""An execution's ``execute_request``, as the kernel gets it. Pure; ``gateway.executions`` sends it."""

from __future__ import annotations

from gateway.models import ExecuteRequest
from kernels.messages import Channel, Message, new_message


def execute_request(request: ExecuteRequest, session: str, msg_id: str) -> Message:
    """The client's own message, or one that is made from what it asked for."""
    if request.message is not None:
        return request.message
    content = {
        "code": request.code,
        "silent": request.silent,
        "store_history": not request.silent,
        "user_expressions": {},
        "allow_stdin": request.allow_stdin,
        # One cell at a time is sent, so there is no queue in the kernel that an error should abort;
        # with True ipykernel also aborts a cell that arrives just after the failed one's idle.
        "stop_on_error": False,
    }
    # Read by the kernel's start-up file, kernels/image/bootstrap.py.
    metadata = {} if request.tables is None else {"cellgate": {"tables": request.tables}}
    return new_message(
        Channel.SHELL, "execute_request", content, session=session, msg_id=msg_id, metadata=metadata
    )
