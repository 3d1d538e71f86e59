"""What a program and a person at a prompt get of a result."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from cellgate.client import BlocksResult, Exploration, Image, Result
from cellgate.client.values import decode
from cellgate.wire.events import ErrorInfo

PNG = b"\x89PNG\r\n\x1a\n" + bytes(300_000)


def shown(**data: str) -> dict[str, Any]:
    return {"output_type": "display_data", "data": data, "metadata": {}}


def result(*outputs: dict[str, Any], **fields: Any) -> Result:
    return Result(session="s", execution="e", outputs=list(outputs), **{"status": "ok", **fields})


def test_pictures_are_bytes_in_the_order_in_which_they_were_shown(tmp_path: Path) -> None:
    made = result(
        {"output_type": "stream", "name": "stdout", "text": "before"},
        shown(**{"image/png": base64.encodebytes(PNG).decode(), "text/plain": "<Figure>"}),
        shown(**{"image/svg+xml": "<svg>é</svg>"}),
        shown(**{"image/png": "QUJD", "image/svg+xml": "<svg/>"}),
    )
    assert made.images == [
        Image("image/png", PNG),
        Image("image/svg+xml", "<svg>é</svg>".encode()),
        Image("image/png", b"ABC"),
    ]
    made.images[0].save(tmp_path / "plot.png")
    made.images[1].save(str(tmp_path / "drawing.svg"))
    assert (tmp_path / "plot.png").read_bytes() == PNG
    assert (tmp_path / "drawing.svg").read_text() == "<svg>é</svg>"


def test_what_is_no_picture_is_left_out() -> None:
    broken = [shown(**{"image/png": text}) for text in ("é", "QUJDR")]
    assert result(*broken, {"data": None}, {"data": {"image/png": 1}}).images == []


def test_a_result_is_one_short_line_at_a_prompt() -> None:
    plot = result(shown(**{"image/png": base64.b64encode(PNG).decode()}), text="<Figure>")
    assert repr(plot) == "Result(status='ok', text='<Figure>', images=1)"
    assert repr(plot.images[0]) == f"Image('image/png', {len(PNG)} bytes)"
    error = ErrorInfo(ename="ValueError", evalue="x\n" * 100_000, traceback=[])
    for each in (
        result(text="a line\n" * 100_000),
        result(status="error", error=error, text="Traceback"),
        BlocksResult(exit_code=0, blocks=[plot] * 1000, output="out" * 100_000),
    ):
        assert len(repr(each)) < 120
        assert "\n" not in repr(each)
    assert "ValueError: x" in repr(result(status="error", error=error))


def test_alternatives_are_as_short() -> None:
    one = b'{"session": "s", "execution": "e", "status": "ok", "branch": "kept", "text": "%s"}' % (
        b"x" * 9999
    )
    body = b'{"results": [%s, %s]}' % (one, one)
    found = decode(body, Exploration)
    assert repr(found) == "Exploration(ok, ok)"
    assert len(repr(found.results)) < 240
