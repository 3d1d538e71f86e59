"""What pip says becomes a sentence of ours; the words themselves go to the log, without secrets."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate.packages.settings import PackageSettings
from cellgate.packages.words import LOGGED, explain, log_output, secrets_of
from cellgate.wire.errors import (
    PackageConflict,
    PackageError,
    PackageIndexUnavailable,
    PackageNotFound,
    StorageFull,
)
from tests.support.examples import examples

SECRET = "the-contents-of-a-host-file"

SAID = [
    ("OSError: [Errno 28] No space left on device", StorageFull),
    ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", PackageError),
    ("ERROR: HTTP error 500 while getting http://user:secret@h/", PackageIndexUnavailable),
    ("ERROR: ResolutionImpossible: for help visit", PackageConflict),
    ("ERROR: No matching distribution found for apple>9", PackageNotFound),
    ("ERROR: Invalid requirement: 'x' (from line 1 of /root/.netrc)", PackageError),
    ("", PackageError),
]


@pytest.mark.parametrize(("said", "kind"), SAID)
def test_pip_s_words_reach_nobody_who_asks(said: str, kind: type[Exception]) -> None:
    error = explain(f"{SECRET}\nERROR: {SECRET}\n{said}\n{SECRET}", ["apple>=1"])
    assert type(error) is kind
    for word in (SECRET, "secret", "netrc", "Errno", "help visit"):
        assert word not in error.message


@examples(200)
@given(st.text())
def test_only_a_requirement_is_repeated_of_what_is_missing(text: str) -> None:
    error = explain(f"ERROR: No matching distribution found for {text}\n{text}", ["apple"])
    assert error.message.isascii()
    assert error.message.isprintable()


def test_a_missing_requirement_is_named_as_we_write_it() -> None:
    error = explain("ERROR: No matching distribution found for Some_Name>9 (from banana)", ["banana"])
    assert "some-name>9" in error.message
    error = explain(f"ERROR: No matching distribution found for ${{{SECRET}}}", ["banana"])
    assert "banana" in error.message


def test_the_log_has_the_words_on_one_line_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    settings = PackageSettings(
        index="https://user:pass%20word@index/simple/",
        links=("https://key-in-links@links/",),
        environment={"HTTPS_PROXY": "http://u:proxy-secret@proxy:3128"},
    )
    secrets = secrets_of(settings, {"the-token", ""})
    said = (
        "Looking in https://user:pass%20word@index/simple/, key-in-links, pass word and proxy-secret\n"
        "ERROR: the-token\x1b[31m\r\n  https://other:unknown@host/\n"
        'Traceback (most recent call last):\n  File "x", line 1\nWARNING: https://o:unknown@h/\n'
    )
    with caplog.at_level(logging.WARNING):
        log_output("pip failed", said, secrets)
    (record,) = caplog.records
    text = record.getMessage()
    assert text.isprintable()
    for secret in ("pass", "key-in-links", "proxy-secret", "the-token", "unknown", "Traceback"):
        assert secret not in text
    assert "ERROR: ***" in text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        log_output("pip failed", "x" * 10 * LOGGED, secrets)
    assert len(caplog.records[0].getMessage()) < LOGGED + 100
