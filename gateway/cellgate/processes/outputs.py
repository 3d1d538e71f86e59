"""What a program wrote, as text: decoded, without secrets, and under a cap. Pure.

All of it goes into the record, up to the cap. Here stay the beginning and the end of each stream.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from cellgate_kernels.masking import Masker, StreamMasker
from cellgate_kernels.outputs import LEAST_COST
from cellgate_kernels.programs import StreamName

HALF = 50_000
"""Characters of the beginning, and of the end, of a stream that are kept."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of a stream."""

    name: StreamName
    text: str


class Kept:
    """The beginning and the end of a text."""

    def __init__(self) -> None:
        self._head = ""
        self._tail: deque[str] = deque()
        self._in_tail = 0
        self._length = 0

    def add(self, text: str) -> None:
        """The text goes on."""
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

    def text(self, whole: str) -> str:
        """All of it, or both ends with a mark between them that points to the `whole`."""
        tail = "".join(self._tail)
        if self._length <= 2 * HALF:
            return self._head + tail
        mark = f"\n[cellgate: {self._length} characters, cut here; {whole} has them all]\n"
        return self._head + mark + tail[-HALF:]


class _Stream:
    def __init__(self, masker: Masker | None) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.masker = None if masker is None else StreamMasker(masker)
        self.kept = Kept()


class ProcessOutputs:
    """The two streams of one program. `cap`: the most bytes of both that are recorded."""

    def __init__(self, cap: int, masker: Masker | None) -> None:
        self._cap = cap
        self._left = cap
        self._streams = {name: _Stream(masker) for name in StreamName}
        self.truncated = False
        """Whether some output was left out."""

    def more(self, name: StreamName, data: bytes) -> Iterator[Text]:
        """What is to be recorded of this output, which may be nothing yet."""
        if self.truncated:
            return
        stream = self._streams[name]
        text = stream.decoder.decode(data)
        if stream.masker is not None:
            text = stream.masker.more(text)
        yield from self._shown(name, text)

    def rest(self) -> Iterator[Text]:
        """What was held back, at the end of both streams."""
        for name, stream in self._streams.items():
            if self.truncated:
                return
            text = stream.decoder.decode(b"", final=True)
            if stream.masker is not None:
                text = stream.masker.more(text) + stream.masker.rest()
            yield from self._shown(name, text)

    def leave_out(self) -> None:
        """Nothing more can be recorded."""
        self.truncated = True

    def text(self, name: StreamName, whole: str) -> str:
        """What answers show of a stream; see `Kept.text`."""
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
