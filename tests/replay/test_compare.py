"""Two runs of a cell by their outputs: equal, equal after normalising, or different and how."""

from __future__ import annotations

import base64
import io
from datetime import UTC, datetime
from typing import Any

import pytest
from PIL import Image

from gateway.replay.compare import CellRun, Verdict, compare_runs, text_diff
from gateway.replay.images import compare_pictures

THEN = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
NOW = datetime(2026, 11, 21, 16, 5, tzinfo=UTC)


def out(text: str | list[str], name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def shown(data: dict[str, Any], output_type: str = "display_data") -> dict[str, Any]:
    return {"output_type": output_type, "data": data, "metadata": {}}


def result(text: str, count: int = 1) -> dict[str, Any]:
    return {**shown({"text/plain": text}, "execute_result"), "execution_count": count}


def error(evalue: str, count: int = 1) -> dict[str, Any]:
    traceback = [f"\x1b[31mCell In[{count}], line 1\x1b[39m", f"ValueError: {evalue}"]
    return {"output_type": "error", "ename": "ValueError", "evalue": evalue, "traceback": traceback}


def png(size: tuple[int, int] = (20, 10), dot: tuple[int, int] | None = None, **options: Any) -> bytes:
    image = Image.new("RGB", size, "white")
    if dot is not None:
        image.putpixel(dot, (255, 255, 254))
    written = io.BytesIO()
    image.save(written, "PNG", **options)
    return written.getvalue()


def picture(data: bytes) -> dict[str, Any]:
    return shown({"image/png": base64.b64encode(data).decode(), "text/plain": "<Figure size 20x10>"})


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ([], []),
        ([out("a\n")], [out("a\n")]),
        ([out("a\n"), out("b\n")], [out("a\nb\n")]),
        ([out(["a\n", "b\n"])], [out("a\nb\n")]),
        ([out("a"), out("e", "stderr"), out("b")], [out("ab"), out("e", "stderr")]),
        ([result("1", 1)], [result("1", 7)]),
        ([shown({"application/json": {"a": 1, "b": 2}})], [shown({"application/json": {"b": 2, "a": 1}})]),
        ([error("no")], [error("no")]),
        ([picture(png())], [picture(png())]),
    ],
)
def test_equal(then: list[dict[str, Any]], now: list[dict[str, Any]]) -> None:
    compared = compare_runs(CellRun("ok", then, THEN), CellRun("ok", now, NOW))
    assert (compared.verdict, compared.rules, compared.differences) == (Verdict.EQUAL, (), ())


@pytest.mark.parametrize(
    ("then", "now", "rules"),
    [
        ([result("<A at 0x7f1c2a4d5e90>")], [result("<A at 0x7f1c2a4d5e91>")], {"memory addresses"}),
        ([out("2026-03-01 09:30:02\n")], [out("2026-11-21 16:05:03\n")], {"timestamps"}),
        ([error("no", 1)], [error("no", 5)], {"execution counts"}),
        ([out("\x1b[31mred\x1b[0m")], [out("red")], {"colours"}),
        ([picture(png())], [picture(png(compress_level=0))], {"pictures by their pixels"}),
        (
            [shown({"application/json": {"at": "0x7f1c2a4d5e90"}})],
            [shown({"application/json": {"at": "0x7f1c2a4d5e91"}})],
            {"memory addresses"},
        ),
    ],
)
def test_equal_after_normalising(
    then: list[dict[str, Any]], now: list[dict[str, Any]], rules: set[str]
) -> None:
    compared = compare_runs(CellRun("ok", then, THEN), CellRun("ok", now, NOW))
    assert (compared.verdict, set(compared.rules), compared.differences) == (Verdict.NORMALISED, rules, ())


@pytest.mark.parametrize(
    ("then", "now", "part", "said"),
    [
        ([out("a\n")], [out("b\n")], "stdout", "-a\n+b"),
        ([out("a\n")], [out("a\n", "stderr")], "stdout", "-a"),
        ([out("a\n")], [], "stdout", "-a"),
        ([result("1")], [result("2")], "output 1, text/plain", "-1\n+2"),
        ([result("1")], [], "output 1", "execute_result (text/plain) did not come any more"),
        ([], [error("no")], "output 1", "error (ValueError) came now only"),
        ([result("1")], [error("no")], "error", "execute_result was recorded, error came"),
        ([error("yes")], [error("no")], "error", "-ValueError: yes\n+ValueError: no"),
        (
            [shown({"text/plain": "a", "text/html": "<b>a</b>"})],
            [shown({"text/plain": "a"})],
            "output 1",
            "text/html, text/plain was recorded, text/plain came",
        ),
        ([shown({"application/json": [1]})], [shown({"application/json": [2]})], "output 1", "- 1\n+ 2"),
        ([picture(png())], [picture(png(dot=(3, 3)))], "output 1, image/png", "1 of 200 pixels"),
        ([picture(png())], [picture(png((30, 10)))], "output 1, image/png", "20 x 10 pixels were recorded"),
        ([picture(png())], [picture(b"no picture")], "output 1, image/png", "can't be read"),
        ([result("1"), result("2")], [result("2"), result("1")], "output 1, text/plain", "-1\n+2"),
    ],
)
def test_different(then: list[dict[str, Any]], now: list[dict[str, Any]], part: str, said: str) -> None:
    compared = compare_runs(CellRun("ok", then, THEN), CellRun("ok", now, NOW))
    assert compared.verdict is Verdict.DIFFERENT
    first = compared.differences[0]
    assert first.part.startswith(part)
    assert said in f"{first.note}\n{first.diff}"


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        ("ok", "error", Verdict.DIFFERENT),
        ("error", "error", Verdict.EQUAL),
        ("interrupted", "timeout", Verdict.EQUAL),
        ("timeout", "ok", Verdict.DIFFERENT),
        ("died", "ok", Verdict.DIFFERENT),
    ],
)
def test_how_a_cell_ended_is_compared(then: str, now: str, verdict: Verdict) -> None:
    assert compare_runs(CellRun(then, []), CellRun(now, [])).verdict is verdict


def test_a_diff_shows_only_lines_that_matter() -> None:
    then = [out("<A at 0x7f1c2a4d5e90>\nx = 1\n")]
    now = [out("<A at 0x7f1c2a4d5e91>\nx = 2\n")]
    [difference] = compare_runs(CellRun("ok", then, THEN), CellRun("ok", now, NOW)).differences
    changed = [line for line in difference.diff.splitlines()[3:] if line[0] in "+-"]
    assert changed == ["-x = 1", "+x = 2"]


def test_a_diff_is_bounded() -> None:
    before, after = ("\n".join(f"{word}{n}" + "x" * 3000 for n in range(5000)) for word in ("a", "b"))
    diff = text_diff(before, after)
    assert len(diff.splitlines()) <= 401
    assert diff.endswith("... more is not shown")


def test_a_picture_of_the_difference_marks_the_pixels() -> None:
    compared = compare_pictures(png(), png(dot=(3, 4)))
    assert compared.picture is not None
    with Image.open(io.BytesIO(compared.picture)) as image:
        assert image.size == (20 * 3 + 16, 10)
        assert image.getpixel((2 * 28 + 3, 4)) == (214, 0, 28)
        assert image.getpixel((2 * 28 + 4, 4)) == (255, 255, 255)


def test_a_huge_picture_is_not_decoded() -> None:
    compared = compare_pictures(png(), png((9000, 9000)))
    assert not compared.same
    assert "too many" in compared.note or "exceeds" in compared.note
