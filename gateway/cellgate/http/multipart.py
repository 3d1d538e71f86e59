"""The files of a multipart form, piece by piece as its bytes arrive, parsed by python-multipart.

Pure: chunks of a body in, pieces of files out. Source of the format: RFC 7578.
"""

from __future__ import annotations

import re

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from cellgate.errors import UnsupportedMedia
from cellgate_kernels.base.errors import InvalidInput

MAX_PARTS = 1000
MAX_HEADER = 16 * 1024
MOST_LABEL = 1024
"""Characters of a Content-Type; a boundary has 70 at most."""

_LONGEST_BOUNDARY = 70
_FIRST_LINE = re.compile(rb"--([0-9A-Za-z'()+_,./:=?-]{1,%d})\r\n" % _LONGEST_BOUNDARY)
_LONGEST_FIRST = len(b"--\r\n") + _LONGEST_BOUNDARY

Piece = tuple[int, str, bytes]
"""A file's number in the form, its name, and some of its bytes."""


class MultipartReader:
    """Reads one form. Fields without a filename are ignored.

    `mislabelled`: a header of another type is accepted; the form's first line has the boundary, too.
    """

    def __init__(self, content_type: str, *, mislabelled: bool = False) -> None:
        # Longer values are not parsed: the parser takes its time for each character.
        fits = len(content_type) <= MOST_LABEL
        kind, options = parse_options_header(content_type) if fits else (b"", {})
        boundary = options.get(b"boundary")
        self.fields: dict[int, str] = {}
        """The names of the form's fields that are files, by the files' numbers."""
        self._number = 0
        self._name: str | None = None
        self._of = ""
        self._field = self._value = b""
        self._ended = False
        self._pieces: list[Piece] = []
        self._begun = b""
        self._parser: MultipartParser | None = None
        if kind == b"multipart/form-data" and boundary:
            self._parser = self._parser_for(boundary)
        elif not mislabelled:
            raise _no_form()

    def _parser_for(self, boundary: bytes) -> MultipartParser:
        try:
            return MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._data,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise InvalidInput(f"The form's boundary can't be used: {error}") from error

    def feed(self, chunk: bytes) -> list[Piece]:
        """Return the files' pieces in a chunk. Raises InvalidInput, or UnsupportedMedia for another type."""
        self._pieces = []
        if self._parser is None:
            self._begun += chunk
            first = _FIRST_LINE.match(self._begun)
            if first is None:
                if len(self._begun) < _LONGEST_FIRST:
                    return []
                raise _no_form()
            self._parser = self._parser_for(first[1])
            chunk, self._begun = self._begun, b""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidInput(f"The form can't be read: {error}") from error
        return self._pieces

    def end(self) -> None:
        """Check that the form is complete. Raises InvalidInput, and UnsupportedMedia if there was none."""
        if self._parser is None:
            raise _no_form()
        if not self._ended:
            raise InvalidInput("The form ends too early")

    def _begin_part(self) -> None:
        self._number += 1
        self._name, self._of = None, ""
        self._field = self._value = b""
        if self._number > MAX_PARTS:
            raise InvalidInput(f"A form has at most {MAX_PARTS} parts")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field = self._within_limit(self._field + data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value = self._within_limit(self._value + data[start:end])

    def _within_limit(self, header: bytes) -> bytes:
        if len(header) > MAX_HEADER:
            raise InvalidInput(f"A header in the form is longer than {MAX_HEADER} bytes")
        return header

    def _end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            options = parse_options_header(self._value)[1]
            name = options.get(b"filename")
            self._of = options.get(b"name", b"").decode(errors="replace")
            if name is not None:
                try:
                    self._name = name.decode()
                except UnicodeDecodeError as error:
                    raise InvalidInput("A file's name in the form is not UTF-8") from error
        self._field = self._value = b""

    def _end_headers(self) -> None:
        if self._name is not None:
            self.fields[self._number] = self._of
            self._pieces.append((self._number, self._name, b""))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name is not None:
            self._pieces.append((self._number, self._name, data[start:end]))

    def _end(self) -> None:
        self._ended = True


def _no_form() -> UnsupportedMedia:
    return UnsupportedMedia("Send a form (multipart/form-data) here, or PUT a file's bytes to .../files/NAME")
