"""A kernel tells its Python and its packages; whatever else it says is no answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate_kernels.kernel.environment import (
    EXPRESSION,
    MAX_ANSWER,
    MAX_STATUS,
    MISSING,
    MOST_PACKAGES,
    Environment,
    RawEnvironment,
    accept,
    ask,
    distributions,
    is_python,
    missing_modules,
)
from cellgate_kernels.protocol.distributions import MOST_NAME, MOST_VERSION, Distribution, is_name
from cellgate_kernels.protocol.messages import Channel, Header, Message
from tests.support.examples import examples

GOOD = {"python": "3.11.2", "packages": {"numpy": "2.1.0"}, "machine": "x86_64", "libc": "glibc 2.36"}


class Kernel:
    """Stands for a connection: answers each request with frames that a test chooses."""

    session = "s"

    def __init__(self, answer: Callable[[str], bytes], status: bytes = b'{"execution_state":"idle"}') -> None:
        self._answer = answer
        self._status = status
        self._receive: Callable[[Message], None] = lambda message: None

    def listen(self, receive: Callable[[Message], None]) -> Callable[[], None]:
        self._receive = receive
        return lambda: None

    def send(self, request: Message) -> None:
        expression = request.content()["user_expressions"]["value"]
        for channel, kind, frame in (
            (Channel.SHELL, "execute_reply", self._answer(expression)),
            (Channel.IOPUB, "status", self._status),
        ):
            header = Header("answer", kind)
            message = Message(channel, b"{}", b"{}", b"{}", frame, (), header, request.header)
            asyncio.get_running_loop().call_soon(self._receive, message)


def reply(text: object) -> bytes:
    """The content of a reply whose expression is shown as this text."""
    data = {"status": "ok", "data": {"text/plain": text}, "metadata": {}}
    return json.dumps({"status": "ok", "user_expressions": {"value": data}}).encode()


async def told(frame: bytes) -> Environment | None:
    """What is made of this reply."""
    kernel: Any = Kernel(lambda _: frame)
    return await ask(kernel, asyncio.get_running_loop().create_future())


def test_the_expression_tells_this_interpreters_packages() -> None:
    from importlib.metadata import version
    from platform import libc_ver, machine, python_version

    environment = accept(msgspec.json.decode(repr(eval(EXPRESSION)), type=RawEnvironment))
    assert environment is not None
    assert (environment.python, environment.machine) == (python_version(), machine())
    assert environment.libc == " ".join(libc_ver())
    assert environment.versions()["tornado"] == version("tornado")
    assert list(environment.versions()) == sorted(environment.versions(), key=str.lower)


def test_the_other_expression_tells_modules_that_are_missing() -> None:
    given: dict[str, Any] = {}
    exec(MISSING, given)
    code = "import json, sys, tornado.web, pytest, _pytest, no_such_module.at_all"
    assert given["missing"](code) == ["no_such_module"]


async def test_what_fits_is_taken() -> None:
    environment = await told(reply(json.dumps(GOOD)))
    assert environment == Environment("3.11.2", (Distribution("numpy", "2.1.0"),), "x86_64", "glibc 2.36")
    assert accept(environment.told()) == environment
    assert environment.release == (3, 11, 2)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("evil\n--index-url", "1"),
        ("--index-url=http://127.0.0.1/", "1"),
        ("-r", "1"),
        ("../../../escaped", "1"),
        ("a/b", "1"),
        ("a b", "1"),
        ("a@b", "1"),
        ("", "1"),
        ("a_", "1"),
        ("ä", "1"),
        ("a\u2028b", "1"),
        ("a\0", "1"),
        ("a" * (MOST_NAME + 1), "1"),
        ("a", "1 --index-url http://127.0.0.1/"),
        ("a", "1\n--index-url http://127.0.0.1/"),
        ("a", "1; python_version > '3'"),
        ("a", "../../escaped"),
        ("a", "/tmp/escaped"),
        ("a", "1.0-dirty-"),
        ("a", "\u0661"),
        ("a", ""),
        ("a", "1" * (MOST_VERSION + 1)),
    ],
)
async def test_a_package_with_a_forged_name_or_version_is_dropped(name: str, version: str) -> None:
    packages = {"numpy": "2.1.0", name: version}
    environment = await told(reply(json.dumps({**GOOD, "packages": packages})))
    assert environment is not None
    assert (environment.versions(), environment.left_out) == ({"numpy": "2.1.0"}, 1)


async def test_versions_are_kept_in_their_normal_form_and_names_once() -> None:
    packages = {"Foo.Bar": " v1.0-RC1\n", "foo-bar": "2", "b": "1.0+Local_1"}
    environment = await told(reply(json.dumps({**GOOD, "packages": packages})))
    assert environment is not None
    assert environment.versions() == {"b": "1.0+local.1", "Foo.Bar": "1.0rc1"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("python", "3"),
        ("python", "3.11.2\n--index-url=x"),
        ("python", "3.11/../../.."),
        ("python", "3.11.2/"),
        ("python", "3.\u0661.2"),
        ("python", "3.11.99999"),
        ("python", True),
        ("python", None),
        ("packages", ["numpy"]),
        ("packages", {"numpy": True}),
        ("packages", {"numpy": 2.1}),
        ("packages", {"numpy": ["2"]}),
        ("packages", {f"p{number}": "1" for number in range(MOST_PACKAGES + 1)}),
        ("packages", {"-" + str(number): "1" for number in range(MOST_PACKAGES + 1)}),
        ("machine", 5),
    ],
)
async def test_an_environment_that_is_none_is_refused_whole(field: str, value: object) -> None:
    assert await told(reply(json.dumps({**GOOD, field: value}))) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("machine", "x86_64 --index-url=http://127.0.0.1/"),
        ("machine", "../x"),
        ("machine", "m" * 33),
        ("libc", "glibc 2.9999999999"),
        ("libc", "glibc 2.36\n"),
        ("libc", "glibc 2.\u0661"),
        ("libc", "other 1"),
    ],
)
async def test_a_machine_or_c_library_that_is_none_is_unknown(field: str, value: str) -> None:
    environment = await told(reply(json.dumps({**GOOD, field: value})))
    assert environment is not None
    assert getattr(environment, field) == ""


NESTED = b"[" * 200_000 + b"]" * 200_000


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b'{"user_expressions":{}}',
        b'{"user_expressions":{"value":{"status":"error","ename":"x"}}}',
        b'{"user_expressions":{"value":{"data":{}}}}',
        b'{"user_expressions":{"value":{"data":{"text/plain":NaN}}}}',
        b'{"user_expressions":' + NESTED + b"}",
        b'{"user_expressions":{"value":{"data":{"x":' + NESTED + b"}}}}",
        b'{"x":' + NESTED + b"}",
        *map(reply, (None, 5, "", "{", "'{}'", "[1]", '{"python":"3"}', "(" * 5000, "[" * 100_000)),
        reply('{"python": NaN, "packages": {}}'),
        reply('{"python": "3.11.2", "packages": {"a": NaN}}'),
        reply("\ud800"),
        reply(json.dumps({**GOOD, "packages": {"\ud800": "1"}})),
        reply(json.dumps(GOOD) + " " * MAX_ANSWER),
        reply("{" + '"a":"1",' * 6_000_000),
    ],
)
async def test_what_is_no_answer_is_none(frame: bytes) -> None:
    assert await told(frame) is None


async def test_a_status_that_is_too_long_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellgate_kernels.kernel.environment.PATIENCE", 0.05)
    for status in (b'{"execution_state":"idle","x":[' + b" " * MAX_STATUS + b"]}", b"[[", b'{"x":NaN}'):
        kernel: Any = Kernel(lambda _: reply(json.dumps(GOOD)), status)
        assert await ask(kernel, asyncio.get_running_loop().create_future()) is None


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        (["a"], ["a"]),
        (["a", "c", "--index-url=x", "a\nb"], ["a"]),
        (["a", 1], []),
        ({"a": 1}, []),
        ("ab", []),
        (["x"] * 200_000, []),
    ],
)
async def test_missing_modules_are_some_of_those_that_were_asked_for(
    answer: object, missing: list[str]
) -> None:
    kernel: Any = Kernel(lambda _: reply(json.dumps(answer)))
    exited: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    assert await missing_modules(kernel, exited, "import a, b", ["b", "a"]) == missing


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@examples(200)
@given(
    packages=st.dictionaries(st.text() | st.just("numpy"), st.text() | st.just("1.0")),
    words=st.tuples(st.text(), st.text(), st.text()),
    left_out=st.integers() | st.just(MOST_PACKAGES),
)
def test_nothing_that_is_told_gets_past_the_grammars(
    packages: dict[str, str], words: tuple[str, str, str], left_out: int
) -> None:
    python, machine, libc = words
    for version in (python, "3.12.1"):
        environment = accept(RawEnvironment(version, packages, machine, libc, left_out))
        assert (environment is not None) == is_python(version)
        if environment is not None:
            texts = [environment.python, environment.machine, environment.libc]
            texts += [text for pair in environment.versions().items() for text in pair]
            assert all(text.isascii() and text.isprintable() and "/" not in text for text in texts)


@examples(200)
@given(st.dictionaries(st.text() | st.integers(), ANYTHING))
def test_a_mapping_of_anything_gives_packages_and_a_count(mapping: Mapping[Any, Any]) -> None:
    packages, left_out = distributions(mapping)
    assert len(packages) + left_out <= len(mapping)
    assert all(is_name(package.name) for package in packages)


def test_values_that_do_not_fit_can_not_be_made() -> None:
    for name, version in (("-r", "1"), ("a", "1.0-1"), ("a", "1\n")):
        with pytest.raises(ValueError, match="no"):
            Distribution(name, version)
    twice = (Distribution("a", "1"), Distribution("A", "1"))
    for fields in ({"python": "3"}, {"machine": "a b"}, {"libc": "x"}, {"packages": twice}):
        with pytest.raises(ValueError, match=r"no|twice"):
            Environment(**{"python": "3.11.2", **fields})  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"name":"../x","version":"1"}', type=Distribution)
