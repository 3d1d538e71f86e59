"""What the builder of the kernel image is given; that it builds is for the tests with an engine."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from cellgate_kernels.engine.image import RECIPE, build_context
from cellgate_kernels.specs.environments import ListedEnvironment

ROOT = Path(__file__).parents[3]
IMAGE = "kernels/cellgate_kernels/inside"


def context(requirements: Path) -> dict[str, bytes]:
    with tarfile.open(fileobj=build_context(requirements)) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]


@pytest.mark.parametrize("environment", ListedEnvironment)
def test_the_builder_gets_what_the_recipe_copies_and_nothing_else(environment: ListedEnvironment) -> None:
    """So a build by hand, from the whole checkout, makes the same image."""
    given = context(environment.lock)
    assert given == {name: (ROOT / name).read_bytes() for name in given}
    recipe = given.pop(RECIPE).decode().replace("${ENVIRONMENT}", environment)
    copied = [
        path.relative_to(ROOT)
        for line in re.findall(r"^COPY (?!--)(.+) \S+$", recipe, re.MULTILINE)
        for word in line.split()
        for path in ROOT.glob(word)
    ]
    assert sorted(map(str, copied)) == sorted(given)


def test_an_own_list_stands_in_for_the_lock(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("ipykernel\n")
    usual = context(ListedEnvironment.STANDARD.lock)
    del usual[f"{IMAGE}/standard.lock"]
    assert context(own) == usual | {f"{IMAGE}/own.lock": b"ipykernel\n"}
