"""Logs: what a line has, that it stays one line whoever wrote what is in it, and that floods are cut."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine
from tornado.web import Application

from cellgate.http.described import described
from cellgate.http.health import ReadyHandler
from cellgate.http.metrics import Metrics, Problem
from cellgate.server.log import (
    LONGEST_FIELD,
    MINUTE,
    MOST,
    MOST_REQUESTS,
    PacedHandler,
    formatter,
    log_request,
)
from cellgate_kernels.base.errors import KernelStartFailed
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.pool.pool import KernelPool
from cellgate_kernels.testing import Attempt, FakeLauncher
from tests.support.clock import Clock
from tests.support.listening import services_of

HOSTILE = (
    "two\nlines",
    'a"quote',
    "back\\slash",
    "\x1b[31mred\x1b[0m",
    "\x9b31mred",
    "bell\x07\x00\x08",
    "carriage\rreturn",
    "line\u2028separator",
    "\u202eturned",
    "half \ud800 a pair",
    "emoji 🙂",
    "spoof level=critical event=x",
)


def written(*, as_json: bool, clock: Clock | None = None) -> tuple[logging.Logger, Callable[[], str], Any]:
    """A logger of its own, what it has written, and its handler."""
    stream = io.StringIO()
    handler = PacedHandler(stream, Clock(0.0) if clock is None else clock)
    handler.setFormatter(formatter(json=as_json))
    logger = logging.Logger("cellgate.access", logging.DEBUG)  # noqa: LOG001 - of this test alone
    logger.addHandler(handler)
    return logger, stream.getvalue, handler


@pytest.mark.parametrize("name", HOSTILE)
def test_json_lines_are_valid_whatever_a_name_holds(name: str) -> None:
    logger, text, _ = written(as_json=True)
    logger.info("GET %s 404", name, extra={"session": name, "principal": name})
    [line] = text().splitlines()
    assert line.isascii()
    found = json.loads(line)
    assert (found["event"], found["session"], found["principal"]) == (f"GET {name} 404", name, name)
    assert (found["level"], found["logger"]) == ("info", "cellgate.access")


@pytest.mark.parametrize("name", HOSTILE)
def test_text_lines_show_control_characters_and_stay_one_line(name: str) -> None:
    logger, text, _ = written(as_json=False)
    logger.info("GET %s 404", name, extra={"session": name})
    assert text().endswith("\n")
    assert text()[:-1].isprintable()


def test_a_value_cannot_pass_for_another_field() -> None:
    logger, text, _ = written(as_json=False)
    logger.info("refused", extra={"session": "s principal=root"})
    assert "session='s principal=root'" in text()


def test_a_stack_cannot_hold_a_line_of_its_own() -> None:
    """An exception's text, which may be a client's, begins no line."""
    logger, text, _ = written(as_json=False)
    try:
        raise ValueError("first\n2026-01-01T00:00:00Z [info] forged \x1b[2J")
    except ValueError:
        logger.exception("failed")
    first, *stack = text().splitlines()
    assert "failed" in first
    assert len(stack) > 2
    assert all(line.startswith("  | ") and line.isprintable() for line in stack)


def test_long_names_are_cut() -> None:
    logger, text, _ = written(as_json=True)
    logger.info("x", extra={"session": "s" * 100_000})
    assert json.loads(text())["session"] == "s" * LONGEST_FIELD + "..."


def lines(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


def test_a_flood_of_refusals_is_cut_and_counted() -> None:
    """So many lines of one reason a minute, then their number; other reasons are not affected."""
    clock = Clock(0.0)
    logger, text, _ = written(as_json=True, clock=clock)
    for number in range(MOST_REQUESTS + 1000):
        logger.info("GET /%d", number, extra={"reason": "not_authenticated"})
    logger.info("GET /%d", 1, extra={"reason": "forbidden"})
    assert len(lines(text())) == MOST_REQUESTS + 1
    clock.now = MINUTE
    logger.info("GET /%d", 2, extra={"reason": "not_authenticated"})
    *_, summary, last = text().splitlines()
    assert json.loads(summary)["event"] == (
        f"Left out 1000 more lines of this kind in a minute, the last: GET /{MOST_REQUESTS + 999}"
    )
    assert json.loads(summary)["reason"] == "not_authenticated"
    assert json.loads(last)["event"] == "GET /2"


def test_the_number_is_told_even_if_nothing_follows() -> None:
    clock = Clock(0.0)
    logger, text, handler = written(as_json=True, clock=clock)
    for number in range(MOST_REQUESTS + 5):
        logger.info("GET /%d", number)
    handler.tell_left_out()
    assert len(lines(text())) == MOST_REQUESTS
    clock.now = MINUTE
    handler.tell_left_out()
    assert lines(text())[-1].startswith("Left out 5 more lines")
    handler.tell_left_out()
    assert len(lines(text())) == MOST_REQUESTS + 1


def test_it_is_told_at_the_end() -> None:
    logger, text, handler = written(as_json=True)
    for _ in range(MOST_REQUESTS + 3):
        logger.info("GET")
    handler.close()
    assert lines(text())[-1].startswith("Left out 3 more lines")


def test_our_own_lines_have_more_room_and_those_for_debugging_are_all_written() -> None:
    logger, text, _ = written(as_json=True)
    own = logging.Logger("cellgate.sessions", logging.DEBUG)  # noqa: LOG001 - of this test alone
    own.handlers = logger.handlers
    for _ in range(MOST + 1):
        own.info("begins")
        own.debug("detail")
    assert lines(text()).count("begins") == MOST
    assert lines(text()).count("detail") == MOST + 1


def test_a_request_is_described_without_query_name_and_password() -> None:
    assert described(request("GET", "/v1/sessions?token=secret")) == "GET /v1/sessions"
    assert described(request("GET", "http://user:secret@127.0.0.1/v1/sessions")) == "GET (no path)"
    assert len(described(request("X" * 1000, "/" + "a" * 100_000))) < 300


@pytest.mark.parametrize("end", ["/exec", "/exec/programmatic", "/download/s/f", "/sessions/s/objects/f", ""])
@pytest.mark.parametrize("key", ["secret", "se/secret", "/secret", "secret/", "secret%2Fsecret"])
def test_a_request_is_described_without_the_key_in_its_path(key: str, end: str) -> None:
    """A token may have slashes, and an address one too many; what is no path of the door is not told."""
    told = described(request("POST", f"/base/librechat/key/{key}{end}"))
    assert told == f"POST /base/librechat/key/...{end}"
    assert described(request("GET", f"/librechat/key/{key}/nowhere")) == "GET /librechat/key/..."


def request(method: str, uri: str) -> HTTPServerRequest:
    start = RequestStartLine(method, uri, "HTTP/1.1")
    return HTTPServerRequest(start_line=start, headers=HTTPHeaders({"Host": "here"}))


async def test_a_kernel_that_does_not_start_says_nothing_of_its_variables(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it said before its end may repeat them; without variables it is what an operator needs."""

    async def fails(attempt: Attempt) -> None:
        raise KernelStartFailed(f"It ended. It said: {dict(attempt.profile.env) or 'no such program'}")

    launcher = FakeLauncher(start=fails)
    pool = KernelPool(launcher, PoolSettings(size=0), [])
    for env in ((), (("KEY", "s3cr3t"),)):
        with pytest.raises(KernelStartFailed):
            await pool.claim(KernelProfile("python3", env=env))
    await pool.close()
    launcher.close()
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [
        "A kernel did not start: It ended. It said: no such program",
        "A kernel did not start: its session was told (kernel_start_failed)",
    ]


class Ready(ReadyHandler):
    """`/readyz` of a gateway to which something is missing, whose answers go nowhere."""

    def __init__(self, *missing: Problem) -> None:
        services = services_of(problems=lambda: list(missing), journal=SimpleNamespace(not_recorded=0))
        asked = request("GET", "/readyz")
        asked.connection = cast("Any", Mock())
        super().__init__(Application(metrics=Metrics()), asked, services=services)

    def finish(self, chunk: object = None) -> Any:
        """Tell the log, and send nothing."""
        log_request(self)

    @property
    def client_address(self) -> str:
        return "127.0.0.1"


@pytest.mark.parametrize(
    ("missing", "level"),
    [
        ([], logging.DEBUG),
        ([Problem.NO_KERNEL_YET], logging.INFO),
        ([Problem.SHUTTING_DOWN], logging.INFO),
        ([Problem.SHUTTING_DOWN, Problem.NO_KERNEL_YET], logging.INFO),
        ([Problem.STORAGE], logging.ERROR),
        ([Problem.NO_KERNEL_YET, Problem.CONTAINER_ENGINE], logging.ERROR),
    ],
)
async def test_a_gateway_that_starts_or_ends_is_no_error(
    missing: list[Problem], level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "cellgate.access")
    await Ready(*missing).get()
    [line] = caplog.records
    assert line.getMessage().startswith(f"GET /readyz {503 if missing else 200} ")
    assert line.levelno == level
