"""The Jupyter door of one session: its clients, their requests to the kernel, and the messages to them.

The session's single connection to its kernel stays the only reader; the door distributes its messages. An
execute_request becomes an execution in the session's queue, recorded like any other; all other messages go to
the kernel immediately. Replies go to the requester, iopub messages to all clients. The door knows no socket
and no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from dataclasses import replace
from typing import Any, Protocol

from cellgate.channels.client import GOING_AWAY, ChannelSettings, Client
from cellgate.channels.frame_log import KernelFrames
from cellgate.channels.frames import OutgoingMessage
from cellgate.channels.missing_files import MissingFiles
from cellgate.channels.order import EndOrder
from cellgate.channels.requests import Received, names_subshell
from cellgate.channels.synthesis import aborted_reply, answer_to, beside, error_content, failed_reply, status
from cellgate.errors import Conflict, QueueFull
from cellgate.execution.cell_record import explain_end
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun
from cellgate.record.spill_ledger import Opener
from cellgate_kernels.base.errors import CellgateError, InvalidInput, KernelDied
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.kernel.branch_request import REQUEST as BRANCH_REQUEST
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.execution import Outcome, Status
from cellgate_kernels.protocol.messages import Channel, Message
from cellgate_kernels.protocol.websocket import Subprotocol

logger = logging.getLogger(__name__)

MAX_ROUTES = 10_000
MAX_HELD = 1000
MAX_ABSENT = 32


class DoorHost(Protocol):
    """The session, as its door sees it."""

    @property
    def kernel(self) -> Kernel | None:
        """The current kernel, if any."""

    def submit_message(self, request: ExecuteRequest, *, beside: bool) -> ExecutionRun:
        """Queue a client's cell, or run it `beside` the others in a subshell."""

    def interrupt_requested(self) -> None:
        """Note that a client has sent its own interrupt_request."""

    def waiting_messages(self) -> list[ExecutionRun]:
        """Queued cells of clients."""

    def stop(self, execution: str, cause: str) -> None:
        """Remove an execution from the queue."""

    def revive(self) -> None:
        """Start a fresh kernel if there is none."""

    def attend_door(self) -> None:
        """Listen to the kernel while there are clients: called when the first comes or the last goes."""

    def hold_back(self) -> None:
        """Slow the kernel down: messages for some client arrive faster than the disk can store them."""


class Door:
    """All clients of the session with this key.

    `open_space`: opens its principal's disk space, for unread messages.
    """

    def __init__(self, host: DoorHost, key: str, settings: ChannelSettings, open_space: Opener) -> None:
        self.settings = settings
        self._host = host
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._order: EndOrder[Client] = EndOrder()
        self._routes: OrderedDict[str, Client] = OrderedDict()
        self._held: deque[Message] = deque()
        self._asking: Client | None = None
        self._doomed: dict[str, list[str]] = {}
        self._missing = MissingFiles(key)
        self._closings = Supervisor()
        self._frames = KernelFrames(settings.folder, settings.outbox, settings.lane, open_space)

    # Clients

    @property
    def connections(self) -> int:
        """Clients with an open socket."""
        return sum(client.connected for client in self._clients.values())

    @property
    def has_clients(self) -> bool:
        """Whether there are clients, connected or expected to reconnect."""
        return bool(self._clients)

    @property
    def full(self) -> bool:
        """Whether no more clients are accepted."""
        return self.connections >= self.settings.max_clients

    @property
    def crowded(self) -> bool:
        """Whether messages for some client arrive faster than the disk can store them."""
        return self._frames.crowded

    async def room(self) -> None:
        """Wait until the door is not `crowded`."""
        await self._frames.room()

    def connect(self, session_id: str, frames: Subprotocol) -> Client:
        """Return the client with this id: the one that is expected to reconnect, or a new one."""
        client = self._clients.get(session_id)
        if client is not None and (client.lost or client.frames != frames):
            self._drop(client)
            client = None
        if client is None:
            client = self._clients[session_id] = Client(session_id, frames, self.settings, self._frames)
            self._host.attend_door()
        self._host.revive()
        return client

    def disconnect(self, client: Client, *, returns: bool) -> None:
        """Detach a client whose socket is gone; with `returns`, it is expected to reconnect for a while."""
        client.detach()
        if not returns or client.lost:
            self._drop(client)
            return
        loop = asyncio.get_running_loop()
        guarded_drop = self._closings.guard(self._drop, "patience with a client")
        client.expect_back(loop.call_later(self.settings.replay_seconds, guarded_drop, client))
        absent = [other for other in self._clients.values() if not other.connected]
        for other in absent[:-MAX_ABSENT]:
            self._drop(other)

    def _drop(self, client: Client) -> None:
        if self._clients.get(client.session_id) is client:
            del self._clients[client.session_id]
            self._host.attend_door()
        self._close_later(client, "The client was replaced or did not come back")

    def _close_later(self, client: Client, reason: str) -> None:
        self._closings.start(client.close(GOING_AWAY, reason), "close client")

    async def close(self) -> None:
        """Tell the clients that the session has ended, and close each after its pending messages."""
        self.tell("dead")
        for client in tuple(self._clients.values()):
            self._close_later(client, "The kernel has ended")
        self._clients.clear()
        await self._closings.finished()
        await self._frames.close()

    # From clients

    def send(self, client: Client, received: Received) -> None:
        """Handle a client's message. Raises KernelDied while the kernel accepts no more; try again later."""
        message = received.message
        msg_type = message.msg_type
        if msg_type == "execute_request":
            if received.cell is not None:
                self._execute(client, message, received.cell)
            else:
                # Kernels would run it, beside the queue, its limits and the record.
                self._refuse(client, message, InvalidInput("A cell is sent on the shell channel"))
            return
        if msg_type == BRANCH_REQUEST:
            # The kernel would fork outside all limits, to no use. No client sends this by mistake.
            logger.debug("Dropped a request for a branch, which only the gateway makes")
            return
        if message.channel is Channel.STDIN:
            if self._asking is not client:
                logger.debug("Dropped an input_reply that nobody asked this client for")
                return
            self._asking = None
        elif msg_type == "interrupt_request":
            self._host.interrupt_requested()
        self._route(message, client)
        self._forward(message)

    def _execute(self, client: Client, message: Message, cell: ExecuteRequest | InvalidInput) -> None:
        msg_id = message.header.msg_id
        try:
            if msg_id in self._order:
                raise Conflict(f"A cell of msg_id {msg_id[:60]!r} has not ended yet")
            if isinstance(cell, InvalidInput):
                raise cell
            request = cell if client.installs else replace(cell, installs=False)
            self._order.expect(msg_id, client)
            self._route(message, client)
            self._host.submit_message(request, beside=names_subshell(message))
        except CellgateError as error:
            if not isinstance(error, Conflict):
                self._order.forget(msg_id)
            self._refuse(client, message, error)

    def _refuse(self, client: Client, message: Message, error: CellgateError) -> None:
        ename = "QueueFull" if isinstance(error, QueueFull) else type(error).__name__
        content = error_content(ename, error.message)
        for answer in (
            status("busy", message),
            answer_to(message, Channel.IOPUB, "error", content),
            failed_reply(message, ename, error.message),
            status("idle", message),
        ):
            client.put(OutgoingMessage(answer))

    def _route(self, message: Message, client: Client) -> None:
        self._routes[message.header.msg_id] = client
        if len(self._routes) > MAX_ROUTES:
            self._routes.popitem(last=False)

    def _forward(self, message: Message) -> None:
        kernel = self._host.kernel
        if kernel is not None and kernel.alive and not self._held:
            kernel.connection.send(message)
        elif len(self._held) < MAX_HELD:
            self._held.append(message)
            self._host.revive()
        else:
            raise KernelDied("The kernel is being replaced and takes no more messages")

    def reply(self, client: Client, message: Message) -> None:
        """Send one client a message of the gateway itself."""
        client.put(OutgoingMessage(message))

    # To clients

    def receive(self, message: Message) -> None:
        """Pass a message from the kernel on to its clients."""
        if not self._clients or message.left_out:
            return
        if message.msg_type == "error" and message.channel is Channel.IOPUB:
            self._note_error(message.parent.msg_id)
        requester = self._order.awaiting(message)
        if requester is not None:
            if message.channel is Channel.IOPUB:
                self._broadcast(message, besides=requester)
            for ended in self._order.take(message):
                self._tell_missing(ended, requester)
                requester.put(OutgoingMessage(ended))
        elif message.channel is Channel.IOPUB:
            self._broadcast(message)
        elif (client := self._routes.get(message.parent.msg_id)) is not None:
            if message.channel is Channel.STDIN:
                self._asking = client
            client.put(OutgoingMessage(message))
        if self.crowded:
            self._host.hold_back()

    def _tell_missing(self, ended: Message, requester: Client) -> None:
        """Show the sender of a cell that missed a file, before its reply, how to send the file."""
        if ended.channel is Channel.SHELL and (line := self._missing.line(ended)) is not None:
            shown = beside(ended, Channel.IOPUB, "stream", {"name": "stderr", "text": line})
            requester.put(OutgoingMessage(shown))

    def _broadcast(self, message: Message, *, besides: Client | None = None) -> None:
        outgoing = OutgoingMessage(message)
        for client in self._clients.values():
            if client is not besides:
                client.put(outgoing)

    def _note_error(self, msg_id: str) -> None:
        """Let the error abort the cells queued now. Later cells were sent knowing of the error, and run."""
        if msg_id in self._order and msg_id not in self._doomed:
            self._doomed[msg_id] = [run.id for run in self._host.waiting_messages()]

    def finished(self, run: ExecutionRun) -> None:
        """Send an ended run's requester the messages the kernel did not send, and abort later cells."""
        request = run.request.message
        if request is None:
            return
        outcome = run.machine.outcome()
        doomed = self._doomed.pop(run.msg_id, [])
        if outcome.status is not Status.OK and outcome.status is not Status.CANCELLED:
            waiting = {other.id for other in self._host.waiting_messages()}
            for execution in doomed:
                if run.request.stop_on_error and execution in waiting:
                    self._host.stop(execution, "aborted")
        expected = self._order.forget(run.msg_id)
        if expected is None:
            return
        if expected.reply is None and expected.idle is None:
            if not expected.busy:
                self._broadcast(status("busy", request))
            self._explain(request, run, outcome)
        reply = expected.reply or self._reply(request, run, outcome)
        expected.client.put(OutgoingMessage(reply))
        if expected.idle is None:
            self._broadcast(status("idle", request))
        else:
            expected.client.put(OutgoingMessage(expected.idle))

    def _explain(self, request: Message, run: ExecutionRun, outcome: Outcome) -> None:
        """Show why there is no more output. An abort is left out: clients expect it."""
        if outcome.cause != "aborted":
            content = error_content(*_reason(run, outcome))
            self._broadcast(answer_to(request, Channel.IOPUB, "error", content))

    def _reply(self, request: Message, run: ExecutionRun, outcome: Outcome) -> Message:
        if outcome.status is Status.CANCELLED:
            return aborted_reply(request)
        if outcome.status is Status.OK:
            count = outcome.execution_count
            content: dict[str, Any] = {"status": "ok", "execution_count": count}
            content |= {"payload": [], "user_expressions": {}}
            return answer_to(request, Channel.SHELL, "execute_reply", content)
        return failed_reply(request, *_reason(run, outcome))

    def tell(self, state: str) -> None:
        """Send all clients a kernel state that the kernel can't report itself: restarting, idle, dead."""
        self._broadcast(status(state))

    def kernel_gone(self, *, asked: bool) -> None:
        """Note that the kernel has ended or is being replaced; `asked`: because of a requested restart.

        For Jupyter's clients, `restarting` means that the kernel died on its own, and JupyterLab shows that.
        """
        self._asking = None
        self.tell("starting" if asked else "restarting")

    def kernel_ready(self, kernel: Kernel) -> None:
        """Send a fresh kernel the messages that clients sent meanwhile."""
        self.tell("idle")
        while self._held:
            try:
                kernel.connection.send(self._held.popleft())
            except KernelDied as error:
                logger.warning("A client's message was lost: %s", error.message)


def _reason(run: ExecutionRun, outcome: Outcome) -> tuple[str, str]:
    if outcome.error is not None:
        return outcome.error["ename"], outcome.error["evalue"]
    explained = explain_end(outcome.status, run.deadline.timeout, run.message)
    if explained is not None:
        return explained["ename"], explained["evalue"]
    ename = "CellNotRun" if outcome.status is Status.CANCELLED else "KernelLost"
    return ename, f"The cell ended before its time: {outcome.cause or outcome.status}"
