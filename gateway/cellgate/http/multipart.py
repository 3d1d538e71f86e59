"""The files of a multipart form, piece by piece as its bytes arrive, parsed by python-multipart.

Pure: chunks of a body in, pieces of files out. Source of the format: RFC 7578.
"""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from cellgate.errors import UnsupportedMedia
from cellgate_kernels.errors import InvalidInput

MAX_PARTS = 1000
MAX_HEADER = 16 * 1024

Piece = tuple[int, str, bytes]
"""A file's number in the form, its name, and some of its bytes."""


class FormReader:
    """Reads one form. Fields without a filename are ignored."""

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise UnsupportedMedia(
                "Send a form (multipart/form-data) here, or PUT a file's bytes to .../files/NAME"
            )
        self._number = 0
        self._name: str | None = None
        self._field = self._value = b""
        self._ended = False
        self._pieces: list[Piece] = []
        try:
            self._parser = MultipartParser(
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
        """The pieces of files in the next chunk. Raises InvalidInput."""
        self._pieces = []
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidInput(f"The form can't be read: {error}") from error
        return self._pieces

    def end(self) -> None:
        """Check that the form is complete. Raises InvalidInput."""
        if not self._ended:
            raise InvalidInput("The form ends too early")

    def _begin_part(self) -> None:
        self._number += 1
        self._name = None
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
            name = parse_options_header(self._value)[1].get(b"filename")
            if name is not None:
                try:
                    self._name = name.decode()
                except UnicodeDecodeError as error:
                    raise InvalidInput("A file's name in the form is not UTF-8") from error
        self._field = self._value = b""

    def _end_headers(self) -> None:
        if self._name is not None:
            self._pieces.append((self._number, self._name, b""))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name is not None:
            self._pieces.append((self._number, self._name, data[start:end]))

    def _end(self) -> None:
        self._ended = True
