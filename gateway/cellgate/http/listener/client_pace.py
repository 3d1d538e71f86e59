"""The pace of one client: its connection's phase, and whether the client exceeds a timeout. Pure.

``listener.streams`` counts the client's bytes here and reports when a phase begins. No sockets and no timers:
callers pass each moment, from any clock that never goes back.
"""

from __future__ import annotations

from enum import StrEnum

from cellgate.http.listener.settings import ListenerSettings


class StreamPhase(StrEnum):
    """What a connection is doing: waiting for a request, reading its body, answering, or a WebSocket."""

    WAITING = "waiting"
    BODY = "body"
    ANSWER = "answer"
    WEBSOCKET = "websocket"


class Late(StrEnum):
    """The reason why we closed a connection."""

    HEAD = "head_timeout"
    IDLE = "idle_timeout"
    BODY = "body_timeout"
    FRAME = "frame_timeout"
    ANSWER = "answer_timeout"


class ClientPace:
    """The progress of a client. Phases are set by `waits`, `reads`, `answers` and `begins_message`.

    `since`: when the phase began. `received`, `sent`: all bytes of the connection. `busy`: the client is
    waiting for our work. `sending`: `transfer` writes to the socket directly. `spooled`: unread output is
    limited elsewhere, and may wait for long.
    """

    def __init__(self, now: float) -> None:
        self.phase = StreamPhase.WAITING
        self.busy = self.sending = self.spooled = False
        self.received = self.sent = 0
        self.since = self._window = self._write_window = now
        self._is_first = True
        # Marks are values of `received` or `sent`: at the start of the phase, of the window, of the message
        # and of the answer; and the part of `sent` that the client's system had received at the last check.
        self._phase_mark = self._window_mark = self._message_mark = self._answer_mark = 0
        self._taken_mark = -1

    def waits(self, buffered: int, now: float) -> None:
        """Begin to wait for a request; so many of its bytes have been received already."""
        self._is_first = self.received == 0
        self._enter(StreamPhase.WAITING, now)
        self._phase_mark -= buffered
        self._answer_mark = self.sent

    def reads(self, now: float) -> None:
        """Note that a request's head is complete and its body follows."""
        self._enter(StreamPhase.BODY, now)
        self._answer_mark = self.sent

    def answers(self, now: float) -> None:
        """Note that the request is complete."""
        self._enter(StreamPhase.ANSWER, now)

    def begins_message(self, buffered: int, now: float) -> None:
        """Begin to wait for a WebSocket's next message; so many of its bytes have been received already."""
        self._enter(StreamPhase.WEBSOCKET, now)
        self.busy = False
        self._message_mark = self.received - buffered

    def ends_message(self) -> None:
        """Note that the message is complete; from here on the client waits for the gateway."""
        self.busy = True

    def _enter(self, phase: StreamPhase, now: float) -> None:
        self.phase = phase
        self.since = self._window = self._write_window = now
        self._phase_mark = self._window_mark = self.received

    @property
    def has_begun(self) -> bool:
        """Whether bytes of this phase have been received, possibly before it began."""
        return self.received > self._phase_mark

    @property
    def has_answer(self) -> bool:
        """Whether bytes were sent since the request began."""
        return self.sent > self._answer_mark

    @property
    def is_within_request(self) -> bool:
        """Whether a part of a request has come, and the rest is still missing."""
        return self.phase is StreamPhase.BODY or (self.phase is StreamPhase.WAITING and self.has_begun)

    def late(self, now: float, settings: ListenerSettings, queued: int | None) -> Late | None:
        """Return which timeout the client has exceeded, if any. Call it once a second.

        `queued`: bytes sent that the client's system has not received; None if all available bytes were sent.
        """
        match self.phase:
            case StreamPhase.WAITING:
                return self._late_with_head(now, settings)
            case StreamPhase.BODY:
                return Late.BODY if self._stalls(now, settings, begun=True) else None
            case StreamPhase.WEBSOCKET:
                if self._stalls(now, settings, begun=self.received > self._message_mark):
                    return Late.FRAME
                unread = not self.spooled and self._is_unread(now, settings.answer_timeout, queued)
                return Late.ANSWER if unread else None
            case StreamPhase.ANSWER:
                return Late.ANSWER if self._is_unread(now, settings.answer_timeout, queued) else None

    def _late_with_head(self, now: float, settings: ListenerSettings) -> Late | None:
        if self._is_first:
            return Late.HEAD if now - self.since > settings.head_timeout else None
        if self.received == self._phase_mark:
            # Nothing received yet: the head's timeout starts with its first byte.
            self._window = now
            return Late.IDLE if now - self.since > settings.idle_timeout else None
        return Late.HEAD if now - self._window > settings.head_timeout else None

    def _stalls(self, now: float, settings: ListenerSettings, *, begun: bool) -> bool:
        """Return whether a whole window brought less than `body_rate`. Waiting starts a new window."""
        waits = self.busy or not begun
        if not waits and now - self._window <= settings.body_timeout:
            return False
        came = self.received - self._window_mark
        self._window = now
        self._window_mark = self.received
        return not waits and came < settings.body_rate * settings.body_timeout

    def _is_unread(self, now: float, timeout: float, queued: int | None) -> bool:
        """Return whether the client's system has received nothing for so long, although bytes wait."""
        if queued is None:
            self._write_window = now
        elif (taken := self.sent - queued) != self._taken_mark:
            self._write_window = now
            self._taken_mark = taken
        return now - self._write_window > timeout
