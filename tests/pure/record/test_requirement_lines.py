"""Lines for installers: whatever they are made from, each is one line that is read as it was meant."""

from __future__ import annotations

import shlex
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pip._internal.req.req_file import (  # the parser that will read the lines
    COMMENT_RE,
    break_args_options,
    join_lines,
)

from cellgate.packages.requirements import MAX_REQUIREMENT, parse_change, parse_requirement
from cellgate.record.export.bundle import lock
from cellgate.record.export.requirement_lines import (
    Line,
    comment_line,
    document,
    hashed_line,
    pin_line,
    requirement_line,
)
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.protocol.distributions import Distribution
from tests.support.examples import examples

DIGEST = "0f" * 32


def read_by_pip(text: str) -> list[str]:
    """The requirements that pip reads from a file; fails when it reads an option that is no hash."""
    assert "${" not in text
    found = []
    for _, line in join_lines(enumerate(text.splitlines(), 1)):
        arguments, options = break_args_options(COMMENT_RE.sub("", line))
        assert shlex.split(options) == [] or options == f"--hash=sha256:{DIGEST}"
        if arguments.strip():
            found.append(arguments.strip())
    return found


# Pieces that mean something to pip, to shells or to parsers.
PIECES = st.sampled_from(
    [
        *("a", "B_c", "1.0", "==", "===", ">=", "~=", "[", "]", ",", ";", "(", ")", "*", "!", "+", "@"),
        *(" ", "\n", "\r", "\t", "\x0b", "\x85", "\u2028", "\0", "\ud800", "ä", "\\", "\\n", "\\x0a"),
        *("#", " #", "$", "${HOME}", "${PIP_INDEX_URL}", '"', "'", "/", "../", "%0a", "http://x/"),
        *("--index-url=http://x/", "-r /etc/passwd", "-e .", "--hash=sha256:0", "\\N{LINE FEED}"),
        *("and", "or", "in", "os_name", "extra"),
    ]
)
HOSTILE = st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join)
MARKERS = st.builds(
    lambda left, quote, value, rest: f"a{left}; os_name == {quote}{value}{quote}{rest}",
    st.sampled_from(["", "==1", "[b,c]", ">=1,<2"]),
    st.sampled_from(["'", '"']),
    HOSTILE,
    st.sampled_from(["", " and python_version > '3'", ")"]),
)


@examples(200)
@given(HOSTILE | MARKERS | st.text())
@example("a; os_name == 'x\\n--index-url=http://127.0.0.1/'")
@example('a; os_name == "x --index-url=http://127.0.0.1/ #"')
@example("a===${PIP_INDEX_URL}")
@example('a; os_name == "\\x22\\x27"')
@example("a; os_name == 'it\"s'")
@example("a; os_name == '\\x'")
@example("a; " + "(" * 490)
@example("a; " + "(" * 240 + "os_name=='a'" + ")" * 240)
@example("a==" + "9" * 490)
@example("a.whl")
def test_no_requirement_makes_a_second_line_or_an_option(text: str) -> None:
    try:
        wanted = parse_requirement(text)
    except InvalidInput:
        return
    line, requirement = wanted.line, Requirement(text)
    assert read_by_pip(document([line])) == [line]
    assert wanted.name == canonicalize_name(requirement.name)
    again = Requirement(line)
    assert canonicalize_name(again.name) == canonicalize_name(requirement.name)
    assert (again.specifier, str(again.marker)) == (requirement.specifier, str(requirement.marker))
    assert set(map(canonicalize_name, again.extras)) == set(map(canonicalize_name, requirement.extras))
    assert requirement_line(again) == line


@examples(200)
@given(HOSTILE | MARKERS | st.text())
def test_the_writer_trusts_no_requirement_that_others_have_read(text: str) -> None:
    line = None
    with suppress(InvalidRequirement, InvalidInput):
        line = requirement_line(Requirement(text))
    assert line is None or read_by_pip(document([line])) == [line]


@examples(200)
@given(HOSTILE, HOSTILE)
@example("a", "1\n--index-url=http://127.0.0.1/")
@example("a\n--index-url=http://127.0.0.1/", "1")
@example("A.b-c", " 1.0-RC1\n")
def test_no_package_makes_a_second_line_or_an_option(name: str, version: str) -> None:
    package = None
    with suppress(ValueError):
        package = Distribution.read(name, version)
    if package is not None:
        line = pin_line(package)
        assert read_by_pip(document([line])) == [f"{package.name}=={package.version}"]
        assert Distribution.read(*line.split("==")) == package


@examples(200)
@given(st.sampled_from(["", "0", DIGEST, DIGEST.upper(), DIGEST + "\n", f"{DIGEST} -r x"]) | HOSTILE)
def test_no_hash_makes_a_second_line_or_another_option(sha256: str) -> None:
    line: Line | None = None
    with suppress(InvalidInput):
        line = hashed_line(Distribution("a", "1.0"), sha256)
    assert (line is not None) == (sha256 == DIGEST)
    if line is not None:
        assert read_by_pip(document([line])) == ["a==1.0"]


@examples(200)
@given(HOSTILE | st.text())
def test_no_comment_makes_a_second_line_or_an_option(text: str) -> None:
    line: Line | None = None
    with suppress(InvalidInput):
        line = comment_line(text)
    assert line is None or read_by_pip(document([line])) == []


WORDS = HOSTILE | st.integers() | st.just(10**5000) | st.booleans() | st.none()


@examples(200)
@given(
    packages=st.dictionaries(HOSTILE, WORDS, max_size=4) | WORDS,
    python=WORDS,
    implementation=st.sampled_from(["bash_kernel", "deno"]) | HOSTILE,
    version=WORDS,
    left_out=WORDS,
)
def test_a_bundle_s_lock_holds_nothing_but_pins(
    packages: object, python: object, implementation: str, version: object, left_out: object
) -> None:
    kernel_info = {"implementation": implementation, "implementation_version": version}
    environment = {"packages": packages, "python": python, "kernel_info": kernel_info}
    environment["packages_left_out"] = left_out
    for line in read_by_pip(lock(environment)):
        name, _, told = line.partition("==")
        assert Distribution.read(name, told) == Distribution(name, told)


def test_what_is_usual_is_written() -> None:
    text = 'Some_Name.x[B_c,a] >=1, <2 ; python_version < "3.9" and os_name in "posix nt"'
    expected = 'some-name-x[a,b-c]<2,>=1; python_version < "3.9" and os_name in "posix nt"'
    assert parse_requirement(text).line == expected
    for text in ("a", "a==1.*", "a~=1.4", "a!=1.0+local.1", "a===1.0", "a>=2!1"):
        assert parse_requirement(text).line == text
    assert pin_line(Distribution("Jinja2", "3.1.4")) == "Jinja2==3.1.4"
    assert hashed_line(Distribution("Jinja2", "3.1.4"), DIGEST) == f"Jinja2==3.1.4 --hash=sha256:{DIGEST}"


@pytest.mark.parametrize(
    "text",
    [
        "a @ http://x/a.whl",
        "a\n",
        "a\t>1",
        "a; os_name == 'b\\tc'",
        "a; os_name == 'b#c'",
        "a; " + "(" * 21 + "os_name == 'b'" + ")" * 21,
        "a" * (MAX_REQUIREMENT + 1),
    ],
)
def test_what_no_requirement_needs_is_refused(text: str) -> None:
    for change in (lambda: parse_change([text]), lambda: parse_change(["b"], constraints=[text])):
        with pytest.raises(InvalidInput):
            change()


def test_a_request_has_so_much_text() -> None:
    text = "a>=1" + " " * 200
    assert len(parse_change([], constraints=[text] * 500).constraints) == 500
    with pytest.raises(InvalidInput, match="characters"):
        parse_change([], constraints=[text] * 1000)
