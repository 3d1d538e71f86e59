"""Forms whose header names another type: their first line has the boundary, too."""

from __future__ import annotations

import pytest

from cellgate.errors import UnsupportedMedia
from cellgate.http import multipart
from cellgate.http.multipart import MultipartReader
from cellgate_kernels.base.errors import InvalidInput

BOUNDARY = "5f9a'()+_,./:=?-"
PART = 'Content-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nabc'
FORM = f"--{BOUNDARY}\r\n{PART}\r\n--{BOUNDARY}--\r\n".encode()


@pytest.mark.parametrize("size", [1, 7, len(FORM)])
def test_a_mislabelled_form_is_read_in_pieces_of_any_size(size: int) -> None:
    reader = MultipartReader("application/json", mislabelled=True)
    pieces = [piece for at in range(0, len(FORM), size) for piece in reader.feed(FORM[at : at + size])]
    reader.end()
    assert {(number, name) for number, name, _ in pieces} == {(1, "a.txt")}
    assert b"".join(data for _, _, data in pieces) == b"abc"


def test_files_have_the_names_of_their_fields() -> None:
    parts = ('name="metadata"; filename="m"', 'name="text"', 'filename="b"', 'name="file"; filename="a"')
    form = "".join(f"--x\r\nContent-Disposition: form-data; {part}\r\n\r\n1\r\n" for part in parts)
    reader = MultipartReader("multipart/form-data; boundary=x")
    reader.feed(f"{form}--x--\r\n".encode())
    reader.end()
    assert reader.fields == {1: "metadata", 3: "", 4: "file"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"file": "a.txt", "content": "something that is longer than any line that a form begins with"}',
        b"--\r\n" * 40,
    ],
)
def test_what_begins_as_no_form_is_none(body: bytes) -> None:
    reader = MultipartReader("application/json", mislabelled=True)
    with pytest.raises(UnsupportedMedia):
        reader.feed(body)


@pytest.mark.parametrize("body", [b"", b"{}", b"--abc"])
def test_what_ends_before_its_first_line_is_none(body: bytes) -> None:
    reader = MultipartReader("text/plain", mislabelled=True)
    assert reader.feed(body) == []
    with pytest.raises(UnsupportedMedia):
        reader.end()


def test_a_form_that_ends_too_early_is_told() -> None:
    reader = MultipartReader("application/json", mislabelled=True)
    reader.feed(FORM[:-20])
    with pytest.raises(InvalidInput, match="too early"):
        reader.end()


def test_elsewhere_the_label_counts() -> None:
    with pytest.raises(UnsupportedMedia):
        MultipartReader("application/json")


def test_a_label_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser would take a tenth of a second for a field of 60 KB, in which nobody else is served."""
    read: list[str] = []
    parse = multipart.parse_options_header

    def noted(value: str) -> object:
        read.append(value)
        return parse(value)

    monkeypatch.setattr(multipart, "parse_options_header", noted)
    MultipartReader("multipart/form-data; boundary=x")
    long = 'multipart/form-data; boundary=x; a="' + ";" * 60_000
    with pytest.raises(UnsupportedMedia):
        MultipartReader(long)
    reader = MultipartReader(long, mislabelled=True)
    reader.feed(b'--y\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\nz\r\n--y--\r\n')
    reader.end()
    assert max(map(len, read)) < 100
