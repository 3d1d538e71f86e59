"""The limits of a kernel's messages: one table, by channel and type, applied before any decoding.

User code can sign messages, so neither a message nor its size can be trusted. A message over its limit is
skipped and counted (``connection``); for an output the result has a mark. ``structure`` limits how complex
JSON may be, ``zmtp`` limits frames. Pure. Source of the types: jupyter-client's "Messaging in Jupyter".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cellgate_kernels.base.resources import KIB, MIB
from cellgate_kernels.protocol.messages import DELIMITER, MOST_HEADER, Channel, MalformedMessage, read_header
from cellgate_kernels.protocol.outputs import OutputCaps

SMALL_BYTES = 4 * KIB
SMALL_FRAMES = 8
"""A message within both is within every limit below, so most need no other comparison."""

MOST_BUFFERS = 10_000
_PARENT, _METADATA, _CONTENT = 2, 3, 4
"""Positions of a message's frames after the delimiter; the signature is at 0."""
_LONGEST_ESCAPE = 6
"""The most bytes of JSON for one byte of text."""


@dataclass(frozen=True, slots=True)
class MessageLimit:
    """The most bytes of a message's parts. `buffers`: of all buffers together; 0 allows none."""

    content: int
    metadata: int = SMALL_BYTES
    buffers: int = 0

    def holds(self, metadata: int, content: int, buffers: Sequence[bytes]) -> bool:
        """Return whether these sizes and buffers are within the limit."""
        return (
            content <= self.content
            and metadata <= self.metadata
            and (not buffers or (len(buffers) <= MOST_BUFFERS and sum(map(len, buffers)) <= self.buffers))
        )


class MessagePolicy:
    """The limits of all messages, derived from the caps of one cell's outputs."""

    def __init__(self, caps: OutputCaps) -> None:
        # A message as large as a cap must be accepted: the caps themselves decide about cutting.
        text = MessageLimit(_LONGEST_ESCAPE * max(caps.text, MIB), MIB)
        data = max(caps.data, MIB)
        display = MessageLimit(data, MIB, data)
        self._default: Mapping[Channel, MessageLimit] = {
            Channel.IOPUB: MessageLimit(4 * MIB, MIB, 4 * MIB),
            Channel.SHELL: MessageLimit(16 * MIB, MIB, 16 * MIB),
            Channel.STDIN: MessageLimit(MIB, MIB),
            Channel.CONTROL: MessageLimit(16 * MIB, MIB, 16 * MIB),
        }
        self._limits: Mapping[Channel, Mapping[str, MessageLimit]] = {
            Channel.IOPUB: {
                "status": MessageLimit(SMALL_BYTES),
                "clear_output": MessageLimit(SMALL_BYTES),
                "execute_input": MessageLimit(64 * MIB, MIB),
                "stream": text,
                "error": text,
                **dict.fromkeys(("display_data", "update_display_data", "execute_result"), display),
                **dict.fromkeys(("comm_open", "comm_msg"), display),
                "comm_close": MessageLimit(MIB, MIB, MIB),
            },
            Channel.SHELL: {"kernel_info_reply": MessageLimit(256 * KIB, MIB)},
            Channel.STDIN: {},
            Channel.CONTROL: {
                "kernel_info_reply": MessageLimit(256 * KIB, MIB),
                "interrupt_reply": MessageLimit(64 * KIB),
            },
        }

    def limit(self, channel: Channel, msg_type: str) -> MessageLimit:
        """Return the limit of messages of this type; types outside the table share a limit per channel."""
        return self._limits[channel].get(msg_type) or self._default[channel]

    def most_bytes(self, channel: Channel) -> int:
        """Return the most bytes of a whole message on `channel`, whatever its type."""
        limits = (self._default[channel], *self._limits[channel].values())
        return max(b.content + b.metadata + b.buffers for b in limits) + 2 * MOST_HEADER + SMALL_BYTES

    def most_next(self, channel: Channel, frames: Sequence[bytes]) -> int:
        """Return the most bytes of a message's next frame, given the frames so far with their header."""
        if DELIMITER not in frames:
            return MOST_HEADER
        place = len(frames) - frames.index(DELIMITER) - 1
        if place <= _PARENT:
            return MOST_HEADER
        try:
            msg_type = read_header(frames[frames.index(DELIMITER) + 2]).msg_type
        except MalformedMessage:
            return 0
        limit = self.limit(channel, msg_type)
        return {_METADATA: limit.metadata, _CONTENT: limit.content}.get(place, limit.buffers)

    def allows(self, channel: Channel, msg_type: str, parts: Sequence[bytes]) -> bool:
        """Return whether a message fits its limit. `parts`: header, parent, metadata, content, buffers."""
        header, parent, metadata, content, *buffers = parts
        return max(len(header), len(parent)) <= MOST_HEADER and self.limit(channel, msg_type).holds(
            len(metadata), len(content), buffers
        )
