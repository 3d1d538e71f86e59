"""The workflow of a release: what it runs is there, its jobs have few rights, no tag runs commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / ".github" / "workflows" / "release.yaml"
WORKFLOW: dict[str, Any] = yaml.safe_load(FILE.read_text())


def commands() -> Iterator[str]:
    """The scripts of all steps."""
    for job in WORKFLOW["jobs"].values():
        yield from (step["run"] for step in job["steps"] if "run" in step)


def test_files_that_it_names_are_there() -> None:
    text = "\n".join(commands())
    named = {word for word in re.findall(r"[\w./]+", text) if word.startswith(("kernels/", "Dockerfile"))}
    assert named == {"kernels/cellgate_kernels/inside/uv.txt", "Dockerfile.kernel"}
    assert all((ROOT / name).is_file() for name in named)
    assert (ROOT / "deploy" / "Dockerfile").is_file()


def test_images_get_the_arguments_that_their_files_have() -> None:
    text = "\n".join(commands())
    for argument in re.findall(r"--build-arg \"?(\w+)=", text):
        files = ("Dockerfile", "Dockerfile.kernel", "deploy/Dockerfile")
        assert any(f"ARG {argument}=" in (ROOT / name).read_text() for name in files), argument


def test_jobs_have_no_rights_but_their_own_and_nothing_is_published_unseen() -> None:
    assert WORKFLOW["permissions"] == {}
    jobs = WORKFLOW["jobs"]
    assert all(
        "contents" not in job["permissions"] or job["permissions"]["contents"] == "read"
        for job in jobs.values()
    )
    publishing = {name for name, job in jobs.items() if job.get("environment") == "release"}
    assert publishing == {"images", "publish"}
    assert jobs["publish"]["needs"] == ["packages", "images"]


def test_expressions_stand_in_no_script() -> None:
    """Whoever names a tag would run commands."""
    assert not [script for script in commands() if "${{" in script]


def test_the_tag_is_compared_with_the_version() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    (compared,) = (script for script in commands() if "grep" in script)
    assert compared == 'grep -qx "version = \\"${GITHUB_REF_NAME#v}\\"" pyproject.toml'
