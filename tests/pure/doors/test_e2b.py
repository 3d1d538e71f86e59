"""The door for E2B's SDKs: what events become, which paths are a sandbox's, and how long tokens hold."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import cast

import pytest

from cellgate.doors.e2b.base import domain_of
from cellgate.doors.e2b.envelopes import opened
from cellgate.doors.e2b.lines import CellLines
from cellgate.doors.e2b.setup import CHART
from cellgate.doors.sandbox.contexts import CodeContext
from cellgate.doors.sandbox.paths import home_path, parse_file_path, parse_home_path
from cellgate.errors import NotFound
from cellgate.identity.derived import IN_USE_SECONDS, MOST_LOGINS, DerivedTokens
from cellgate.identity.principal import DEFAULT, Login, Principal, Reach
from cellgate.record.rows import EventRow
from cellgate.sessions.session import Session
from cellgate_kernels.base.errors import InvalidInput

ADA = Login.of(Principal("ada"), token="t1")


def row(kind: str, **fields: object) -> EventRow:
    return EventRow(1, 1, kind, "x", json.dumps({"type": kind, **fields}).encode(), b"")


def told(*rows: EventRow) -> list[dict[str, object]]:
    return [json.loads(line) for line in CellLines()(rows)]


# ---- lines -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [("'a'", "a"), ('"it\'s"', "it's"), ("'", "'"), ("''", ""), ("'a\"", "'a\""), ("5", "5"), ("", "")],
)
def test_the_quotes_of_a_text_are_cut_off(text: str, shown: str) -> None:
    (line,) = told(row("execute_result", data={"text/plain": text}, execution_count=1))
    assert line == {"type": "result", "is_main_result": True, "text": shown}


def test_an_end_that_is_not_the_cells_own_is_an_error_with_its_cause() -> None:
    finished = {"status": "timeout", "cause": "cell_timeout", "error": {"ename": "X", "evalue": "too long"}}
    error, broken, end = told(row("finished", **finished))
    assert error == {
        "type": "error",
        "name": "cell_timeout",
        "value": "too long",
        "traceback": "cell_timeout: too long",
    }
    assert (broken, end) == ({"type": "unexpected_end_of_execution"}, {"type": "end_of_execution"})


def test_an_error_is_told_once() -> None:
    raised = row("error", ename="KeyboardInterrupt", evalue="", traceback=["\x1b[31mone\x1b[0m", "two"])
    interrupted = row("finished", status="interrupted", cause="interrupt_requested", error=None)
    error, end = told(raised, interrupted)
    assert (error["name"], error["traceback"]) == ("KeyboardInterrupt", "one\ntwo")
    assert end == {"type": "end_of_execution"}
    assert [line.get("name") for line in told(interrupted)] == ["interrupt_requested", None]


def test_what_sdks_do_not_know_is_left_out() -> None:
    rows = [row(kind) for kind in ("queued", "clear_output", "update_display_data", "file", "comm_open")]
    rows.append(row("stream", name="stdout", text="of a widget", widget="w", at="2026-01-02T03:04:05.678Z"))
    assert told(*rows) == []


def test_times_are_in_nanoseconds() -> None:
    (line,) = told(row("stream", name="stderr", text="x", at="1970-01-01T00:00:01.500Z"))
    assert line == {"type": "stderr", "text": "x", "timestamp": 1_500_000_000}


def test_a_figures_chart_has_its_name() -> None:
    chart = {"type": "line", "title": "t"}
    (line,) = told(row("display_data", data={CHART: chart}))
    assert line == {"type": "result", "is_main_result": False, "chart": chart}


# ---- contexts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "cwd", "code"),
    [
        ("python", "/home/user", None),
        ("python", "/home/user/it's", "__import__('os').chdir(\"it's\")"),
        ("bash", "/home/user/a b", "cd -- 'a b'"),
        ("typescript", '/home/user/a"b', 'Deno.chdir("a\\"b")'),
    ],
)
def test_where_a_contexts_cells_begin(language: str, cwd: str, code: str | None) -> None:
    assert CodeContext("c", language, cwd, cast(Session, None)).begins == code


# ---- paths and envelopes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("a/b.txt", ("a", "b.txt")),
        ("/home/user/a", ("a",)),
        ("/home/user//a/./b/../c/", ("a", "c")),
        ("//home/user/a", ("a",)),
        ("~", ()),
        ("~/a", ("a",)),
        ("", ()),
        (".", ()),
        ("/home/user", ()),
        ("/workspace/a", ("a",)),
        ("/mnt/data/a", ("a",)),
        ("~a", ("~a",)),
    ],
)
def test_paths_of_the_home_folder(path: str, parts: tuple[str, ...]) -> None:
    assert parse_home_path(path) == parts
    assert parse_home_path(home_path(parts)) == parts


@pytest.mark.parametrize("path", ["/etc", "..", "../x", "/home/user/../x", "/home/username", "/", "~/../x"])
def test_other_paths_are_not_there(path: str) -> None:
    with pytest.raises(NotFound):
        parse_home_path(path)


@pytest.mark.parametrize("path", ["~", "", "a/..", "x" * 5000, "a\0", "x" * 300, "a/" * 100 + "b", "\ud800"])
def test_what_is_no_path_of_a_file(path: str) -> None:
    with pytest.raises(InvalidInput):
        parse_file_path(path)


def test_a_request_is_one_whole_envelope() -> None:
    assert opened(b"\0\0\0\0\2{}") == b"{}"
    bad = (b"", b"\0\0\0\0", b"\0\0\0\0\3{}", b"\0\0\0\0\1{}", b"\1\0\0\0\2{}", b"\0\xff\xff\xff\xff{}")
    for body in bad:
        with pytest.raises(InvalidInput):
            opened(body)


# ---- tokens ------------------------------------------------------------------------------------------------


def test_a_derived_token_is_for_one_thing_and_one_login() -> None:
    tokens = DerivedTokens(lambda _: True)
    made = tokens.make(ADA, "thing")
    assert tokens.make(ADA, "thing") == made
    assert tokens.login(made, "thing") is ADA
    others = (DEFAULT, replace(ADA, id="t2"), replace(ADA, reach=Reach("p-")), replace(ADA, expires=1.0))
    assert len({made, *(tokens.make(login, "thing") for login in others)}) == 5
    name, _, proof = made.partition(".")
    for token in ("", "x", made[:-1], made + "0", f"{name}.{'0' * 64}", f"{'0' * 32}.{proof}", "ü" * 97):
        assert tokens.login(token, "thing") is None
    assert tokens.login(made, "other") is None
    assert DerivedTokens(lambda _: True).login(made, "thing") is None


def test_a_derived_token_ends_with_its_login() -> None:
    ended: set[str] = set()
    tokens = DerivedTokens(lambda login: login.id not in ended)
    made = tokens.make(ADA, "thing")
    ended.add(ADA.id)
    assert tokens.login(made, "thing") is None


def test_a_login_is_in_use_while_its_tokens_are() -> None:
    now = 0.0
    tokens = DerivedTokens(lambda _: True, clock=lambda: now)
    made = tokens.make(ADA, "thing")
    tokens.make(DEFAULT, "thing")
    assert set(tokens.logins_in_use()) == {ADA, DEFAULT}
    now = IN_USE_SECONDS
    assert tokens.login(made, "other") is None
    assert tokens.login(made, "thing") is ADA
    now += 1
    assert list(tokens.logins_in_use()) == [ADA]
    now += IN_USE_SECONDS
    assert list(tokens.logins_in_use()) == []


def test_logins_that_nobody_uses_are_forgotten() -> None:
    tokens = DerivedTokens(lambda _: True)
    first, second = tokens.make(ADA, "thing"), tokens.make(replace(ADA, id="t2"), "thing")
    for number in range(MOST_LOGINS - 2):
        tokens.make(replace(ADA, id=f"more-{number}"), "thing")
    assert tokens.login(first, "thing") is ADA
    tokens.make(DEFAULT, "thing")
    assert tokens.login(second, "thing") is None
    assert tokens.login(first, "thing") is ADA


@pytest.mark.parametrize(
    ("told", "host", "domain"),
    [
        ("sandboxes.example.org", "localhost", "sandboxes.example.org"),
        ("Sandboxes.Example.org:8443", "localhost", "sandboxes.example.org:8443"),
        ("", "api.sandboxes.example.org", "sandboxes.example.org"),
        ("", "gateway.example.org:8888", "gateway.example.org:8888"),
        ("", "127.0.0.1:8888", "localhost:8888"),
        ("", "[::1]:8888", "localhost:8888"),
        ("", "[::1]", "localhost"),
        ("", "localhost", "localhost"),
        ("", "10.0.0.5:8888", "10.0.0.5:8888"),
        ("", "", "localhost"),
        ("a/b", "localhost:1", "localhost:1"),
        ("x.example.org/..", "gateway.example.org", "gateway.example.org"),
        ("a" * 60_000, "gateway.example.org", "gateway.example.org"),
        ("a\0b", "b" * 60_000, "localhost"),
    ],
)
def test_a_sandbox_always_has_a_domain_that_is_not_anybody_elses(told: str, host: str, domain: str) -> None:
    assert domain_of(told, host) == domain
