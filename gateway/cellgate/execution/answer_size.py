"""How much of an execution one answer shows; the record keeps all of it.

Pure: texts and outputs in, shorter ones out. A mark replaces each missing part, says what the part was and
how to get it. Texts are cut in the middle; what a program renders (HTML, images, JSON) is shown whole or left
out, because a cut would break it. ``results`` decides which outputs an answer has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from cellgate.wire.endings import note_output
from cellgate_kernels.codec.encoding import encode_in_steps

MAX_TEXT = 100_000
_JSON = 1_000_000
_IMAGES = 5_000_000
_JSON_OF_CHARACTER = 10
_JSON_OF_ANY = 6
"""Most bytes of one character in JSON: `\\u001b`."""
_PLACES = 4
"""Most copies of one text in an answer: in `text`, `stdout`, `outputs` and, of an error, in `error`."""
_TEXTS = 9
"""One text may be a ninth of an answer: there are five, and the outputs need room too."""
_NAME = 1_000
"""Most characters of an error's name."""
_LEAST = 1_000
"""A text is cut only if more than this is left, so that it is worth its mark."""
_LEAST_JSON = 10_000
_FIXED = 2_000
"""Bytes for the fields of an answer that have a limited size, and for a last mark."""


@dataclass(frozen=True, slots=True)
class AnswerSize:
    """The most that one answer may hold.

    `text`: characters of each text. `json`: bytes of JSON without images. `images`: bytes of all images, as
    files of their own.
    """

    text: int = MAX_TEXT
    json: int = _JSON
    images: int = _IMAGES

    @classmethod
    def of_text(cls, characters: int) -> Self:
        """Return the size of an answer whose texts have at most so many characters."""
        return cls(characters, max(_JSON, _JSON_OF_CHARACTER * characters))

    def without(self, json: int, images: int) -> AnswerSize:
        """Return the size left after these bytes; there is always room for a few words."""
        left = max(self.json - json, _LEAST_JSON)
        return AnswerSize(min(self.text, left // _JSON_OF_CHARACTER), left, max(0, self.images - images))

    def share(self, among: int) -> AnswerSize:
        """Return this size divided equally among so many results."""
        part = max(self.json // among, _LEAST_JSON)
        return AnswerSize(min(self.text, part // _JSON_OF_CHARACTER), part, self.images // among)

    @property
    def small(self) -> int:
        """The number of characters of output that fit, whatever the characters are."""
        return min(self.text, self.json // (_JSON_OF_ANY * _PLACES))


DEFAULT_SIZE = AnswerSize()


@dataclass(frozen=True, slots=True)
class Whole:
    """The way to everything that an answer about an execution leaves out.

    `address`: the execution's, without a host; None if nothing of it is kept.
    """

    address: str | None

    def result(self) -> str:
        """Return the request that gets the whole result."""
        return "a run with ?max_text=0" if self.address is None else f"GET {self.address}?max_text=0"

    def output(self, index: int, mime: str | None = None) -> str:
        """Return the request that gets the whole of one output, or of one of its representations."""
        if self.address is None:
            return self.result()
        return f"GET {self.address}/output/{index}" + (f"?type={quote(mime, safe='/')}" if mime else "")

    def text(self, index: int, output: Mapping[str, Any]) -> str:
        """Return the request for an output's whole text; without a media type it would return an image."""
        pictured = any(mime.startswith("image/") for mime in output.get("data", ()))
        return self.output(index, "text/plain" if pictured else None)


class Cutter:
    """Cuts the parts of one answer to its size."""

    def __init__(self, size: AnswerSize, whole: Whole) -> None:
        self._size = size
        self._whole = whole
        self._room = size.json - _FIXED
        self._image_room = size.images

    def text(self, value: str, whole: str) -> str:
        """Return a text of the answer, cut to its size."""
        most = self._size.json // _TEXTS
        limit = self._size.text
        short = shorten(value, limit, whole)
        while (length := _json_size(short)) > most and limit > _LEAST:
            # Letters beyond ASCII and control characters take several bytes each.
            limit = min(limit, len(short)) * most // length * 9 // 10
            short = shorten(value, limit, whole)
        return short

    def error(self, error: dict[str, Any], whole: str) -> dict[str, Any]:
        """Return an error with its texts cut to the size of texts."""
        traceback = self.text("\n".join(error["traceback"]), whole)
        return {
            **error,
            "ename": shorten(error["ename"], min(_NAME, self._size.text), whole),
            "evalue": self.text(error["evalue"], whole),
            "traceback": traceback.split("\n") if error["traceback"] else [],
        }

    def spend(self, *values: Any) -> None:
        """Count these values as parts of the answer."""
        self._room -= sum(_json_size(value) for value in values)

    def texts(self, outputs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the outputs with their texts cut to the size of texts."""
        return [self._cut(index, output) for index, output in enumerate(outputs)]

    def _cut(self, index: int, output: dict[str, Any]) -> dict[str, Any]:
        where = self._whole.text(index, output)
        match output["output_type"]:
            case "stream":
                return {**output, "text": self.text(output["text"], where)}
            case "error":
                return self.error(output, where)
        data = output["data"]
        if "text/plain" not in data:
            return output
        return {**output, "data": {**data, "text/plain": self.text(data["text/plain"], where)}}

    def fitting(
        self, outputs: Sequence[dict[str, Any]], wholes: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return as many of the outputs as fit; `wholes`: the same outputs before they were cut."""
        shown: list[dict[str, Any]] = []
        for index, output in enumerate(outputs):
            reduced = self._without_images(output, index)
            if output["output_type"] == "stream":
                fitting = self._fitting_stream(reduced, wholes[index]["text"], index)
            else:
                fitting = self._fitting(reduced, index)
            if fitting is None:
                left = f"{len(outputs) - index} more outputs are left out; {self._whole.result()} has them"
                return [*shown, note_output(left)]
            shown.append(fitting)
        return shown

    def _without_images(self, output: dict[str, Any], index: int) -> dict[str, Any]:
        """Return the output without those of its images that do not fit."""
        data = output.get("data", {})
        for mime in [mime for mime in data if mime.startswith("image/")]:
            size = _image_size(mime, data[mime])
            if size > self._image_room:
                output = self._left_out(output, mime, size, index)
            else:
                self._image_room -= size
        return output

    def _fitting_stream(self, output: dict[str, Any], whole: str, index: int) -> dict[str, Any] | None:
        if self._take(output):
            return output
        room = len(output["text"]) * max(0, self._room) // _json_size(output) - _LEAST
        short = {**output, "text": shorten(whole, room, self._whole.output(index))}
        return short if room > 0 and self._take(short) else None

    def _fitting(self, output: dict[str, Any], index: int) -> dict[str, Any] | None:
        """Return as much of the output as fits; None if nothing does."""
        if self._take(output):
            return output
        data = output.get("data", {})
        others = [mime for mime in data if mime != "text/plain" and not mime.startswith("image/")]
        sizes = {mime: _json_size(data[mime]) for mime in others}
        for mime in sorted(others, key=sizes.__getitem__, reverse=True):
            output = self._left_out(output, mime, sizes[mime], index)
            if self._take(output):
                return output
        return None

    def _take(self, output: dict[str, Any]) -> bool:
        """Take room for the output, if there is enough; its images have room of their own."""
        images = [mime for mime in output.get("data", ()) if mime.startswith("image/")]
        comma = 1
        size = _json_size(_without(output, images) if images else output) + comma
        if size > self._room:
            return False
        self._room -= size
        return True

    def _left_out(self, output: dict[str, Any], mime: str, size: int, index: int) -> dict[str, Any]:
        data = _without(output, [mime])["data"]
        where = self._whole.output(index, mime)
        note = f"[cellgate: {mime}, {size} bytes, is left out; {where} has it]"
        text = data.get("text/plain")
        data["text/plain"] = f"{text}\n{note}" if text else note
        return {**output, "data": data}


def images_in(outputs: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """Return the bytes of all images: as JSON has them, and as files of their own."""
    found = [
        (mime, value)
        for output in outputs
        for mime, value in output.get("data", {}).items()
        if mime.startswith("image/")
    ]
    return sum(_json_size(value) for _, value in found), sum(_image_size(*image) for image in found)


def _image_size(mime: str, value: Any) -> int:
    size = _json_size(value)
    return size if mime == "image/svg+xml" else size * 3 // 4  # of base64


def _json_size(value: Any) -> int:
    return sum(map(len, encode_in_steps(value)))


def _without(output: dict[str, Any], mimes: Collection[str]) -> dict[str, Any]:
    return {**output, "data": {mime: value for mime, value in output["data"].items() if mime not in mimes}}


def shorten(value: str, limit: int, whole: str) -> str:
    """Return `value` in `limit` characters: head, tail, and a mark between that points to the `whole`.

    The mark counts, but at least half of the limit is for the text itself.
    """
    mark = f"\n[cellgate: {len(value)} characters, cut here; {whole} has them all]\n"
    room = max(limit // 2, limit - len(mark))
    if len(value) <= max(limit, room + len(mark)):
        return value
    tail = room // 2
    return value[: room - tail] + mark + value[len(value) - tail :]
