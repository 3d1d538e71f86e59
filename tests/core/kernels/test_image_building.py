"""What building the kernel image leaves of the one that had its name, with an engine that the test plays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from docker.errors import APIError, ImageNotFound

from cellgate_kernels.engine import image
from cellgate_kernels.engine.image import build_image
from cellgate_kernels.specs.environments import ListedEnvironment

TAG = "cellgate/kernel:latest"


class PlayedEngine:
    """Images by their names; `made` is the id of the next one. `in_use`: those that it does not remove."""

    def __init__(self, named: dict[str, str], made: str, in_use: frozenset[str] = frozenset()) -> None:
        self.named = named
        self.made = made
        self.in_use = in_use
        self.removed: list[str] = []

    def build(self, *, tag: str, **_: Any) -> Iterator[dict[str, str]]:
        self.named[tag] = self.made
        yield {"stream": "Step 1/1 : FROM scratch\n"}

    def inspect_image(self, tag: str) -> dict[str, str]:
        if tag not in self.named:
            raise ImageNotFound(tag)
        return {"Id": self.named[tag]}

    def remove_image(self, name: str) -> None:
        if name in self.in_use:
            answer = requests.Response()
            answer.status_code = 409
            raise APIError("conflict", answer, "image is being used by running container 1234")
        self.removed.append(name)

    def close(self) -> None:
        """Nothing is open."""


def built(engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """Build with this engine; return the image's id, and what was told after the steps."""
    monkeypatch.setattr(image, "connect", lambda *_: engine)
    told: list[str] = []
    made = build_image("unix:///played", TAG, told.append, requirements=ListedEnvironment.MINIMAL.lock)
    return made, told[1:]


def test_the_former_image_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PlayedEngine({TAG: "sha256:former", "another": "sha256:other"}, "sha256:new")
    assert built(engine, monkeypatch) == ("sha256:new", ["Removed the former image sha256:former"])
    assert engine.removed == ["sha256:former"]


@pytest.mark.parametrize("named", [{}, {TAG: "sha256:same"}])
def test_a_first_image_and_an_unchanged_one_remove_nothing(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
) -> None:
    engine = PlayedEngine(named, "sha256:same")
    assert built(engine, monkeypatch) == ("sha256:same", [])
    assert engine.removed == []


def test_an_image_that_containers_use_stays_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PlayedEngine({TAG: "sha256:former"}, "sha256:new", frozenset({"sha256:former"}))
    made, (told,) = built(engine, monkeypatch)
    assert made == "sha256:new"
    assert told.startswith("The former image sha256:former is still in use, and stays: image is being used")
