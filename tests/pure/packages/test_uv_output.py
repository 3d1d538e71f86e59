"""What is read of uv's words; and the words themselves go to the log, without secrets."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from pathlib import Path

import pytest

from cellgate.packages import uv
from cellgate.packages.settings import PackageSettings
from cellgate.packages.uv_output import LOGGED, MOST_TOLD, derivation, is_full, log_output, secrets_of
from cellgate_kernels.specs.uv_command import uv_command


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ("  cause: No space left on device (os error 28)", True),
        ("  cause: Quota exceeded (os error 122)", True),
        ("  cause: Connection refused (os error 111)", False),
        ("Because no-space-left==28 was not found", False),
    ],
)
def test_a_full_disk_is_told_by_the_system_s_number(said: str, full: bool) -> None:
    assert is_full(said) is full


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
        "  cause: https://o:unknown@h/simple/?token=unknown&x=1 (os error 5)\n"
    )
    with caplog.at_level(logging.WARNING):
        log_output("uv failed", said, secrets)
    (record,) = caplog.records
    text = record.getMessage()
    assert text.isprintable()
    for secret in ("pass", "key-in-links", "proxy-secret", "the-token", "unknown"):
        assert secret not in text
    assert "ERROR: ***" in text
    assert "cause: https://***@h/simple/?*** (os error 5)" in text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        log_output("uv failed", "x" * 10 * LOGGED, secrets)
    assert len(caplog.records[0].getMessage()) < LOGGED + 100


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            (
                "error: No solution found when resolving dependencies\n"
                "  cause: Because a==1 has invalid metadata and you require a, it fails.\n\n"
                "hint: Metadata for `a` (v1) could not be parsed:\n  do as I say\n"
            ),
            "Because a==1 has invalid metadata and you require a, it fails.",
        ),
        (
            (
                "error: No solution found when resolving dependencies\n"
                "  cause: Because a==1 was yanked (reason: do (x) as I say) and only a==1 is available\n"
            ),
            "Because a==1 was yanked",
        ),
        (
            "No solution found\n Because a at https://index/a and\n  /srv/wheels fail",
            "Because a at *** and *** fail",
        ),
        ("error: Failed to resolve\n  cause: `a` was included. Because https://index/a", ""),
    ],
)
def test_a_client_gets_neither_an_index_s_own_text_nor_its_address(said: str, told: str) -> None:
    assert derivation(said) == told
    assert len(derivation(f"No solution found: Because {'a' * 10_000}")) == MOST_TOLD


@pytest.mark.timeout(20)
def test_addresses_in_an_index_s_words_cost_the_log_no_time(caplog: pytest.LogCaptureFixture) -> None:
    """Half a minute, if each were searched up to the end of the text."""
    log_output("it failed", "a://" * 100_000, ())
    assert len(caplog.messages) == 1


@pytest.mark.timeout(20)
def test_a_wheel_whose_name_stands_for_millions_of_platforms_fits_none() -> None:
    many = ".".join(f"py{number}" for number in range(2000))
    name = f"foo-1.0-{many}-none.{many}-any.{many}.whl"
    assert uv._rank(uv._File({}, name), {}) == 0


def test_the_platforms_are_those_that_uv_knows() -> None:
    """As our table has them, and the documentation says."""
    command, environment = uv_command(["pip", "install", "--help"], os.environ, {})
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    minors = {int(minor) for minor in re.findall(r"x86_64-manylinux_2_(\d+)", told)}
    assert minors == set(uv._GLIBC)
    page = (Path(__file__).parents[3] / "docs" / "reference" / "packages.md").read_text()
    assert minors == {17, 28, *range(31, max(minors) + 1)}
    assert f"uv knows glibc 2.17, 2.28 and 2.31 to 2.{max(minors)}, on x86-64 and aarch64, and musl" in page
