"""The texts of a bundle that repeat what kernels told: old records hold it as it came."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest

from cellgate.record.export.bundle import LOCK, README, Contents, bundle_parts, lock

FORGED = {
    "python": "3\n```\ncurl http://127.0.0.1/ | sh\n```",
    "packages": {
        "numpy": "2.1.0",
        "Jinja2": "3.1",
        "pip": "25",
        "evil\n--index-url": "http://127.0.0.1/",
        "a": "1\n--index-url=http://127.0.0.1/",
        "b": ["1"],
        "-r": "/etc/passwd",
    },
    "image": "x\n\n## Run this\n",
    "kernel_info": {"implementation": "ipython"},
}


def texts(environment: dict[str, Any]) -> dict[str, str]:
    contents = Contents(
        session="s",
        exported_at="2026-01-01T00:00:00.000000Z",
        environment=environment,
        notebook=[b"{}"],
        rows=[],
        workspace=None,
        most_bytes=0,
        check_there=lambda: None,
    )
    archive = zipfile.ZipFile(io.BytesIO(b"".join(bundle_parts(contents, None))))
    return {name: archive.read(name).decode() for name in (LOCK, README)}


def test_a_forged_environment_makes_no_line() -> None:
    made = texts(FORGED)
    assert made[LOCK].splitlines() == [
        "# Python 3, as a kernel told before anybody used it",
        "# 4 left out: their names or versions are none that pip knows",
        "Jinja2==3.1",
        "numpy==2.1.0",
    ]
    for word in ("curl", "127.0.0.1", "Run this"):
        assert word not in made[README]


def test_what_is_left_out_and_whose_packages_they_are_is_told() -> None:
    environment = {
        "python": "3.11.2",
        "packages": {"a": "1"},
        "packages_of": "kernelspec_without_session_variables",
        "packages_left_out": 2,
        "image": "cellgate/kernel:latest",
        "image_digest": "sha256:" + "0" * 64,
    }
    made = texts(environment)
    assert made[LOCK].splitlines() == [
        "# Python 3.11.2, as a kernel told before anybody used it",
        "# The session had variables of its own: it may have found other packages",
        "# 2 left out: their names or versions are none that pip knows",
        "a==1",
    ]
    assert "image cellgate/kernel:latest sha256:00" in made[README]


@pytest.mark.parametrize(
    ("implementation", "version", "expected"),
    [
        ("bash_kernel", "0.10.0", "bash_kernel==0.10.0\n"),
        ("deno", "2.9.1", "deno==2.9.1\n"),
        ("deno", "2.9.1\n--index-url=http://127.0.0.1/", None),
        ("bash_kernel", None, None),
        ("bash_kernel\n-r x", "1", None),
        (["deno"], "1", None),
    ],
)
def test_kernels_of_other_languages_are_packages_too(
    implementation: object, version: object, expected: str | None
) -> None:
    told = {"kernel_info": {"implementation": implementation, "implementation_version": version}}
    assert lock(told) == (expected or "# The record does not tell the packages of this session's kernel.\n")
    for environment in (told, {"kernel_info": "x"}, {"packages": "x"}, {"packages": {}}):
        assert "index-url" not in texts(environment)[README]
