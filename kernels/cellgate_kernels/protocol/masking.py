"""Replaces the values of secrets in a kernel's messages, before any other part sees the messages.

`Masker` works on text. It knows values only: each value, plain and as Python, JSON and HTML write it,
becomes ``[secret NAME]``. `MessageMasker` masks every string in the messages of one kernel, whatever escapes
the JSON uses. A stream's text may be cut anywhere between two messages. So its end is held back until the
cell's next message, if a value could begin there. Pure. Parts that can't be read and may hold a value are
left out. Code that is given a secret can always show the value in a form that is not searched for.
"""

from __future__ import annotations

import html
import json
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
from msgspec import structs

from cellgate_kernels.codec.encoding import encode_in_steps
from cellgate_kernels.protocol.messages import EMPTY, Channel, MalformedMessage, Message

SHORTEST = 8
"""The fewest characters of a value; shorter ones would be found in ordinary text."""
MOST_CELLS = 64
"""The most cells whose streams are remembered: the latest to print."""

_LEFT_OUT = "[cellgate: output left out here: it can't be searched for secrets]"
_SHOWN = frozenset({"display_data", "execute_result", "update_display_data"})

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Found:
    """A value in a text, from `start` to `end`, and its replacement."""

    start: int
    end: int
    mark: str


class Masker:
    """Finds values in texts: the leftmost first, and of several at the same place the longest."""

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        """`secrets`: pairs of name and value; a name may have several values."""
        marks: dict[str, str] = {}
        for name, value in secrets:
            for form in _forms(value):
                marks.setdefault(form, f"[secret {name}]")
        self._marks = marks
        self._forms = sorted(marks, key=len, reverse=True)
        self._beginnings = tuple(map(ValueFinder, self._forms))
        self._longest = max(map(len, marks), default=0)
        in_json = {_encode(form)[1:-1] for form in marks}
        self._in_json = tuple(in_json | {json.dumps(form)[1:-1].encode() for form in marks})

    def text(self, text: str) -> str:
        """Return the whole text without values."""
        if not any(form in text for form in self._forms):
            return text
        found, _ = self.find(text, is_whole=True)
        return render(text, found, 0, len(text))

    def find(self, text: str, *, is_whole: bool) -> tuple[list[Found], int]:
        """Return the values, and the start of text whose masking needs the text that follows, if any may."""
        found: list[Found] = []
        position = 0
        following: dict[str, int] = {}
        places = [] if is_whole else self._places(text)
        edge = places[0] if places else len(text)
        while True:
            start = edge
            first = ""
            for form in self._forms:
                at = following.get(form, -1)
                if at < position:
                    at = text.find(form, position)
                    at = following[form] = len(text) if at < 0 else at
                if at < start:
                    start = at
                    first = form
            if not first:
                return found, edge
            position = start + len(first)
            found.append(Found(start, position, self._marks[first]))
            if edge < position:
                after = bisect_left(places, position)
                edge = places[after] if after < len(places) else len(text)

    def _places(self, text: str) -> list[int]:
        """Return the positions, in order, of values that begin in the text and may continue after it."""
        found: set[int] = set()
        for each in self._beginnings:
            length, _ = each.follow(0, text[max(0, len(text) - each.longest) :])
            while length:
                found.add(len(text) - length)
                length = each.shorter[length]
        return sorted(found)

    def edge(self, text: str, position: int) -> int:
        """Return the first place from `position` on of a value that may continue after the text's end."""
        _, length, _ = self.follow(self.nothing, "", text[position:])
        return len(text) - length

    @property
    def nothing(self) -> tuple[int, ...]:
        """Return the initial state of `follow`: no value has begun."""
        return (0,) * len(self._beginnings)

    def follow(
        self, begun: tuple[int, ...], before: str, piece: str
    ) -> tuple[tuple[int, ...], int, int | None]:
        """Return how much of each value stands at the end of a text after a piece is added.

        `begun`: the same at the end of `before`. Also returns the longest of these lengths, and the start of
        the first whole value that ends in the piece. The time depends on the piece's length alone.
        """
        lengths = []
        first: int | None = None
        for each, length in zip(self._beginnings, begun, strict=True):
            if len(piece) > each.longest:
                skipped = max(0, len(before) - each.longest)
                at = (before[skipped:] + piece).find(each.form)
                start = skipped + at if at >= 0 else None
                now, _ = each.follow(0, piece[len(piece) - each.longest :])
            else:
                now, end = each.follow(length, piece)
                start = None if end is None else len(before) + end - len(each.form)
            lengths.append(now)
            if start is not None and (first is None or start < first):
                first = start
        return tuple(lengths), max(lengths, default=0), first

    def may_be_in(self, frame: bytes) -> bool:
        """Return whether JSON may hold a value; False is certain."""
        # Without these escapes, each character of a string has only one spelling.
        return b"\\u" in frame or b"\\/" in frame or self.is_in(frame)

    def is_in(self, frame: bytes) -> bool:
        """Return whether JSON holds a value, written in one of the usual ways."""
        return any(form in frame for form in self._in_json)

    def value(self, value: Any) -> Any:
        """Return a decoded JSON value with secrets masked; the same object if there are none."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            items = [self.value(item) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        if isinstance(value, dict):
            pairs = {self.text(key): self.value(item) for key, item in value.items()}
            same = len(pairs) == len(value) and all(pairs.get(key) is value[key] for key in value)
            return value if same else pairs
        return value


class ValueFinder:
    """Finds a value, and how much of its beginning a text ends with, by Knuth, Morris and Pratt.

    A value that repeats itself may begin at each place of a text: comparing all places would take time
    quadratic in the value's length.
    """

    def __init__(self, form: str) -> None:
        self.form = form
        self.longest = len(form) - 1
        """The length of the longest beginning that is not the whole value."""

    @cached_property
    def shorter(self) -> list[int]:
        """Return, for each length of a beginning, that of the longest shorter beginning at its end."""
        shorter = [0, 0]
        length = 0
        for letter in self.form[1:]:
            while length and self.form[length] != letter:
                length = shorter[length]
            if self.form[length] == letter:
                length += 1
            shorter.append(length)
        return shorter

    def follow(self, length: int, piece: str) -> tuple[int, int | None]:
        """Return the length of the beginning at a piece's end, and the start of the first whole value."""
        at = 0
        if not length and (at := piece.find(self.form[0])) < 0:
            return 0, None
        form, shorter = self.form, self.shorter
        ended: int | None = None
        for place in range(at, len(piece)):
            letter = piece[place]
            while length and form[length] != letter:
                length = shorter[length]
            if form[length] == letter:
                length += 1
            if length == len(form):
                ended = place + 1 if ended is None else ended
                length = shorter[length]
        return length, ended


def _forms(value: str) -> Iterator[str]:
    """Yield the value plain, and in the forms of quoted text."""
    yield value
    yield repr(value)[1:-1]
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield html.escape(value)
    yield html.escape(value, quote=False)


def render(text: str, found: Sequence[Found], start: int, end: int) -> str:
    """Return the text from `start` to `end` with marks, first of a value that began before `start`."""
    parts = []
    position = start
    for each in found:
        parts.append(text[position : each.start])
        parts.append(each.mark)
        position = max(position, each.end)
    parts.append(text[position:end])
    return "".join(parts)


class StreamMasker:
    """The text of one stream, in pieces. The joined result does not depend on the pieces."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._tail = ""
        """The end of the text, if a value could begin there."""
        self._begun = masker.nothing
        """The length of each value's beginning at the tail's end."""
        self._first: int | None = None
        """The position in the tail of a whole value that can't be shown yet: a longer value may follow."""
        self._shown = 0
        """The number of the tail's characters that `rest` has returned."""

    def more(self, text: str) -> str:
        """Add text, and return all text that can be shown now and was not shown before."""
        tail, text = self._tail, self._tail + text
        self._begun, longest, first = self._masker.follow(self._begun, tail, text[len(tail) :])
        first = self._first if first is None or (self._first is not None and self._first < first) else first
        edge = len(text) - longest
        found: list[Found] = []
        if first is not None and first < edge:
            found, edge = self._masker.find(text, is_whole=False)
        shown = render(text, found, min(self._shown, edge), edge)
        self._keep(text[edge:], None if found or first is None else first - edge, known=not found)
        self._shown = max(0, self._shown - edge)
        return shown

    def _keep(self, tail: str, first: int | None, *, known: bool) -> None:
        """Keep the end of the text. `known`: whether the values in the tail are known."""
        self._tail, self._first = tail, first
        if not known:
            self._begun, _, self._first = self._masker.follow(self._masker.nothing, "", tail)

    @property
    def holds_back(self) -> bool:
        """Whether text is held back for `rest`."""
        return len(self._tail) > self._shown

    def rest(self) -> str:
        """Return the held-back text. If it becomes a value later, only the value's end is replaced."""
        found, end = self._masker.find(self._tail, is_whole=True)
        shown = render(self._tail, found, self._shown, end)
        edge = self._masker.edge(self._tail, found[-1].end if found else 0)
        self._keep(self._tail[edge:], None, known=False)
        self._shown = len(self._tail)
        return shown


@dataclass(slots=True)
class _Stream:
    """A stream of a cell. `last`: the message that the held-back text came from, without its content."""

    name: Any
    masker: StreamMasker
    last: Message | None = None


class MessageMasker:
    """Masks the messages of one kernel, in their order."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        # By the id of the request, then by the stream's name.
        self._cells: OrderedDict[str, dict[str, _Stream]] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._passed: frozenset[str] = frozenset()

    def expect_again(self, messages: Iterable[Message]) -> None:
        """Expect these masked messages again: show no text of theirs, and draw no conclusions from it.

        An adopted kernel's messages come twice, from its spool and from its socket.
        """
        self._passed = frozenset(message.header.msg_id for message in messages)

    def before(self, message: Message) -> list[Message]:
        """Return held-back text that comes before this message; reads only the message's headers."""
        if message.channel is Channel.IOPUB and message.msg_type == "stream":
            return []
        if message.header.msg_id in self._passed:
            return []
        streams = self._cells.get(message.parent.msg_id)
        if streams is None:
            return []
        if message.msg_type == "status":
            # An idle status ends the cell's text; threads that still print are not waited for.
            self._ended[message.parent.msg_id] = None
            if len(self._ended) > MOST_CELLS:
                self._ended.popitem(last=False)
        return list(_rest(streams))

    def rest(self) -> list[Message]:
        """Return all held-back messages, as no more text follows."""
        return [message for streams in self._cells.values() for message in _rest(streams)]

    def mask(self, message: Message) -> Message | None:
        """Return the masked message; None if all of it is held back."""
        if message.msg_type == "stream" and message.header.msg_id in self._passed:
            return None
        if message.left_out:
            return message
        if self._masker.is_in(message.metadata_frame):
            message = structs.replace(message, metadata_frame=EMPTY)
        if not message.readable:
            return self._without_reading(message)
        if message.msg_type == "stream" and message.channel is Channel.IOPUB:
            return self._stream(message)
        if message.decoded is None and not self._masker.may_be_in(message.content_frame):
            return message
        try:
            content = message.content()
        except MalformedMessage:
            return self._without_reading(message)
        masked = self._masker.value(content)
        return message if masked is content else _with(message, masked)

    @staticmethod
    def nothing(message: Message) -> Message:
        """Return a stream message without text."""
        return _with(message, {"name": "stdout", "text": ""})

    def _without_reading(self, message: Message) -> Message:
        if not self._masker.is_in(message.content_frame):
            return message
        content: dict[str, Any] = {}
        if message.msg_type == "stream":
            content = {"name": "stdout", "text": _LEFT_OUT}
        elif message.msg_type in _SHOWN:
            content = {"data": {"text/plain": _LEFT_OUT}, "metadata": {}, "transient": {}}
        elif message.msg_type == "error":
            content = {"ename": "", "evalue": _LEFT_OUT, "traceback": []}
        return structs.replace(message, content_frame=_encode(content), is_text=True)

    def _stream(self, message: Message) -> Message | None:
        try:
            content = message.content()
        except MalformedMessage:
            return self._without_reading(message)
        text = content.get("text")
        if not isinstance(text, str):
            masked = self._masker.value(content)
            return message if masked is content else _with(message, masked)
        stream = self._stream_of(message.parent.msg_id, content.get("name"))
        shown = stream.masker.more(text)
        if stream.masker.holds_back:
            if message.parent.msg_id in self._ended:
                shown += stream.masker.rest()
            else:
                stream.last = structs.replace(message, content_frame=EMPTY, decoded=None, weight=0)
        if shown == text:
            return message
        content["text"] = shown
        return _with(message, content) if shown else None

    def _stream_of(self, cell: str, name: Any) -> _Stream:
        streams = self._cells.setdefault(cell, {})
        self._cells.move_to_end(cell)
        if len(self._cells) > MOST_CELLS:
            # The dropped stream holds back a few characters, and its cell has been quiet for long.
            self._cells.popitem(last=False)
        # Events use the same rule: any name but stderr is stdout.
        key = "stderr" if name == "stderr" else "stdout"
        return streams.setdefault(key, _Stream(name, StreamMasker(self._masker)))


def _rest(streams: dict[str, _Stream]) -> Iterator[Message]:
    for stream in streams.values():
        if stream.last is not None and stream.masker.holds_back:
            yield _with(stream.last, {"name": stream.name, "text": stream.masker.rest()})


def _with(message: Message, content: dict[str, Any]) -> Message:
    """Return the message with other content and its own id, which later held-back text keeps."""
    frame = b"".join(encode_in_steps(content))
    decoded = None if message.decoded is None else content
    is_text = None if message.is_text is None else True
    return structs.replace(message, content_frame=frame, decoded=decoded, is_text=is_text)
