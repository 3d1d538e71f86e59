"""What a kernel says to a question, as values: whatever it says, it is small and of the right type."""

from __future__ import annotations

from typing import Any

import pytest

from cellgate_kernels.kernel.questions import (
    MOST_FORM,
    MOST_FORMS,
    MOST_MATCH,
    MOST_MATCHES,
    MOST_VARIABLES,
    KernelCompletion,
    KernelInspection,
    KernelVariables,
    Variable,
    completion_of,
    inspection_of,
    variables_of,
)


def completed(*matches: object, start: object = 0, end: object = 3, **more: Any) -> dict[str, Any]:
    return {"matches": list(matches), "cursor_start": start, "cursor_end": end, "status": "ok", **more}


def test_a_completion_has_matches_and_what_each_is() -> None:
    types = [{"text": "print", "type": "function", "start": 0}, {"text": "pr", "type": "module"}]
    content = completed("pr", "print", "other", metadata={"_jupyter_types_experimental": types})
    assert completion_of(content, 3, 3) == KernelCompletion(
        ["pr", "print", "other"], 0, 3, ["module", "function", ""]
    )


@pytest.mark.parametrize("metadata", [{}, {"_jupyter_types_experimental": []}, None, "x"])
def test_a_kernel_may_say_nothing_of_types(metadata: object) -> None:
    assert completion_of(completed("a", metadata=metadata), 3, 3) == KernelCompletion(["a"], 0, 3)


@pytest.mark.parametrize(
    "content",
    [
        {},
        completed("a", start=-1),
        completed("a", start=2, end=1),
        completed("a", end=4),
        completed("a", start="0"),
        completed("a", end=True),
        completed("a", end=10**30),
        completed("a", 7),
        {**completed(), "matches": "abc"},
    ],
)
def test_an_answer_without_sense_completes_nothing(content: dict[str, Any]) -> None:
    assert completion_of(content, 3, 2) == KernelCompletion([], 2, 2)


def test_of_too_many_or_too_long_matches_the_rest_is_told() -> None:
    many = completion_of(completed(*map(str, range(MOST_MATCHES + 1))), 3, 3)
    assert (len(many.matches), many.truncated) == (MOST_MATCHES, True)
    long = completion_of(completed("x" * MOST_MATCH, "x" * (MOST_MATCH + 1), ""), 3, 3)
    assert (long.matches, long.truncated) == (["x" * MOST_MATCH], True)


def test_an_inspection_has_texts_by_type() -> None:
    data = {"text/plain": "a", "text/html": "<b>a</b>", "image/png": {"not": "text"}, "": 5}
    found = inspection_of({"found": True, "data": data})
    assert found == KernelInspection({"text/plain": "a", "text/html": "<b>a</b>"})


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"found": False, "data": {"text/plain": "a"}},
        {"found": 1, "data": {}},
        {"found": True, "data": []},
    ],
)
def test_an_answer_without_sense_has_found_nothing(content: dict[str, Any]) -> None:
    assert inspection_of(content) == KernelInspection()


def test_of_too_much_documentation_the_rest_is_told() -> None:
    data = {"text/plain": "x" * (MOST_FORM + 1), "y" * 101: "a", "ü/x": "a"}
    data |= {f"text/{number}": "a" for number in range(MOST_FORMS + 1)}
    found = inspection_of({"found": True, "data": data}).data
    assert list(found) == [f"text/{number}" for number in range(MOST_FORMS)]


def test_variables_are_on_one_line() -> None:
    told = [
        {"name": "a", "type": "in\tt", "summary": "1\n\u202e2", "size": 5, "rows": 2, "more": 1},
        {"name": "b"},
    ]
    assert variables_of({"variables": told, "truncated": False}) == KernelVariables(
        [Variable("a", "in?t", "1??2", 5, 2), Variable("b")]
    )


@pytest.mark.parametrize(
    "one",
    [
        {},
        {"name": 1},
        {"name": "a" * 201},
        {"name": "a", "summary": "x" * 201},
        {"name": "a", "size": -1},
        {"name": "a", "size": 2**60},
        {"name": "a", "rows": -1},
        {"name": "a", "type": None},
        "a",
    ],
)
def test_an_answer_without_sense_has_no_variables(one: object) -> None:
    assert variables_of({"variables": [one]}) == KernelVariables([], truncated=True)
    assert variables_of({"variables": one}) == KernelVariables([], truncated=True)


def test_more_variables_than_asked_for_are_none() -> None:
    told = [{"name": "a"}] * (MOST_VARIABLES + 1)
    assert variables_of({"variables": told}) == KernelVariables([], truncated=True)
