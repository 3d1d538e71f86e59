"""Branches in the client: what it asks for, what a refusal says, which branches end with their session."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cellgate.client import CannotBranch, Conflict, Gateway, NotFound, Obstacle, Rollback
from tests.core.client.test_wire_client import answer, answering


async def test_a_branch_is_asked_for_as_it_was_wanted() -> None:
    model = {"session": "b", "branched_from": {"session": "s", "seq": 4, "head": "aa"}}
    async with answering(answer(json.dumps(model).encode(), "201 Created")) as (gateway, requests):
        made = await gateway.branch("s", "b", workspace="shared", seed=0, anyway=True)
        assert (made.session, made.branched_from.seq) == ("b", 4)  # type: ignore[union-attr]
        await gateway.branch("s")
    heads, bodies = zip(*(request.split(b"\r\n\r\n") for request in requests), strict=True)
    assert heads[0].startswith(b"POST /base/v1/sessions/s/branch HTTP/1.1\r\n")
    assert [json.loads(body) for body in bodies] == [
        {"session": "b", "workspace": "shared", "seed": 0, "anyway": True},
        {"workspace": "copy", "anyway": False},
    ]


async def test_a_refusal_names_what_stands_in_the_way() -> None:
    problem = {"status": 409, "reason": "cannot_branch", "obstacles": [{"kind": "thread", "name": "T-1"}]}
    async with answering(answer(json.dumps(problem).encode(), "409 Conflict")) as (gateway, _):
        with pytest.raises(CannotBranch) as caught:
            await gateway.branch("s")
    assert caught.value.obstacles == [Obstacle(kind="thread", name="T-1")]


async def test_a_busy_session_is_a_conflict() -> None:
    async with answering(answer(b'{"status": 409, "reason": "busy"}', "409 Conflict")) as (gateway, _):
        with pytest.raises(Conflict) as caught:
            await gateway.branch("s")
    assert caught.value.reason == "busy"


async def test_a_session_that_is_not_live_is_not_made_to_be_branched() -> None:
    missing = b'{"status": 404, "reason": "not_found", "detail": "No live session"}'
    async with answering(answer(missing, "404 Not Found")) as (gateway, requests):
        session = gateway.session("neverseen")
        with pytest.raises(NotFound):
            await session.branch()
    assert [request.split(b" ")[1] for request in requests] == [b"/base/v1/sessions/neverseen/branch"]


@asynccontextmanager
async def noting() -> AsyncIterator[tuple[Gateway, list[str]]]:
    """A client of a server that makes up sessions, and the names of those that have ended."""
    made = itertools.count(1)
    ended: list[str] = []

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = requests[-1].split(b"\r\n\r\n", 1)
        method, path = head.decode().split(" ")[:2]
        parent, *call = path.removeprefix("/base/v1/sessions").strip("/").split("/")
        if method == "DELETE":
            ended.append(parent)
        name = json.loads(body or b"{}").get("session") or (f"{parent}-{next(made)}" if call else "s")
        told: dict[str, object] = {"session": name}
        if call == ["explore"]:
            branches = ((name, "kept"), ("other", "ended"))
            told = {"results": [{"session": each, "execution": "e", "branch": end} for each, end in branches]}
        writer.write(answer(json.dumps(told).encode()))

    async with answering(script) as (gateway, requests):
        yield gateway, ended


async def test_branches_without_a_name_end_with_their_session() -> None:
    async with noting() as (gateway, ended), gateway.session() as session:
        branch = await session.branch()
        await branch.branch()
        await session.branch("kept")
        await session.branch("named", keep=False)
    assert sorted(ended) == ["named", "s", "s-1", "s-1-2"]


async def test_branches_of_a_session_that_is_kept_end_too() -> None:
    async with noting() as (gateway, ended), gateway.session("s") as session:
        await session.branch()
    assert ended == ["s-1"]


async def test_a_branch_that_was_left_as_a_block_is_ended_once_more_without_harm() -> None:
    async with noting() as (gateway, ended), gateway.session() as session, await session.branch() as branch:
        assert branch.name == "s-1"
    assert ended == ["s-1", "s-1", "s"]


async def test_alternatives_are_asked_for_as_they_were_wanted() -> None:
    found = {
        "results": [
            {"session": "s-1", "execution": "e", "status": "ok", "text": "1", "branch": "kept"},
            {
                "session": "",
                "execution": "",
                "status": "cancelled",
                "branch": "refused",
                "problem": {"reason": "pool_exhausted"},
            },
        ]
    }
    async with answering(answer(json.dumps(found).encode())) as (gateway, requests):
        told = await gateway.explore("s", ["1", "2"], keep="all", timeout=5, max_text=0)
        await gateway.explore("s", ["1"])
    assert [(each.ok, each.branch) for each in told.results] == [(True, "kept"), (False, "refused")]
    assert told.results[1].problem.reason == "pool_exhausted"  # type: ignore[union-attr]
    heads, bodies = zip(*(request.split(b"\r\n\r\n") for request in requests), strict=True)
    assert heads[0].startswith(b"POST /base/v1/sessions/s/explore?max_text=0 HTTP/1.1\r\n")
    assert all(b"\r\nidempotency-key: " in head.lower() for head in heads)
    assert [json.loads(body) for body in bodies] == [
        {"cells": ["1", "2"], "timeout": 5, "keep": "all", "anyway": False},
        {"cells": ["1"], "keep": "none", "anyway": False},
    ]


async def test_alternatives_that_stay_end_with_their_session() -> None:
    async with noting() as (gateway, ended), gateway.session("s") as session:
        await session.explore(["1", "2"], keep="all")
    assert ended == ["s-1"]


async def test_checkpoints_are_asked_for_as_they_were_wanted() -> None:
    point = b'{"name": "good", "seq": 4, "cells": 2}'
    answers = iter(
        (
            answer(point, "201 Created"),
            answer(b'{"checkpoints": [' + point + b"]}"),
            answer(b'{"session": "s", "rolled_back": {"checkpoint": "good", "undone": 3}}'),
            answer(b'{"session": "s"}'),
            answer(b'{"session": "s"}'),
            answer(b"", "204 No Content"),
        )
    )

    async def in_turn(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))

    async with answering(in_turn) as (gateway, requests):
        made = await gateway.checkpoint("s", "good", anyway=True)
        assert (made.name, made.seq, made.cells) == ("good", 4, 2)
        assert await gateway.checkpoints("s") == [made]
        assert (await gateway.roll_back("s", "good")).rolled_back == Rollback(checkpoint="good", undone=3)
        await gateway.roll_back("s")
        await gateway.undo("s")
        await gateway.end_checkpoint("s", "good")
    heads, bodies = zip(*(request.split(b"\r\n\r\n") for request in requests), strict=True)
    assert [head.split(b" HTTP")[0].decode().replace("/base/v1/sessions/s/", "") for head in heads] == [
        "POST checkpoints",
        "GET checkpoints",
        "POST rollback",
        "POST rollback",
        "POST undo",
        "DELETE checkpoints/good",
    ]
    assert [json.loads(bodies[place]) for place in (0, 2, 3)] == [
        {"name": "good", "anyway": True},
        {"checkpoint": "good"},
        {},
    ]
