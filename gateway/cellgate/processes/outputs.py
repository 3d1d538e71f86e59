"""A program's output as text: decoded, without secrets, and under a cap. Pure.

All of it goes into the record, up to the cap. The beginning and the end of each stream stay in memory.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from cellgate_kernels.keeper.programs import StreamName
from cellgate_kernels.protocol.masking import Masker, StreamMasker
from cellgate_kernels.protocol.outputs import LEAST_COST

HALF = 50_000
"""Characters of the beginning, and of the end, of a stream that are kept."""
MOST_OF_PROGRAM = 4 * HALF
"""Most characters that are kept of one program."""
MOST_PIECES = 256
"""Most pieces of a stream's kept end, even if a program writes byte by byte."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of a stream."""

    name: StreamName
    text: str


class KeptOutput:
    """The beginning and the end of a text."""

    def __init__(self) -> None:
        self._head = ""
        self._tail: deque[str] = deque()
        self._in_tail = 0
        self._length = 0
        self._forgotten = False

    @property
    def size(self) -> int:
        """The number of characters that are kept."""
        return len(self._head) + self._in_tail

    def forget(self) -> None:
        """Keep only the text's length."""
        self._head = ""
        self._tail.clear()
        self._in_tail = 0
        self._forgotten = self._length > 0

    def add(self, text: str) -> None:
        """Append text to the output."""
        self._length += len(text)
        room = HALF - len(self._head)
        if room > 0:
            self._head += text[:room]
            text = text[room:]
        if text:
            self._tail.append(text[-HALF:])
            self._in_tail += len(self._tail[-1])
            while self._in_tail - len(self._tail[0]) >= HALF:
                self._in_tail -= len(self._tail.popleft())
            if len(self._tail) > MOST_PIECES:
                self.pack()

    def pack(self) -> None:
        """Keep only the parts that are shown, in one piece."""
        tail = "".join(self._tail)[-HALF:]
        self._tail = deque([tail])
        self._in_tail = len(tail)

    def text(self, whole: str) -> str:
        """Return all output, or both its ends with a mark between them that points to the `whole`."""
        tail = "".join(self._tail)
        if self._length <= 2 * HALF and not self._forgotten:
            return self._head + tail
        mark = f"\n[cellgate: {self._length} characters, cut here; {whole} has them all]\n"
        return self._head + mark + tail[-HALF:]


class _Stream:
    def __init__(self, masker: Masker | None) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.masker = None if masker is None else StreamMasker(masker)
        self.kept = KeptOutput()


class ProcessOutputs:
    """The two streams of one program. `cap`: the most bytes of both that are recorded."""

    def __init__(self, cap: int, masker: Masker | None) -> None:
        self._cap = cap
        self._left = cap
        self._streams = {name: _Stream(masker) for name in StreamName}
        self.truncated = False
        """Whether some output was left out."""

    def more(self, name: StreamName, data: bytes) -> Iterator[Text]:
        """Yield the text to record of this output; none if all of it must be held back."""
        if self.truncated:
            return
        stream = self._streams[name]
        text = stream.decoder.decode(data)
        if stream.masker is not None:
            text = stream.masker.more(text)
        yield from self._shown(name, text)

    def rest(self) -> Iterator[Text]:
        """Yield the text that was held back, at the end of both streams."""
        for name, stream in self._streams.items():
            if self.truncated:
                return
            text = stream.decoder.decode(b"", final=True)
            if stream.masker is not None:
                text = stream.masker.more(text) + stream.masker.rest()
            yield from self._shown(name, text)

    def leave_out(self) -> None:
        """Mark the output as truncated: nothing more is recorded."""
        self.truncated = True

    def pack(self) -> None:
        """Pack the kept text, as no more follows."""
        for stream in self._streams.values():
            stream.kept.pack()

    @property
    def size(self) -> int:
        """The number of characters kept of both streams."""
        return sum(stream.kept.size for stream in self._streams.values())

    def forget(self) -> None:
        """Keep no text of either stream: answers give its length, and its place in the record."""
        for stream in self._streams.values():
            stream.kept.forget()

    def text(self, name: StreamName, whole: str) -> str:
        """Return a stream's text for answers; see `Kept.text`."""
        return self._streams[name].kept.text(whole)

    def _shown(self, name: StreamName, text: str) -> Iterator[Text]:
        if not text:
            return
        size = len(text.encode())
        if size > self._left:
            text = text.encode()[: self._left].decode(errors="ignore")
            text += f"\n[cellgate: output beyond {self._cap} bytes is left out]\n"
            self.truncated = True
        self._left -= min(self._left, max(size, LEAST_COST))
        self._streams[name].kept.add(text)
        yield Text(name, text)
