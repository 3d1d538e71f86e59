"""The pace of a client: when it is too slow, by the moments and bytes that it is told of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cellgate.http.listener.client_pace import ClientPace, Late, StreamPhase
from cellgate.http.listener.settings import ListenerSettings

LIMITS = ListenerSettings(
    head_timeout=10, idle_timeout=100, body_timeout=60, body_rate=10, answer_timeout=180
)


def late(pace: ClientPace, *moments: float, queued: int | None = None) -> list[Late | None]:
    """What checks find at these moments."""
    return [pace.late(moment, LIMITS, queued) for moment in moments]


@pytest.fixture
def pace() -> ClientPace:
    """The pace of a client that has had an answer of 50 bytes to a request of 100."""
    made = ClientPace(0)
    made.received, made.sent = 100, 50
    made.reads(0)
    made.answers(0)
    return made


def test_the_first_head_has_its_time_from_the_beginning() -> None:
    pace = ClientPace(0)
    pace.waits(0, 5)
    assert late(pace, 15, 15.1) == [None, Late.HEAD]
    pace.received = 1  # this is no reason to wait longer
    assert (late(pace, 15.1), pace.has_begun) == ([Late.HEAD], True)


def test_further_heads_have_their_time_from_their_first_byte(pace: ClientPace) -> None:
    pace.waits(0, 0)
    assert late(pace, 100, 100.1) == [None, Late.IDLE]
    assert not pace.is_within_request
    pace.received += 1
    assert late(pace, 110.1) == [None]
    pace.received += 1  # byte by byte it comes too late
    assert late(pace, 110.2) == [Late.HEAD]
    assert (pace.is_within_request, pace.has_answer) == (True, False)


def test_what_was_read_with_the_request_before_belongs_to_the_next(pace: ClientPace) -> None:
    pace.waits(20, 0)
    assert pace.has_begun
    assert late(pace, 10, 10.1) == [None, Late.HEAD]


def test_a_body_must_grow_in_each_window(pace: ClientPace) -> None:
    pace.reads(0)
    pace.received += 600
    assert late(pace, 60, 60.1) == [None, None]
    pace.received += 599
    assert late(pace, 120.1, 120.2) == [None, Late.BODY]
    assert (pace.has_begun, pace.has_answer, pace.is_within_request) == (True, False, True)
    pace.sent += 1
    assert pace.has_answer


def test_time_in_which_the_client_waits_for_us_does_not_count(pace: ClientPace) -> None:
    pace.reads(0)
    pace.busy = True
    assert late(pace, 500) == [None]
    pace.busy = False
    assert late(pace, 560, 560.1) == [None, Late.BODY]


def test_a_message_must_grow_from_its_first_byte_on(pace: ClientPace) -> None:
    pace.begins_message(0, 0)
    assert late(pace, 1000) == [None], "between messages a client may be silent"
    pace.received += 1
    assert late(pace, 1060, 1060.1) == [None, Late.FRAME]
    pace.ends_message()
    assert late(pace, 2000) == [None], "now it waits for us"
    pace.begins_message(5, 2000)
    assert late(pace, 2060, 2060.1) == [None, Late.FRAME], "its beginning was here already"


@pytest.mark.parametrize("begin", [ClientPace.answers, lambda pace, now: pace.begins_message(0, now)])
def test_some_of_an_answer_must_be_taken(
    pace: ClientPace, begin: Callable[[ClientPace, float], None]
) -> None:
    begin(pace, 0)
    assert late(pace, 1000) == [None], "nothing waits to be taken"
    pace.sent += 1000
    assert late(pace, 1100, 1280, 1280.1, queued=1000) == [None, None, Late.ANSWER]
    assert late(pace, 1280.2, queued=999) == [None], "a byte is progress"
    pace.sent += 500
    assert late(pace, 1460.2, 1460.3, queued=1499) == [None, Late.ANSWER], "what we send is none"
    pace.spooled = True
    assert late(pace, 2000, queued=1499) == [Late.ANSWER if pace.phase is StreamPhase.ANSWER else None]


def test_a_phase_begins_all_times_anew(pace: ClientPace) -> None:
    begins: dict[StreamPhase, Callable[[float], None]] = {
        StreamPhase.BODY: pace.reads,
        StreamPhase.ANSWER: pace.answers,
        StreamPhase.WEBSOCKET: lambda now: pace.begins_message(0, now),
        StreamPhase.WAITING: lambda now: pace.waits(0, now),
    }
    for number, (phase, begin) in enumerate(begins.items()):
        begin(1000 * number)
        assert (pace.phase, pace.since) == (phase, 1000 * number)
        assert late(pace, 1000 * number, queued=7) == [None]
