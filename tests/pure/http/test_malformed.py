"""What is said of bodies that are no JSON, by hand or by a model."""

from __future__ import annotations

import pytest

from cellgate.http.malformed import malformed
from cellgate.http.message import decode
from cellgate.wire.models import ExecuteBody
from cellgate_kernels.base.errors import InvalidInput


def test_either_decoder_s_words_for_what_is_no_utf_8_are_known() -> None:
    """msgspec 0.22 raises UnicodeDecodeError, and 0.23 an error of its own."""
    body = b'{"code": "caf\xe9"}'
    assert malformed(body, "Invalid UTF-8 encoded string") == "it is not in UTF-8 (byte 13)"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{'code': '1'}", "double quotes"),
        (b'{"code": "1" /* it */}', "no comments"),
        (b'{"code": "1"} // it', "no comments"),
        (b'# it\n{"code": "1"}', "no comments"),
        (b'{"code": "1", "silent": True}', "true, false and null"),
        (b'{"code": "1", "timeout": None}', "true, false and null"),
        (b'{"code": "1", "timeout": NaN}', "no NaN"),
        (b'{"code": "a\nb"}', "written \\\\n"),
        (b'{"code": "1",}', "trailing comma"),
        (b'{code: "1"}', "must be strings"),
        (b'{"code": "1"', "ends too early"),
        (b"\n", r'there is none; a body is a JSON object, such as \{"code"'),
        (b"code=print(1)", "valid JSON: it is a form"),
        (b'\xef\xbb\xbf{"code": "1"}', "byte order mark"),
        ('{"code": "1"}'.encode("utf-16"), "UTF-16; send UTF-8"),
        (b"\x1f\x8b\x08\x00", "compressed by gzip"),
        (b'{"code": "caf\xe9"}', r"not in UTF-8 \(byte 13\)"),
        ("{“code”: “1”}".encode(), "straight double quotes"),
        (b'{\\"code\\": \\"1\\"}', "a backslash"),
        (b"print(1)", "a body is a JSON object"),
        (b'```json\n{"code": "1"}\n```', "a body is a JSON object"),
        (b'--x\r\nContent-Disposition: form-data; name="code"\r\n', "it is a form"),
    ],
)
def test_what_was_meant_is_said(body: bytes, told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as refused:
        decode(body, ExecuteBody)
    assert refused.value.message.startswith("The request body is not valid JSON: ")
    assert "malformed" not in refused.value.message
    assert "codec" not in refused.value.message


@pytest.mark.parametrize("body", [b'{"code": "1",\n}', b"[1,\n]", b'{"code":\n}'])
def test_a_line_break_between_the_parts_is_none_of_the_faults(body: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        decode(body, ExecuteBody)
    assert "line break" not in refused.value.message
