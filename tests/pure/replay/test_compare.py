"""Two runs of a cell by their outputs: equal, equal after normalising, or different and how."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from PIL import Image

from cellgate.replay.compare import CellRun, Verdict, compare_runs, on_screen, text_diff
from cellgate.replay.images import LARGEST_UNSEEN, PixelBudget, compare_pictures
from cellgate.replay.moments import Window
from tests.support.growth import Cost, both_costs

_THEN = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
_NOW = datetime(2026, 11, 21, 16, 5, tzinfo=UTC)
THEN = Window(_THEN, _THEN + timedelta(minutes=5))
NOW = Window(_NOW, _NOW + timedelta(minutes=2))


def out(text: str | list[str], name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def shown(data: dict[str, Any], output_type: str = "display_data") -> dict[str, Any]:
    return {"output_type": output_type, "data": data, "metadata": {}}


def result(text: str, count: int = 1) -> dict[str, Any]:
    return {**shown({"text/plain": text}, "execute_result"), "execution_count": count}


def error(evalue: str, count: int = 1) -> dict[str, Any]:
    traceback = [f"\x1b[31mCell In[{count}], line 1\x1b[39m", f"ValueError: {evalue}"]
    return {"output_type": "error", "ename": "ValueError", "evalue": evalue, "traceback": traceback}


def png(
    size: tuple[int, int] = (20, 10), dot: tuple[int, int] | None = None, grey: int = 0, **options: Any
) -> bytes:
    image = Image.new("RGB", size, "white")
    if dot is not None:
        image.putpixel(dot, (grey, grey, grey))
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
        ([picture(png())], [picture(png(compress_level=0))], {"pictures as they look: the same pixels"}),
        ([out("{'b', 'a', 'c'}")], [out("{'c', 'a', 'b'}")], {"order of sets"}),
        (
            [shown({"application/json": {"at": "<A at 0x7f1c2a4d5e90>"}})],
            [shown({"application/json": {"at": "<A at 0x7f1c2a4d5e91>"}})],
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
        ("ok", "timeout", Verdict.DIFFERENT),
        ("died", "died", Verdict.EQUAL),
        ("died", "ok", Verdict.DIFFERENT),
    ],
)
def test_how_a_cell_ended_is_compared(then: str, now: str, verdict: Verdict) -> None:
    assert compare_runs(CellRun(then, []), CellRun(now, [])).verdict is verdict


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ("took 1.2 s", "took 950.1 ms", "durations"),
        ("half-life 3.20 s", "half-life 9.99 s", "durations"),
        ("12.5 ms", "950.1 ms", "durations"),
        ("d41d8cd98f00b204e9800998ecf8427e", "9e107d9d372bb6826bd81d3542a419d6", "identifiers"),
    ],
)
def test_what_may_be_a_result_is_not_judged(then: str, now: str, said: str) -> None:
    """Not the same, and not different either; one more difference that is sure makes the cell different."""
    compared = compare_runs(CellRun("ok", [out(then)], THEN), CellRun("ok", [out(now)], NOW))
    assert compared.verdict is Verdict.UNJUDGED
    [difference] = compared.differences
    assert not difference.judged
    assert said in difference.note
    assert f"-{then}\n+{now}" in difference.diff
    both = [out(then), result("1")], [out(now), result("2")]
    compared = compare_runs(CellRun("ok", both[0], THEN), CellRun("ok", both[1], NOW))
    assert compared.verdict is Verdict.DIFFERENT
    assert [each.judged for each in compared.differences] == [False, True]


@pytest.mark.parametrize(
    ("then", "now", "rtol", "verdict"),
    [
        ("[0.1 0.25]", "[0.10000001 0.25]", 1e-6, Verdict.NORMALISED),
        ("[0.1  0.25]", "[0.10000001 0.25 ]", 0.0, Verdict.DIFFERENT),
        ("0.1", "0.100001", 1e-6, Verdict.DIFFERENT),
        ("x  1e-3\ny  2.5", "x 1.0000001e-3\ny  2.5", 1e-6, Verdict.NORMALISED),
        ("1.5.", "1.50000001.", 1e-6, Verdict.NORMALISED),
        ("-1.5", "1.5", 0.9, Verdict.DIFFERENT),
        ("1000000", "1000001", 1e-3, Verdict.DIFFERENT),
        ("v1.2.3", "v1.2.4", 0.9, Verdict.DIFFERENT),
        ("0.0", "1e-300", 0.9, Verdict.DIFFERENT),
        ("1e400", "2e400", 0.9, Verdict.DIFFERENT),
        ("1.5 a", "1.50000001 b", 1e-6, Verdict.DIFFERENT),
        ("1.5", "1.50000001 1.5", 1e-6, Verdict.DIFFERENT),
        ("nan", "1.5", 0.9, Verdict.DIFFERENT),
        ("took 1.5 s, 2.25", "took 2.5 s, 2.2500001", 1e-6, Verdict.UNJUDGED),
    ],
)
def test_a_tolerance_is_for_floating_point_numbers_alone(
    then: str, now: str, rtol: float, verdict: Verdict
) -> None:
    compared = compare_runs(CellRun("ok", [out(then)], THEN), CellRun("ok", [out(now)], NOW), rtol=rtol)
    assert compared.verdict is verdict
    if verdict is Verdict.NORMALISED:
        [rule] = compared.rules
        assert rule.startswith("numbers within 1e-06 (largest difference ")


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


def test_how_far_a_cell_came_until_it_was_stopped_is_not_judged() -> None:
    then, now = CellRun("timeout", [out("0\n1\n2\n")]), CellRun("timeout", [out("0\n1\n")])
    assert compare_runs(then, now).verdict is Verdict.UNJUDGED
    assert compare_runs(replace(then, status="ok"), now).verdict is Verdict.DIFFERENT


def test_a_picture_of_the_difference_marks_the_pixels() -> None:
    compared = compare_pictures(png(), png(dot=(3, 4)), PixelBudget())
    assert compared.picture is not None
    with Image.open(io.BytesIO(compared.picture)) as image:
        assert image.size == (20 * 3 + 16, 10)
        assert image.getpixel((2 * 28 + 3, 4)) == (214, 0, 28)
        assert image.getpixel((2 * 28 + 4, 4)) == (255, 255, 255)


@pytest.mark.parametrize(("grey", "same"), [(254, True), (230, True), (200, False), (0, False)])
def test_a_difference_that_nobody_sees_is_none_and_its_size_is_shown(grey: int, same: bool) -> None:
    """In a corner too, where fewer pixels are around it."""
    for place in ((3, 4), (0, 0), (19, 9)):
        compared = compare_pictures(png(), png(dot=place, grey=grey), PixelBudget())
        assert compared.same is same
        assert (compared.distance <= LARGEST_UNSEEN) is same
        assert compared.note.startswith("1 of 200 pixels differ (0.50%), by up to ")
    compared_runs = compare_runs(
        CellRun("ok", [picture(png())]), CellRun("ok", [picture(png(dot=(1, 1), grey=grey))])
    )
    assert compared_runs.verdict is (Verdict.NORMALISED if same else Verdict.DIFFERENT)


def test_what_is_transparent_does_not_count() -> None:
    def shade(colour: tuple[int, int, int, int]) -> bytes:
        written = io.BytesIO()
        Image.new("RGBA", (9, 9), colour).save(written, "PNG")
        return written.getvalue()

    hidden = shade((255, 255, 255, 0))
    assert compare_pictures(hidden, shade((0, 0, 0, 0)), PixelBudget()).same
    assert compare_pictures(hidden, shade((255, 255, 255, 255)), PixelBudget()).same is False
    assert compare_pictures(hidden, shade((0, 0, 0, 255)), PixelBudget()).same is False


def test_the_pixels_of_one_report_are_bounded() -> None:
    budget = PixelBudget(1000)
    runs = CellRun("ok", [picture(png())]), CellRun("ok", [picture(png(compress_level=0))])
    verdicts = [compare_runs(*runs, pixels=budget).verdict for _ in range(4)]
    assert verdicts == [Verdict.NORMALISED, Verdict.NORMALISED, Verdict.UNJUDGED, Verdict.UNJUDGED]
    assert compare_runs(runs[0], runs[0], pixels=budget).verdict is Verdict.EQUAL


def test_a_huge_picture_is_not_decoded() -> None:
    huge = io.BytesIO()
    Image.new("1", (9000, 9000)).save(huge, "PNG")
    compared = compare_pictures(png(), huge.getvalue(), PixelBudget())
    assert compared.same is False
    assert "too many" in compared.note


BAR = "".join(f"\rstep {n:>3} of 10" for n in range(11)) + "\n"


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (BAR, "step  10 of 10\n"),
        ("loading...\rdone\n", "done\n"),
        ("wait |\b/\b-\b done\n", "wait  done\n"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("99%\r", "99%"),
        ("1\r\r\n2", "1\n2"),
        ("\x1b[32m10%\r\x1b[32m99%\x1b[0m\n", "99%\n"),
        ("ab\b\b\b\bc", "c"),
        ([*BAR.splitlines(True)], "step  10 of 10\n"),
    ],
)
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_what_was_printed_is_compared_as_a_terminal_shows_it(
    then: str | list[str], now: str, name: str
) -> None:
    """Nbclient and papermill keep all that was written; the gateway keeps what is seen."""
    for first, second in ((then, now), (now, then)):
        compared = compare_runs(CellRun("ok", [out(first, name)]), CellRun("ok", [out(second, name)]))
        assert compared.verdict is Verdict.NORMALISED
        assert compared.rules[-1] == "overwritten text"


def test_what_a_terminal_shows_otherwise_is_different() -> None:
    compared = compare_runs(CellRun("ok", [out(BAR)]), CellRun("ok", [out("step   9 of 10\n")]))
    assert compared.verdict is Verdict.DIFFERENT
    [difference] = compared.differences
    assert difference.diff.splitlines()[3:] == ["-step  10 of 10", "+step   9 of 10"]
    assert compared.rules == ()


def test_a_line_that_is_overwritten_between_other_outputs_is_one() -> None:
    then = [out("10%\r"), out("warning\n", "stderr"), out("20%\r"), result("1"), out("100%\n")]
    now = [out("100%\n"), out("warning\n", "stderr"), result("1")]
    assert compare_runs(CellRun("ok", then), CellRun("ok", now)).verdict is Verdict.NORMALISED


def test_bars_of_tqdm_are_compared_by_what_they_show_last() -> None:
    drawn = [f"\r{n:>3}%|{'#' * n}| {n}/9 [00:0{n}<00:00, {n + 1}.1it/s]" for n in range(10)]
    then = CellRun("ok", [out("".join(drawn) + "\n", "stderr")])
    now = CellRun("ok", [out("  9%|#########| 9/9 [00:02<00:00,  4.5it/s]\n", "stderr")])
    compared = compare_runs(then, now)
    assert (compared.verdict, set(compared.rules)) == (
        Verdict.NORMALISED,
        {"progress bars", "overwritten text"},
    )


@pytest.mark.parametrize(
    "piece",
    [
        "\r50%",
        "\b",
        "a\b",
        "ab\b\b\b",
        "\x1b[1mx\b",
        "\r",
        "\r\n",
        "\n",
        "x\r\b",
        "\b\x1b",
        "\r 1%| | 1/9 [0:01<",
    ],
)
@both_costs
def test_what_was_written_over_is_found_in_linear_time(piece: str, cost: Cost) -> None:
    def make(size: int) -> str:
        return piece * (size // len(piece) + 1)

    def compared(text: str) -> None:
        compare_runs(CellRun("ok", [out(text + "a")]), CellRun("ok", [out(text + "b")]))

    cost.check(on_screen, make)
    cost.check(compared, make)
