"""One execution's life: messages in, events and an outcome out. nbclient is the oracle for the outputs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec
import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nbclient import NotebookClient
from nbclient import client as nbclient
from nbformat import v4

from cellgate_kernels.protocol.execution import Execution, Outcome, Phase, Status
from cellgate_kernels.protocol.messages import EMPTY, Channel, Header, Message
from cellgate_kernels.protocol.outputs import KernelEvent, OutputArea, OutputCaps, OutputLimiter
from tests.support.examples import examples

ID = "our-request"
OURS = Header(ID, "execute_request")
CODE = "print('x'); 1+1"
INTERRUPTED = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}
FAILED = {"ename": "ValueError", "evalue": "bad", "traceback": ["Traceback", "ValueError: bad"]}

Wire = tuple[Channel, str, Any]
"""A message as a test writes it: channel, type, content."""


def iopub(msg_type: str, **content: Any) -> Wire:
    return Channel.IOPUB, msg_type, content


def reply(status: str = "ok", **content: Any) -> Wire:
    return Channel.SHELL, "execute_reply", {"status": status, **content}


def stream(text: str, name: str = "stdout") -> Wire:
    return iopub("stream", name=name, text=text)


def display(msg_type: str, text: str, display_id: str | None = None, **content: Any) -> Wire:
    transient = {} if display_id is None else {"display_id": display_id}
    return iopub(msg_type, data={"text/plain": text}, metadata={}, transient=transient, **content)


BUSY = iopub("status", execution_state="busy")
IDLE = iopub("status", execution_state="idle")
INPUT = iopub("execute_input", code=CODE, execution_count=3)
RESULT = display("execute_result", "2", execution_count=3)
ERROR = iopub("error", **FAILED)


def message(wire: Wire, parent: Header = OURS) -> Message:
    channel, msg_type, content = wire
    frame = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Message(channel, EMPTY, EMPTY, EMPTY, frame, (), Header("theirs", msg_type), parent)


def execution(caps: OutputCaps | None = None) -> Execution:
    made = Execution(ID, CODE, OutputLimiter(caps or OutputCaps()))
    made.sent()
    return made


def feed(to: Execution, *wires: Wire) -> list[KernelEvent]:
    return [event for wire in wires for event in to.receive(message(wire))]


def notebook_outputs(events: Iterable[KernelEvent]) -> list[dict[str, Any]]:
    """The outputs of the events, after nbformat has found them valid."""
    area = OutputArea()
    for event in events:
        area.apply(event.type, event.content)
    outputs = area.outputs()
    cell = v4.new_code_cell(outputs=nbformat.from_dict(outputs))
    nbformat.validate(v4.new_notebook(cells=[cell]))
    return outputs


def end_of(*wires: Wire) -> Outcome:
    one = execution()
    feed(one, *wires)
    return one.outcome()


# The way of one cell


def test_a_cell_gives_its_events_in_order_and_its_outcome() -> None:
    one = execution()

    events = feed(one, BUSY, INPUT, stream("x\n"), RESULT, reply(execution_count=3), IDLE)

    assert events == [
        KernelEvent("started", {"execution_count": 3, "code": CODE}),
        KernelEvent("stream", {"name": "stdout", "text": "x\n"}),
        KernelEvent("execute_result", {"execution_count": 3, "data": {"text/plain": "2"}, "metadata": {}}),
    ]
    assert one.outcome() == Outcome(Status.OK, None, 3, None)


def test_the_phases() -> None:
    one = Execution(ID, CODE, OutputLimiter(OutputCaps()))
    phases = [one.phase]
    one.sent()
    phases.append(one.phase)
    for wire in (BUSY, INPUT, reply(), IDLE):
        feed(one, wire)
        phases.append(one.phase)
    one.sent()

    assert phases == [Phase.QUEUED, Phase.SENT, Phase.BUSY, Phase.BUSY, Phase.BUSY, Phase.FINISHED]
    assert one.finished


def test_output_between_the_reply_and_idle_counts() -> None:
    """The two come by different sockets, so the reply may overtake the output."""
    one = execution()

    events = feed(one, BUSY, reply(execution_count=3), INPUT, stream("late"), IDLE)

    assert [event.type for event in events] == ["started", "stream"]
    assert one.outcome() == Outcome(Status.OK, None, 3, None)


@pytest.mark.parametrize("first", [reply(), IDLE])
def test_one_of_reply_and_idle_is_not_the_end(first: Wire) -> None:
    one = execution()
    feed(one, BUSY, first)

    assert not one.finished
    assert one.replied is not one.idle
    with pytest.raises(AssertionError):
        one.outcome()


def test_messages_of_others_change_nothing() -> None:
    one = execution()
    others = [Header(), Header("another", "execute_request")]
    ours_on_other_channels = [
        (Channel.IOPUB, *reply()[1:]),
        (Channel.CONTROL, *reply()[1:]),
        (Channel.SHELL, *IDLE[1:]),
        (Channel.SHELL, *stream("x")[1:]),
        (Channel.IOPUB, "input_request", {"prompt": "?"}),
        iopub("comm_msg", data={}),
    ]

    received = [
        one.receive(message(wire, parent)) for wire in (stream("x"), IDLE, reply()) for parent in others
    ]

    assert not any(received)
    assert feed(one, *ours_on_other_channels) == []
    assert (one.idle, one.replied, one.phase) == (False, False, Phase.SENT)


def test_after_the_end_only_output_counts() -> None:
    one = execution()
    feed(one, BUSY, reply(), IDLE)

    assert feed(one, reply("error", **FAILED), ERROR) == []
    assert [event.type for event in feed(one, stream("of a thread"))] == ["stream"]
    one.kernel_lost(Status.DIED, "kernel_exit")
    one.deadline_passed()
    one.interrupt_requested()
    assert one.outcome().status is Status.OK


def test_only_the_first_start_and_the_first_reply_count() -> None:
    one = execution()

    events = feed(one, BUSY, INPUT, INPUT, reply(), reply("error", **FAILED), IDLE)

    assert [event.type for event in events] == ["started"]
    assert one.outcome().status is Status.OK


def test_input_is_asked_for_on_stdin() -> None:
    asked = (Channel.STDIN, "input_request", {"prompt": "Name: ", "password": True})

    question = KernelEvent("input_request", {"prompt": "Name: ", "password": True})
    assert feed(execution(), BUSY, INPUT, asked)[1:] == [question]


def test_a_question_that_overtakes_the_beginning_of_its_cell_waits_for_it() -> None:
    """They come on two sockets."""
    early = execution()
    assert feed(early, ASKS, BUSY, ASKS) == []
    started, question = feed(early, INPUT)
    assert (started.type, question.type) == ("started", "input_request")
    assert started.content["execution_count"] == early.execution_count is not None
    assert feed(early, ASKS) == [], "it waits for an answer"


def test_a_question_of_a_cell_whose_beginning_is_lost_comes_with_what_it_shows() -> None:
    lost = execution()
    shown = iopub("stream", name="stdout", text="shown")
    assert [event.type for event in feed(lost, ASKS, BUSY, shown)] == ["started", "stream", "input_request"]


def test_a_question_from_before_an_interrupt_is_none() -> None:
    early = execution()
    feed(early, ASKS, BUSY)
    early.interrupt_requested()
    assert [event.type for event in feed(early, INPUT)] == ["started"]


def test_a_result_or_display_may_have_a_display_id() -> None:
    events = feed(
        execution(),
        display("display_data", "a", "i"),
        display("execute_result", "b", "i", execution_count=1),
        display("update_display_data", "c", "i"),
        display("update_display_data", "nobody knows which"),
        iopub("display_data", data={}, metadata={}, transient=None),
        iopub("display_data", data={}),
    )

    assert [event.content.get("display_id") for event in events] == ["i", "i", "i", None, None]
    assert [event.type for event in events][2:] == ["update_display_data", "display_data", "display_data"]


# Outcomes


def test_an_error_is_shown_once_and_reported() -> None:
    one = execution()

    events = feed(one, BUSY, INPUT, ERROR, reply("error", execution_count=3, **FAILED), IDLE)

    assert [event.type for event in events] == ["started", "error"]
    assert one.outcome() == Outcome(Status.ERROR, None, 3, FAILED)


@pytest.mark.parametrize("order", [[reply("error", **FAILED), IDLE], [IDLE, reply("error", **FAILED)]])
def test_an_error_only_in_the_reply_is_shown_at_the_end(order: list[Wire]) -> None:
    """Only then is it sure that no error message of iopub is still on its way."""
    one = execution()

    assert feed(one, BUSY, order[0]) == []
    assert feed(one, order[1]) == [KernelEvent("error", FAILED)]
    assert one.outcome().error == FAILED


def test_an_error_on_iopub_after_the_reply_is_not_shown_twice() -> None:
    events = feed(execution(), BUSY, reply("error", **FAILED), ERROR, IDLE)

    assert events == [KernelEvent("error", FAILED)]


def test_a_usage_error_is_reported_but_not_shown_again() -> None:
    """IPython prints a UsageError on stderr and replies with an empty traceback, as bash_kernel does."""
    said = {"ename": "UsageError", "evalue": "Line magic function `%foo` not found.", "traceback": []}
    one = execution()

    events = feed(one, BUSY, stream("UsageError: ...\n", "stderr"), reply("error", **said), IDLE)

    assert [event.type for event in events] == ["stream"]
    assert one.outcome() == Outcome(Status.ERROR, None, None, said)


def test_the_replys_error_counts_when_another_was_shown_before() -> None:
    """A cell may show a caught error with showtraceback() and then end with one that is not shown."""
    said = {"ename": "UsageError", "evalue": "not found", "traceback": []}

    assert end_of(BUSY, ERROR, reply("error", **said), IDLE).error == said


def test_a_shown_error_does_not_make_a_good_cell_fail() -> None:
    assert end_of(BUSY, ERROR, reply(), IDLE) == Outcome(Status.OK, None, None, None)


@pytest.mark.parametrize("word", ["aborted", "abort"])
def test_an_aborted_cell_is_cancelled(word: str) -> None:
    assert end_of(BUSY, reply(word), IDLE) == Outcome(Status.CANCELLED, "aborted", None, None)


def test_the_count_is_known_from_input_or_reply() -> None:
    assert end_of(BUSY, INPUT, reply(), IDLE).execution_count == 3
    assert end_of(BUSY, reply(execution_count=4), IDLE).execution_count == 4
    assert end_of(BUSY, reply(), IDLE).execution_count is None


def test_a_reply_without_a_known_status_is_no_success() -> None:
    assert end_of(BUSY, (Channel.SHELL, "execute_reply", {}), IDLE).status is Status.ERROR


MARKS = {
    "late": Execution.deadline_passed,
    "interrupt": Execution.interrupt_requested,
    "lost": lambda one: one.kernel_lost(Status.DIED, "out_of_memory"),
    "ok": lambda one: feed(one, reply(), IDLE),
    "replied ok": lambda one: feed(one, reply()),
    "replied error": lambda one: feed(one, reply("error", **FAILED)),
    "idle": lambda one: feed(one, IDLE),
    "KeyboardInterrupt": lambda one: feed(one, reply("error", **INTERRUPTED), IDLE),
    "ValueError": lambda one: feed(one, reply("error", **FAILED), IDLE),
    "abort": lambda one: feed(one, reply("abort"), IDLE),
    "settle": Execution.settle,
    "shown error": lambda one: feed(one, ERROR),
}


@pytest.mark.parametrize(
    ("marks", "status", "cause"),
    [
        ("ok", Status.OK, None),
        ("ValueError", Status.ERROR, None),
        ("KeyboardInterrupt", Status.ERROR, None),
        ("late, KeyboardInterrupt", Status.TIMEOUT, "cell_timeout"),
        ("late, ValueError", Status.TIMEOUT, "cell_timeout"),
        ("late, abort", Status.TIMEOUT, "cell_timeout"),
        ("late, ok", Status.OK, None),
        ("late, lost", Status.TIMEOUT, "cell_timeout"),
        ("interrupt, late, KeyboardInterrupt", Status.TIMEOUT, "cell_timeout"),
        ("interrupt, KeyboardInterrupt", Status.INTERRUPTED, "interrupt_requested"),
        ("interrupt, ValueError", Status.INTERRUPTED, "interrupt_requested"),
        ("interrupt, abort", Status.INTERRUPTED, "interrupt_requested"),
        ("interrupt, ok", Status.OK, None),
        ("interrupt, lost", Status.DIED, "out_of_memory"),
        ("replied error, interrupt, idle", Status.ERROR, None),
        ("replied error, late, idle", Status.ERROR, None),
        ("replied ok, late, lost", Status.TIMEOUT, "cell_timeout"),
        ("replied ok, lost", Status.DIED, "out_of_memory"),
        ("lost", Status.DIED, "out_of_memory"),
        ("lost, late, interrupt", Status.DIED, "out_of_memory"),
        ("replied ok, settle", Status.OK, None),
        ("replied error, settle", Status.ERROR, None),
        ("idle, settle", Status.OK, None),
        ("shown error, idle, settle", Status.ERROR, None),
        ("interrupt, shown error, idle, settle", Status.INTERRUPTED, "interrupt_requested"),
        ("late, idle, settle", Status.TIMEOUT, "cell_timeout"),
        ("interrupt, idle, settle", Status.INTERRUPTED, "interrupt_requested"),
        ("lost, settle", Status.DIED, "out_of_memory"),
    ],
)
def test_how_an_execution_ends(marks: str, status: Status, cause: str | None) -> None:
    one = execution()
    feed(one, BUSY)
    for mark in marks.split(", "):
        MARKS[mark](one)

    assert (one.outcome().status, one.outcome().cause) == (status, cause)


def test_settling_waits_for_one_of_reply_and_idle_and_shows_what_is_left() -> None:
    one = execution()

    assert one.settle() == ()
    assert not one.finished
    feed(one, BUSY, reply("error", **FAILED))
    assert one.settle() == (KernelEvent("error", FAILED),)
    assert one.finished
    assert one.settle() == ()


def test_a_timeout_keeps_the_error_the_interrupt_made() -> None:
    one = execution()
    one.deadline_passed()
    feed(one, BUSY, reply("error", **INTERRUPTED), IDLE)

    assert one.outcome().error == INTERRUPTED


def test_the_cause_of_an_interrupt_is_the_first_one() -> None:
    one = execution()
    one.interrupt_requested("client_disconnected")
    one.interrupt_requested()
    feed(one, BUSY, reply("error", **INTERRUPTED), IDLE)

    assert one.outcome().cause == "client_disconnected"


def test_an_execution_taken_from_the_queue_never_ran() -> None:
    one = Execution(ID, CODE, OutputLimiter(OutputCaps()))
    one.kernel_lost(Status.CANCELLED, "cancel_requested")

    assert one.outcome() == Outcome(Status.CANCELLED, "cancel_requested", None, None)


# Caps


def test_output_beyond_the_caps_is_counted_and_not_even_decoded() -> None:
    one = execution(OutputCaps(text=1000))
    passed = feed(one, stream("a" * 5000))
    unreadable = (Channel.IOPUB, "stream", b"\x00" * 400)
    before = one.limiter.dropped_text

    assert feed(one, unreadable, stream("b" * 100)) == []
    assert len(passed) == 2
    assert one.limiter.truncated
    assert one.limiter.dropped_text - before == 400 + len(msgspec.json.encode(stream("b" * 100)[2]))


@pytest.mark.parametrize("containers", [30, 300, 900])
def test_data_counts_as_the_memory_that_its_objects_take(containers: int) -> None:
    """However small the message is: an empty list takes three bytes of JSON and fifty of memory."""
    cap = 256 * 1024
    one = execution(OutputCaps(data=cap))
    shown = display("display_data", "")
    shown[2]["data"]["application/json"] = [[]] * containers
    passed = [event for _ in range(5000) for event in feed(one, shown) if event.type == "display_data"]
    assert 0 < len(passed) * containers * sys.getsizeof([]) < cap


def test_the_reported_error_is_cut_like_the_shown_one() -> None:
    long = {**FAILED, "traceback": ["x" * 500] * 10}

    for wires in ([iopub("error", **long), reply("error", **long)], [reply("error", **long)]):
        one = execution(OutputCaps(text=1000))
        (event,) = feed(one, BUSY, *wires, IDLE)
        assert one.outcome().error == event.content
        assert len(event.content["traceback"]) == 2


# Hostile kernels

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "name",
    "text",
    "data",
    "metadata",
    "transient",
    "display_id",
    "wait",
    "ename",
    "evalue",
    "traceback",
    "prompt",
    "password",
    "status",
    "execution_state",
    "execution_count",
    "code",
]
mimes = st.sampled_from(
    ["text/plain", "application/json", "application/x+json", "application/json\n", "", "x"]
)
bundles = st.dictionaries(mimes, json_values, max_size=3)
hostile_contents = st.dictionaries(st.sampled_from(FIELDS), json_values | bundles, max_size=6)
hostile_frames = (
    hostile_contents.map(msgspec.json.encode) | st.binary(max_size=40) | json_values.map(msgspec.json.encode)
)
hostile_messages = st.tuples(
    st.sampled_from(Channel), st.sampled_from(sorted(Execution._HANDLERS)), hostile_frames
)


@examples(150)
@given(st.lists(hostile_messages, max_size=8))
def test_no_content_breaks_an_execution(wires: list[Wire]) -> None:
    """Whatever a kernel sends: no exception, valid outputs, events that encode, and an end."""
    one = execution()

    events = feed(one, *wires, reply(), IDLE)

    msgspec.json.encode([event.content for event in events])
    notebook_outputs(events)
    assert isinstance(one.outcome().status, Status)


@pytest.mark.parametrize(
    ("sent", "made"),
    [
        (iopub("stream", name="stdlog", text="a"), {"name": "stdout", "text": "a"}),
        (iopub("stream", text=["a", "b"]), {"name": "stdout", "text": "ab"}),
        (iopub("stream", text=7), {"name": "stdout", "text": "7"}),
        ((Channel.IOPUB, "stream", b'{"text":"a\xff\\ud800"}'), {"name": "stdout", "text": "a\ufffd?"}),
        (iopub("clear_output"), {"wait": False}),
        (iopub("clear_output", wait=1), {"wait": True}),
        (iopub("error"), {"ename": "", "evalue": "", "traceback": []}),
        (
            iopub("error", ename=None, evalue={"a": 1}, traceback=["x", 2]),
            {"ename": "", "evalue": '{"a":1}', "traceback": ["x", "2"]},
        ),
        (
            iopub("display_data", data={"text/plain": ["a", "b"], "application/json-seq": [1]}, metadata=[]),
            {"data": {"text/plain": "ab", "application/json-seq": "[1]"}, "metadata": {}},
        ),
        (
            iopub("display_data", data={"application/json": None, "application/x+json": [1]}, transient=[]),
            {"data": {"application/json": None, "application/x+json": [1]}, "metadata": {}},
        ),
        (
            iopub("execute_result", data={}, execution_count=-1, transient={"display_id": 5}),
            {"data": {}, "metadata": {}, "execution_count": None},
        ),
        (iopub("execute_input", execution_count=True), {"execution_count": None, "code": CODE}),
    ],
)
def test_broken_content_is_mended_where_its_meaning_is_clear(sent: Wire, made: dict[str, Any]) -> None:
    assert [event.content for event in feed(execution(), sent)] == [made]


@pytest.mark.parametrize(
    "sent",
    [
        iopub("stream"),
        iopub("stream", name="stdout", text=""),
        iopub("display_data", data="text"),
        iopub("execute_result"),
        iopub("update_display_data", data={}, transient={"display_id": ""}),
        iopub("status"),
        iopub("status", execution_state=["idle"]),
        (Channel.IOPUB, "stream", b"not json"),
    ],
    ids=repr,
)
def test_content_without_meaning_is_ignored(sent: Wire) -> None:
    one = execution()

    assert feed(one, sent) == []
    assert (one.phase, one.idle) == (Phase.SENT, False)


@pytest.mark.parametrize(
    "frame",
    [
        b'{"data":{"application/json":' + b"[" * 200 + b"]" * 200 + b"}}",
        b'{"data":{"application/json":' + b'{"a":' * 100_000,
        b'{"data":{' + b",".join(b'"a/%d":""' % number for number in range(1001)) + b"}}",
    ],
    ids=["lists", "dicts", "types"],
)
def test_what_is_too_complex_is_left_out_visibly(frame: bytes) -> None:
    one = execution()
    [event] = feed(one, (Channel.IOPUB, "display_data", frame))
    assert "too complex to be read" in event.content["data"]["text/plain"]
    assert one.limiter.truncated
    [shown] = feed(one, display("display_data", "the next one is shown"))
    assert shown.content["data"] == {"text/plain": "the next one is shown"}


def too_large(msg_type: str, channel: Channel = Channel.IOPUB) -> Message:
    """As a connection hands out what was beyond its bound."""
    return structs.replace(message((channel, msg_type, {})), left_out=100_000_000)


@pytest.mark.parametrize(
    ("msg_type", "field"),
    [("stream", "text"), ("display_data", "data"), ("comm_open", "data"), ("error", "traceback")],
)
def test_what_is_too_large_is_left_out_visibly_and_once(msg_type: str, field: str) -> None:
    one = execution()
    [event] = one.receive(too_large(msg_type))
    assert "left out" in str(event.content[field])
    assert "95.37 MiB" in str(event.content[field])
    assert one.limiter.truncated
    assert one.receive(too_large(msg_type)) == ()
    assert notebook_outputs([event])


@pytest.mark.parametrize("msg_type", ["status", "clear_output", "comm_close"])
def test_what_is_too_large_and_shows_nothing_is_nothing(msg_type: str) -> None:
    one = execution()
    assert all(event.type == "display_data" for event in one.receive(too_large(msg_type)))
    assert (one.phase, one.idle, one.started) == (Phase.SENT, False, False)


@pytest.mark.parametrize("shown", [(), (ERROR,)])
@pytest.mark.parametrize("reply_first", [True, False])
def test_a_reply_that_is_too_large_ends_the_cell(shown: tuple[Wire, ...], reply_first: bool) -> None:
    one = execution()
    feed(one, BUSY, INPUT)
    ends = [lambda: one.receive(too_large("execute_reply", Channel.SHELL)), lambda: feed(one, *shown, IDLE)]
    for end in ends if reply_first else reversed(ends):
        assert not one.finished
        end()
    assert one.outcome().status is (Status.ERROR if shown else Status.OK)


ASKS = (Channel.STDIN, "input_request", {"prompt": "?", "password": False})


def test_a_cell_asks_one_question_at_a_time() -> None:
    one = execution()
    feed(one, BUSY, INPUT)
    assert [event.type for event in feed(one, *[ASKS] * 1000)] == ["input_request"]
    one.answered()
    assert [event.type for event in feed(one, ASKS, ASKS)] == ["input_request"]
    # What an interrupt ended waits for no answer any more.
    one.interrupt_requested()
    assert len(feed(one, ASKS, ASKS)) == 1
    one.answered()
    feed(one, reply())
    assert feed(one, ASKS) == [], "after its reply a cell asks nothing"


def test_a_cell_that_may_not_ask_does_not() -> None:
    one = Execution(ID, CODE, OutputLimiter(OutputCaps()), allow_stdin=False)
    one.sent()
    assert feed(one, BUSY, ASKS, INPUT)[0].type == "started"
    assert feed(one, ASKS) == []


@pytest.mark.parametrize("count", [2**53, 2**63, 2**64, 10**30, -1, True, 1.0, "3", [3], None])
def test_a_count_that_is_none_is_not_believed(count: object) -> None:
    one = execution()
    [started] = feed(one, BUSY, iopub("execute_input", code=CODE, execution_count=count))
    assert started.content["execution_count"] is None
    [result] = feed(one, display("execute_result", "2", execution_count=count))
    assert result.content["execution_count"] is None
    feed(one, reply(execution_count=count), IDLE)
    assert one.outcome().execution_count is None


# The order of two sockets, and nbclient's word on the outputs

texts = st.lists(st.sampled_from(["a", "b\n", "\rc", "é", "\x1b[31m", "\n"]), min_size=1, max_size=4).map(
    "".join
)
ids = st.sampled_from([None, "i", "j"])
shows = st.one_of(
    st.builds(lambda text, name: display("display_data", text, name), texts, ids),
    st.builds(lambda text, name: display("execute_result", text, name, execution_count=3), texts, ids),
    st.builds(lambda text, name: display("update_display_data", text, name), texts, st.sampled_from("ij")),
    st.builds(lambda wait: iopub("clear_output", wait=wait), st.booleans()),
    st.just(ERROR),
)
output_messages = st.builds(stream, texts, st.sampled_from(["stdout", "stderr"])) | shows
cells = st.lists(output_messages, max_size=12).map(lambda messages: [BUSY, INPUT, *messages, IDLE])


@examples(60)
@given(cells, st.sampled_from([reply(execution_count=3), reply("error", execution_count=3, **FAILED)]))
def test_every_interleaving_of_the_sockets_gives_the_same(sent: list[Wire], replied: Wire) -> None:
    ends = []
    for position in range(len(sent) + 1):
        one = execution()
        events = feed(one, *sent[:position], replied, *sent[position:])
        ends.append((events, one.outcome(), one.phase))

    assert all(end == ends[0] for end in ends)


class ScriptedClient:
    """A kernel client for nbclient whose kernel says what the test wrote."""

    def __init__(self, wires: Iterable[Wire]) -> None:
        self.iopub_channel = self._Channel(wires)
        self.shell_channel = self._Channel([reply()])

    class _Channel:
        def __init__(self, wires: Iterable[Wire]) -> None:
            self._messages = iter([self._message(*wire) for wire in wires])

        def _message(self, _: Channel, msg_type: str, content: dict[str, Any]) -> dict[str, Any]:
            header = {"msg_type": msg_type}
            parent = {"msg_id": ID}
            return {"msg_type": msg_type, "header": header, "parent_header": parent, "content": content}

        async def get_msg(self, timeout: float | None) -> dict[str, Any]:
            return next(self._messages)

    def execute(self, *_: object, **__: object) -> str:
        return ID

    def is_alive(self) -> bool:
        return True


def nbclient_outputs(wires: Iterable[Wire], *, coalesce_streams: bool) -> list[dict[str, Any]]:
    """What nbclient makes of the messages."""
    notebook = v4.new_notebook(cells=[v4.new_code_cell(CODE)])
    client = NotebookClient(
        notebook, coalesce_streams=coalesce_streams, record_timing=False, allow_errors=True
    )
    client.reset_execution_trackers()
    client.kc = ScriptedClient(wires)
    asyncio.run(client.async_execute_cell(notebook.cells[0], 0))
    return [dict(output) for output in notebook.cells[0].outputs]


def merged(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """nbclient's raw outputs, with neighbouring text of one stream joined under its rule for returns."""
    joined = []
    for name, group in groupby(outputs, lambda output: output.get("name")):
        members = list(group)
        if name is not None:
            text = nbclient._RGX_CARRIAGERETURN.sub("", "".join(output["text"] for output in members))
            members = [{**members[0], "text": text}]
        joined += members
    return joined


@examples(60)
@given(cells)
def test_the_outputs_are_those_of_nbclient(sent: list[Wire]) -> None:
    outputs = notebook_outputs(feed(execution(), *sent))

    assert outputs == merged(nbclient_outputs(sent, coalesce_streams=False))


@examples(60)
@given(
    st.lists(st.builds(stream, texts, st.just("stdout")), max_size=5),
    st.lists(st.builds(stream, texts, st.just("stderr")), max_size=5),
    st.lists(shows, max_size=6),
)
def test_the_streams_are_those_nbclient_coalesces(out: list[Wire], err: list[Wire], rest: list[Wire]) -> None:
    """It joins all text of a stream in a cell; here none is interrupted, so ours must be equal."""
    sent = [BUSY, INPUT, *out, *err, *rest, IDLE]
    outputs = notebook_outputs(feed(execution(), *sent))

    assert outputs == nbclient_outputs(sent, coalesce_streams=True)


def test_a_reply_that_an_interrupt_swallowed_is_no_success() -> None:
    one = execution()
    feed(one, BUSY)
    one.interrupt_requested()
    feed(one, IDLE)
    one.settle()

    assert one.outcome().status is Status.INTERRUPTED


def page(text: str, **more: Any) -> dict[str, Any]:
    return {"source": "page", "data": {"text/plain": text}, "start": 0, **more}


@pytest.mark.parametrize(
    "wires", [[reply(payload=[page("help")]), IDLE], [IDLE, reply(payload=[page("help")])]]
)
def test_a_page_is_shown_at_the_end(wires: list[Wire]) -> None:
    events = feed(execution(), BUSY, INPUT, stream("x"), *wires)
    assert [event.type for event in events] == ["started", "stream", "display_data"]
    assert events[-1].content == {"data": {"text/plain": "help"}, "metadata": {}}


@pytest.mark.parametrize(
    "payload",
    [
        None,
        5,
        [],
        [None],
        [{"source": "page"}],
        [page("x", data=5)],
        [page("x", data={})],
        [page("x", source="set_next_input")],
    ],
)
def test_another_payload_shows_nothing(payload: Any) -> None:
    events = feed(execution(), BUSY, INPUT, reply(payload=payload), IDLE)
    assert [event.type for event in events] == ["started"]


def test_pages_count_against_the_caps() -> None:
    limiter = OutputLimiter(OutputCaps(1000, 1000))
    one = Execution(ID, CODE, limiter)
    one.sent()
    events = feed(one, BUSY, INPUT, reply(payload=[page("x" * 600) for _ in range(5)]), IDLE)
    assert len([event for event in events if event.type == "display_data"]) < 5


def test_only_the_display_of_a_result_failed() -> None:
    failed = {"ename": "NoneType", "evalue": "None", "traceback": ["Traceback", "ValueError: odd"]}
    outcome = end_of(BUSY, INPUT, ERROR, reply("error", **failed), IDLE)
    assert (outcome.status, outcome.error) == (Status.OK, None)
