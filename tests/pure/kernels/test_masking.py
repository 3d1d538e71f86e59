"""No value of a secret comes out whole, however it is cut and written, and nothing else changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cellgate_kernels.protocol import masking
from cellgate_kernels.protocol.masking import MOST_CELLS, Masker, MessageMasker, StreamMasker
from cellgate_kernels.protocol.messages import EMPTY, Channel, Header, Message

KEY = "sk-ABCDEFGH"
CERTIFICATE = 'line "one"\nline <two> \\ café 🔑'

# Few letters, so that values overlap, repeat and begin like each other.
VALUES = st.lists(st.text("ab", min_size=2, max_size=6), min_size=1, max_size=4, unique=True)
TEXTS = st.text("abc", max_size=60)


def masker_of(values: list[str]) -> Masker:
    return Masker((f"N{number}", value) for number, value in enumerate(values))


@given(VALUES, TEXTS)
def test_no_value_is_left_and_all_else_stays(values: list[str], text: str) -> None:
    masked = masker_of(values).text(text)
    assert not any(value in masked for value in values)
    for number, value in enumerate(values):
        masked = masked.replace(f"[secret N{number}]", value)
    assert masked == text


@given(VALUES, st.lists(TEXTS, max_size=8))
@example(["password", "password12345"], ["my password", "12345"])
@example(["aaab", "aa"], ["aaa", "aab"])
@example(["abab", "bab"], ["ab", "ab"])
def test_any_split_of_a_stream_gives_the_same_whole(values: list[str], pieces: list[str]) -> None:
    masker = masker_of(values)
    stream = StreamMasker(masker)
    shown = "".join([stream.more(piece) for piece in pieces] + [stream.rest()])
    assert shown == masker.text("".join(pieces))


@given(VALUES, st.lists(TEXTS | st.none(), max_size=8))
def test_no_value_comes_out_whole_even_if_others_could_not_wait(
    values: list[str], pieces: list[str | None]
) -> None:
    """None: another output comes in between, and what was held back is shown before it."""
    stream = StreamMasker(masker_of(values))
    shown = [stream.rest() if piece is None else stream.more(piece) for piece in pieces]
    shown.append(stream.rest())
    whole = "".join(shown)
    assert not any(value in whole for value in values)
    assert not stream.holds_back


def steps(work: Callable[[], object]) -> int:
    """How many lines of the masker are run."""
    counted = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal counted
        if frame.f_code.co_filename != masking.__file__:
            return None
        counted += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted


def piecewise(size: int) -> None:
    stream = StreamMasker(Masker([("N", "a" * size + "b"), ("M", "a" * 8 + "c")]))
    shown = "".join(stream.more("a") for _ in range(2 * size)) + stream.rest()
    assert shown == "a" * 2 * size


def at_once(size: int) -> None:
    masker = Masker([("N", "a" * size + "b"), ("M", "ab" * 8)])
    assert masker.edge("a" * (size - 1) + "ca" * size, 0) == 3 * size - 2
    assert masker.find("ca" * size + "a" * size, is_whole=False) == ([], 2 * size)


@pytest.mark.parametrize("work", [piecewise, at_once])
def test_a_long_value_that_repeats_itself_costs_no_square_of_its_length(work: Callable[[int], None]) -> None:
    small, large = steps(partial(work, 300)), steps(partial(work, 600))
    assert large < 2.2 * small


@given(st.lists(TEXTS, max_size=8))
def test_little_is_held_back(pieces: list[str]) -> None:
    stream = StreamMasker(Masker([("N", "abcabcab")]))
    taken = shown = 0
    for piece in pieces:
        text = piece.replace("abcabcab", "")
        taken += len(text)
        shown += len(stream.more(text).replace("[secret N]", "abcabcab"))
        assert taken - shown < len("abcabcab")


@pytest.mark.parametrize(
    "text",
    [
        CERTIFICATE,
        repr(CERTIFICATE),
        json.dumps({"key": CERTIFICATE}),
        json.dumps({"key": CERTIFICATE}, ensure_ascii=False),
        f"<td>{CERTIFICATE.replace('<', '&lt;').replace('>', '&gt;')}</td>",
    ],
)
def test_quoted_values_are_found(text: str) -> None:
    masked = Masker([("CERT", CERTIFICATE)]).text(f"before {text} after")
    assert "[secret CERT]" in masked
    assert "café" not in masked
    assert "caf\\u00e9" not in masked


# ---- messages ----------------------------------------------------------------------------------------------


def message(
    msg_type: str,
    content: dict[str, Any] | bytes,
    *,
    parent: str = "cell",
    channel: Channel = Channel.IOPUB,
    **fields: Any,
) -> Message:
    frame = content if isinstance(content, bytes) else json.dumps(content).encode()
    known = {"metadata_frame": EMPTY, "buffers": (), **fields}
    return Message(
        channel=channel,
        header_frame=EMPTY,
        parent_frame=EMPTY,
        content_frame=frame,
        header=Header("id", msg_type),
        parent=Header(parent, "execute_request"),
        **known,
    )


def stream(text: str, name: str = "stdout", **fields: Any) -> Message:
    return message("stream", {"name": name, "text": text}, **fields)


def shown(messages: MessageMasker, *given: Message) -> list[Message]:
    """What comes out for these."""
    out: list[Message] = []
    for each in given:
        out += messages.before(each)
        masked = messages.mask(each)
        out += [] if masked is None else [masked]
    return out


def texts(messages: list[Message]) -> list[tuple[str, str]]:
    return [
        (each.content()["name"], each.content()["text"]) for each in messages if each.msg_type == "stream"
    ]


@pytest.fixture
def messages() -> MessageMasker:
    return MessageMasker(Masker([("KEY", KEY), ("CERT", CERTIFICATE)]))


def written(text: str) -> list[bytes]:
    """The JSON of a text as different encoders write it."""
    usual = json.dumps(text, ensure_ascii=False).encode()
    return [
        usual,
        json.dumps(text).encode(),
        usual.replace(b"/", b"\\/").replace(b"\\n", b"\\u000a"),
        b'"%b"' % b"".join(b"\\u%04X" % int.from_bytes(pair, "big") for pair in _pairs(text)),
    ]


def _pairs(text: str) -> list[bytes]:
    data = text.encode("utf-16-be")
    return [data[at : at + 2] for at in range(0, len(data), 2)]


@pytest.mark.parametrize("value", [KEY, CERTIFICATE])
@pytest.mark.parametrize("form", range(4))
def test_a_value_is_found_however_json_writes_it(messages: MessageMasker, value: str, form: int) -> None:
    frame = b'{"data":{"text/plain":%b,"application/json":{"a":[1,%b]}},"metadata":{},"n":1.5}' % (
        (written(value)[form],) * 2
    )
    [masked] = shown(messages, message("display_data", frame))
    mark = f"[secret {'KEY' if value is KEY else 'CERT'}]"
    assert masked.content() == {
        "data": {"text/plain": mark, "application/json": {"a": [1, mark]}},
        "metadata": {},
        "n": 1.5,
    }


@pytest.mark.parametrize(
    ("msg_type", "channel", "content"),
    [
        ("error", Channel.IOPUB, {"ename": KEY, "evalue": f"={KEY}", "traceback": ["a", f"\x1b[31m{KEY}"]}),
        ("execute_reply", Channel.SHELL, {"payload": [{"text": KEY}], "user_expressions": {"a": {"b": KEY}}}),
        ("input_request", Channel.STDIN, {"prompt": f"{KEY}?", "password": False}),
        ("comm_msg", Channel.IOPUB, {"comm_id": "c", "data": {"state": {KEY: KEY}}}),
        ("execute_input", Channel.IOPUB, {"code": f"x = '{KEY}'"}),
        ("stream", Channel.IOPUB, {"name": "stdout", "text": ["a", KEY]}),
    ],
)
def test_values_are_found_in_every_kind_of_message(
    messages: MessageMasker, msg_type: str, channel: Channel, content: dict[str, Any]
) -> None:
    [masked] = shown(messages, message(msg_type, content, channel=channel))
    assert KEY.encode() not in masked.content_frame
    assert json.loads(json.dumps(content).replace(KEY, "[secret KEY]")) == masked.content()


def test_other_messages_pass_unchanged(messages: MessageMasker) -> None:
    given = [
        stream("text\n"),
        message("display_data", {"data": {"text/plain": "\u001b[0m", "image/png": "AAAA"}, "metadata": {}}),
        message("status", {"execution_state": "idle"}),
        message("stream", b"", left_out=10**9),
        message("comm_msg", b"no json"),
    ]
    assert all(new is old for new, old in zip(shown(messages, *given), given, strict=True))


def test_a_value_over_several_messages_is_masked_once(messages: MessageMasker) -> None:
    out = shown(messages, *(stream(letter) for letter in f"a{KEY}b"), message("status", {}))
    assert "".join(text for _, text in texts(out)) == "a[secret KEY]b"


def test_streams_are_apart(messages: MessageMasker) -> None:
    half = len(KEY) // 2
    out = shown(
        messages,
        stream(KEY[:half]),
        stream(KEY[:half], "stderr"),
        stream(KEY[half:], parent="other"),
        stream(KEY[half:], "stderr"),
        stream(KEY[half:]),
    )
    assert texts(out) == [("stdout", KEY[half:]), ("stderr", "[secret KEY]"), ("stdout", "[secret KEY]")]


@pytest.mark.parametrize("msg_type", ["display_data", "status", "execute_reply", "input_request"])
def test_what_is_held_back_comes_before_the_next_output(messages: MessageMasker, msg_type: str) -> None:
    out = shown(messages, stream("ask"), stream(KEY[:3]), message(msg_type, {}), stream("!"))
    assert [each.msg_type for each in out] == ["stream", "stream", "stream", msg_type, "stream"]
    assert "".join(text for _, text in texts(out)) == f"ask{KEY[:3]}!"


def test_a_cell_that_has_ended_is_not_waited_for(messages: MessageMasker) -> None:
    shown(messages, stream("x"), message("status", {}))
    out = shown(messages, stream(KEY[:4]), stream(KEY[4:]))
    assert texts(out) == [("stdout", KEY[:4]), ("stdout", "[secret KEY]")]


def test_the_end_of_a_kernel_shows_the_rest(messages: MessageMasker) -> None:
    assert shown(messages, stream(KEY[:4]), stream(KEY[:2], "stderr", parent="other")) == []
    assert texts(messages.rest()) == [("stdout", KEY[:4]), ("stderr", KEY[:2])]
    assert messages.rest() == []


def test_what_can_not_be_read_is_left_out_if_it_may_have_a_value(messages: MessageMasker) -> None:
    broken = b'{"data": {"text/plain": "%b' % KEY.encode()
    [masked] = shown(messages, message("display_data", broken))
    assert "left out" in masked.content()["data"]["text/plain"]
    [masked] = shown(messages, message("display_data", {"data": {"text/plain": KEY}}, unread=True))
    assert KEY.encode() not in masked.content_frame
    [masked] = shown(messages, message("status", {}, metadata_frame=b'{"a":"%b"}' % KEY.encode()))
    assert masked.metadata_frame == EMPTY


def test_memory_is_bounded(messages: MessageMasker) -> None:
    for number in range(10 * MOST_CELLS):
        shown(messages, stream(KEY[:5], parent=str(number)))
        shown(messages, message("status", {}, parent=str(number)))
    assert len(messages._cells) == MOST_CELLS
    assert len(messages._ended) == MOST_CELLS
