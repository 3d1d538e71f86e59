"""Contexts of E2B's sandboxes after a restart of the gateway: whose they are, and with what they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cellgate.doors.sandbox.contexts import recover_contexts
from cellgate.doors.sandbox.keys import key_of, whole_or_deleted
from cellgate.errors import QueueFull
from cellgate.sessions.sandboxes import Sandboxes
from cellgate.sessions.session import Session
from cellgate.wire.models import SessionBody
from cellgate_kernels.testing import virtual_time
from tests.core.world import PRINCIPAL, World

BOX = "ibox"


class Left(World):
    """A gateway whose sessions nobody has told yet what they are to each other, as after a restart."""

    def left(self, key: str, metadata: Mapping[str, object], other: str | None = None) -> Session:
        body = SessionBody(session=key, metadata={"door": "e2b", **metadata}, workspace_of=other)
        return self.run(self.manager.get_or_create(PRINCIPAL, body))[0]

    def sandbox(self, identifier: str = BOX, prefix: str = "") -> Session:
        return self.left(key_of("e2b", PRINCIPAL, identifier, prefix), {"sandbox": identifier})

    def context(self, name: str, prefix: str = "", *, key: str = "", language: str = "python") -> Session:
        told = {"context": name, "context_of": BOX, "language": language, "cwd": "/home/user"}
        made = key or key_of("e2b", PRINCIPAL, f"{BOX}/{name}", prefix)
        return self.left(made, told, key_of("e2b", PRINCIPAL, BOX, prefix))

    def recover(self) -> Sandboxes:
        sandboxes = Sandboxes()
        self.do(recover_contexts, self.manager, sandboxes)
        return sandboxes


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Left]:
    """Afterwards nothing is left, and the record is whole."""
    with virtual_time() as loop:
        made = Left(loop, tmp_path)
        made.run(made.open(max_kernels=6))
        yield made
        made.run(made.close())
        made.check()


@pytest.mark.parametrize("prefix", ["", "team-"])
def test_contexts_are_their_sandboxs_again_and_end_with_it(world: Left, prefix: str) -> None:
    sandbox = world.sandbox(prefix=prefix)
    first, second = world.context("b", prefix), world.context("a", prefix)
    sandboxes = world.recover()
    assert sandboxes.of(sandbox).further == {"b": first, "a": second}
    assert list(sandboxes.of(sandbox).further) == ["b", "a"], "the oldest first"
    world.run(first.end("idle_timeout"))
    world.pass_time(1)
    assert sandboxes.of(sandbox).further == {"a": second}
    world.run(world.manager.delete(PRINCIPAL, sandbox.row.key))
    world.pass_time(1)
    assert world.live(second.row.key) is None
    assert second.is_deleted
    assert sandboxes.of(sandbox).further == {}


def test_each_door_has_contexts_of_its_own(world: Left) -> None:
    """Sandboxes of two doors may have the same id."""
    sandboxes, contexts = [], []
    for door in ("e2b", "opensandbox"):
        key = key_of(door, PRINCIPAL, BOX)
        sandboxes.append(world.left(key, {"door": door, "sandbox": BOX}))
        told = {"door": door, "context": "a", "context_of": BOX, "language": "python", "cwd": "/home/user"}
        contexts.append(world.left(key_of(door, PRINCIPAL, f"{BOX}/a"), told, key))
    known = world.recover()
    assert [known.of(sandbox).further for sandbox in sandboxes] == [{"a": context} for context in contexts]


def test_a_context_whose_sandbox_is_gone_ends(world: Left) -> None:
    sandbox, other = world.sandbox(), world.sandbox("iother")
    context = world.context("a")
    world.run(sandbox.end("gateway_restart"))
    world.pass_time(1)
    world.recover()
    world.pass_time(1)
    assert world.live(context.row.key) is None
    assert world.live(other.row.key) is other


def test_a_context_that_can_not_be_made_whole_is_deleted(world: Left) -> None:
    sandbox, context = world.sandbox(), world.context("a")

    async def fail() -> None:
        async with whole_or_deleted(world.manager, context):
            raise QueueFull("no program more", retry_after=1)

    with pytest.raises(QueueFull):
        world.run(fail())
    assert world.live(context.row.key) is None
    assert context.is_deleted
    assert world.live(sandbox.row.key) is sandbox


def test_who_only_says_so_is_no_context(world: Left) -> None:
    sandbox = world.sandbox()
    said = [world.context("a", key="mine"), world.context("b", language="cobol")]
    said.append(world.left("other", {"context_of": 5}))
    sandboxes = world.recover()
    assert sandboxes.of(sandbox).further == {}
    world.run(world.manager.delete(PRINCIPAL, sandbox.row.key))
    world.pass_time(1)
    assert [world.live(each.row.key) for each in said] == said
