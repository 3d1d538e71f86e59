"""Paths of a workspace, as requests name them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from cellgate.files.tree import parse_folder, parse_path
from cellgate.processes.request import check_process
from cellgate.wire.models import ProcessBody
from cellgate.wire.paths import in_workspace, is_workspaces
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import MIB


@pytest.mark.parametrize("parse", [parse_path, parse_folder])
@pytest.mark.parametrize("unit", ["/", "a/", "a", "./", "\u00e9", "\ud800"])
def test_a_name_of_any_length_is_measured_before_it_is_taken_apart(
    unit: str, parse: Callable[[str], object]
) -> None:
    text = unit * (8 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput):
            parse(text)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "path", ["/workspace//mnt/data/a", "/workspace/./home/user/a/", "./workspace//a", "/a"]
)
def test_the_name_of_a_workspace_is_taken_away_once(path: str) -> None:
    for parse in (
        parse_path,
        parse_folder,
        lambda cwd: check_process(ProcessBody(["ls"], cwd=cwd), waits=True),
    ):
        with pytest.raises(InvalidInput, match="A path is relative to the workspace"):
            parse(path)


@pytest.mark.parametrize("path", ["", ".", "./", "/workspace", "/workspace/", "/mnt/data/./"])
def test_a_folder_may_be_the_workspace_itself(path: str) -> None:
    assert parse_folder(path) == ()
    assert check_process(ProcessBody(["ls"], cwd=path), waits=True).cwd == ""


@pytest.mark.parametrize("path", ["/workspace2", "/workspace2/a", "/mnt/database", "/home/users/a"])
def test_what_only_begins_like_a_workspace_is_none(path: str) -> None:
    assert not is_workspaces(path)
    assert in_workspace(path) == path
