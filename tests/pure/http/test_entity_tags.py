"""Conditions of requests on the file that they replace: what header fields say, and when they hold."""

from __future__ import annotations

from itertools import count

import pytest
from tornado.httputil import HTTPHeaders

from cellgate.errors import FileChanged, status_of
from cellgate.files.precondition import Precondition
from cellgate.http.entity_tags import precondition
from cellgate_kernels.base.errors import InvalidInput

NAMES = ("If-Match", "If-None-Match")


def read(**fields: str) -> Precondition | None:
    return precondition(HTTPHeaders({name.replace("_", "-"): value for name, value in fields.items()}))


def holds(condition: Precondition | None, tag: str | None) -> bool:
    assert condition is not None
    try:
        condition.check("f", tag)
    except FileChanged:
        return False
    return True


def test_a_refusal_names_the_file() -> None:
    condition = read(If_Match="*")
    assert condition is not None
    with pytest.raises(FileChanged, match="'a/b'") as refused:
        condition.check("a/b", None)
    assert (status_of(refused.value), refused.value.reason) == (412, "file_changed")


@pytest.mark.parametrize(
    ("value", "held"),
    [
        ("*", {'"a"', '"b"'}),
        ('"a"', {'"a"'}),
        (' \t"x" , "b,", "a"', {'"a"'}),
        (',, "a",\t,"b",', {'"a"', '"b"'}),
        ('W/"a"', set()),
        ('W/"a", "b"', {'"b"'}),
        ('"\xe4", "a"', {'"a"'}),
        ('""', set()),
    ],
)
def test_a_file_that_has_one_of_the_tags_is_replaced(value: str, held: set[str]) -> None:
    condition = read(If_Match=value)
    assert {tag for tag in ('"a"', '"b"') if holds(condition, tag)} == held
    assert not holds(condition, None)


@pytest.mark.parametrize(
    ("value", "held"),
    [("*", set()), ('"a"', {'"b"'}), ('W/"a"', {'"b"'}), ('"x", "a", "b"', set()), ('"x"', {'"a"', '"b"'})],
)
def test_a_file_that_has_none_of_the_tags_is_replaced(value: str, held: set[str]) -> None:
    condition = read(If_None_Match=value)
    assert {tag for tag in ('"a"', '"b"') if holds(condition, tag)} == held
    assert holds(condition, None)


def test_both_conditions_must_hold() -> None:
    condition = read(If_Match='"a", "b"', If_None_Match='"b"')
    assert [holds(condition, tag) for tag in ('"a"', '"b"', '"c"', None)] == [True, False, False, False]


def test_a_field_that_is_sent_twice_is_one_list() -> None:
    headers = HTTPHeaders()
    headers.add("If-Match", '"a"')
    headers.add("If-Match", '"b"')
    assert holds(precondition(headers), '"a"')
    assert holds(precondition(headers), '"b"')


def test_without_a_field_there_is_no_condition() -> None:
    assert read() is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value",
    [
        *("", ",", "a", "W/*", '"a', 'a"', '"a" "b"', '"a",b', '*, "a"', '"a", *', 'w/"a"', 'W/ "a"'),
        *('"a b"', '"a"b"', '"a"' * 30_000, '"' * 60_001, "," * 60_000),
    ],
    ids=count(),
)
def test_what_is_no_list_of_tags_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        precondition(HTTPHeaders({name: value}))
