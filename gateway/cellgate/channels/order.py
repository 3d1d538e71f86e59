"""The order of a cell's end for its requester: all output, then execute_reply, then idle.

Reply and idle arrive on different sockets of the kernel, so either may be first; the first is held until the
other one has arrived. Some clients stop listening at the reply and some at idle, so they lose output if the
order differs. Pure: messages in, messages to deliver out. Source: jupyter-client's "Messaging in Jupyter",
"Kernel status".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from cellgate_kernels.protocol.messages import Channel, MalformedMessage, Message

Client = TypeVar("Client")


@dataclass(slots=True)
class Expected(Generic[Client]):
    """A request whose end is awaited, its client, and the parts of the end that have arrived."""

    client: Client
    busy: bool = False
    reply: Message | None = None
    idle: Message | None = None


class EndOrder(Generic[Client]):
    """All awaited requests of a session by msg_id."""

    def __init__(self) -> None:
        self._expected: dict[str, Expected[Client]] = {}

    def __contains__(self, msg_id: str) -> bool:
        return msg_id in self._expected

    def expect(self, msg_id: str, client: Client) -> None:
        """Start awaiting the end of a request from `client`."""
        self._expected[msg_id] = Expected(client)

    def forget(self, msg_id: str) -> Expected[Client] | None:
        """Stop awaiting a request; return the arrived parts of its end, or None if it had ended."""
        return self._expected.pop(msg_id, None)

    def awaiting(self, message: Message) -> Client | None:
        """Return the client whose request `message` helps to end; None for any other message."""
        found = self._expected.get(message.parent.msg_id)
        if found is None:
            return None
        if message.channel is Channel.IOPUB and message.msg_type == "status":
            if _is_idle(message):
                return found.client
            found.busy = True
        elif message.channel is Channel.SHELL and message.msg_type == "execute_reply":
            return found.client
        return None

    def take(self, message: Message) -> tuple[Message, ...]:
        """Hold a message that `awaiting` recognised; return both, in order, once both have arrived."""
        found = self._expected[message.parent.msg_id]
        if message.channel is Channel.IOPUB:
            found.idle = message
        else:
            found.reply = message
        if found.reply is None or found.idle is None:
            return ()
        del self._expected[message.parent.msg_id]
        return found.reply, found.idle


def _is_idle(message: Message) -> bool:
    try:
        return message.content().get("execution_state") == "idle"
    except MalformedMessage:
        return False
