"""Sessions with a network: who gets one, and what becomes of it when kernels and gateways come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellgate.egress.policy import EgressPolicy
from cellgate.egress.shared import Egress
from cellgate.errors import Conflict, NetworkNotAllowed
from cellgate.execution.cell_record import Traffic
from cellgate.identity.host_patterns import parse_host_pattern
from cellgate.identity.secrets import Secret
from cellgate.sessions.hosts import SessionConnections
from cellgate.sessions.secrets import SessionSecrets
from cellgate.sessions.session import Session
from cellgate.wire.answers import SessionModel
from cellgate.wire.events import Missing
from cellgate.wire.models import SessionBody
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.stored import StoredKernel
from cellgate_kernels.launch.base import EGRESS_SOCKET
from cellgate_kernels.testing import FakeKernel, virtual_time
from tests.core.world import PRINCIPAL, World

POLICY = EgressPolicy((parse_host_pattern("h.example:443"),))
ELSEWHERE = b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n"


class Networked(World):
    """A world whose principal may have a network, until `policy` is None."""

    policy: EgressPolicy | None = POLICY
    egress: Egress


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Networked]:
    """Afterwards nothing is left, and the record is whole."""
    lane = Lane("lookups", 1)
    with virtual_time() as loop:
        made = Networked(loop, tmp_path)
        made.egress = Egress(lane, lambda _: made.policy)
        made.run(made.open(egress=made.egress))
        yield made
        made.run(made.close())
        made.check()
    lane.close()


def create(world: World, **fields: Any) -> SessionModel:
    """The session, created or resumed."""
    session, _ = world.run(world.manager.get_or_create(PRINCIPAL, SessionBody(session="s", **fields)))
    return session.to_wire()


def live(world: World) -> Session:
    """The session."""
    session = world.live("s")
    assert session is not None
    return session


def folder_of(world: World) -> Path:
    """Where the session's kernel finds its proxy."""
    kernel = world.kernel("s")
    assert kernel is not None
    assert kernel.egress is not None
    return kernel.egress


async def ask(folder: Path) -> bytes:
    """The first line of the proxy's answer."""
    reader, writer = await asyncio.open_unix_connection(str(folder / EGRESS_SOCKET))
    writer.write(ELSEWHERE)
    line = await reader.readline()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return line.strip()


def connections(world: World) -> list[dict[str, Any]]:
    """The recorded ones."""
    world.run(world.journal.commit())
    world.run(world.journal.applied())
    found = [event for events in world.events().values() for event in events]
    return [event for event in found if event["type"] == "connection"]


REFUSED = b"HTTP/1.1 403 Forbidden (host_not_allowed)"


def test_a_session_has_no_network_unless_it_asks_for_one(world: Networked) -> None:
    assert create(world).network == "none"
    kernel = world.kernel("s")
    assert kernel is not None
    assert kernel.egress is None


def test_without_a_policy_there_is_none_and_nothing_is_created(world: Networked) -> None:
    world.policy = None
    with pytest.raises(NetworkNotAllowed, match="leave `network` out"):
        create(world, network="allow")
    world.policy = EgressPolicy()
    with pytest.raises(NetworkNotAllowed):
        create(world, network="allow")
    world.policy = POLICY
    world.egress.unfit = "kernels have one"
    with pytest.raises(InvalidInput, match="kernels have one"):
        create(world, network="allow")
    assert world.live("s") is None
    assert world.launcher.started == []
    assert world.manager.terms.reachable(PRINCIPAL) is None


def test_the_proxy_answers_its_kernel_and_refusals_are_recorded(world: Networked) -> None:
    assert create(world, network="allow").network == "allow"
    assert world.manager.terms.reachable(PRINCIPAL) == ["h.example:443"]
    assert world.run(ask(folder_of(world))) == REFUSED
    (event,) = connections(world)
    assert (event["host"], event["verdict"], event["during"]) == ("evil.example", "refused", None)


def test_a_connection_names_the_cell_that_ran(world: Networked) -> None:
    create(world, network="allow")
    asked = world.ask("s", "slow 5")
    world.pass_time(1)
    world.run(ask(folder_of(world)))
    world.pass_time(100)
    assert asked.run is not None
    assert [event["during"] for event in connections(world)] == [asked.run.id]
    assert [event["execution"] for event in connections(world)] == [None]


def test_a_secret_in_a_hosts_name_is_masked() -> None:
    class Source:
        def secrets(self, owner: str, names: Collection[str]) -> list[Secret]:
            return [Secret(name, "S3cret") for name in names]

    recorded: list[dict[str, Any]] = []
    log = SimpleNamespace(append=lambda kind, execution, fields: recorded.append(fields))
    secrets = SessionSecrets(cast("Any", Source()), PRINCIPAL, ["KEY"])
    secrets.current()
    connections = SessionConnections(
        cast("Any", SimpleNamespace(log=log)), cast("Any", None), secrets, cast("Any", None), Traffic()
    )
    connections.note("connection", {"host": "s3cret.example", "port": 443, "address": None})
    connections.note("connections", {"allowed": 1, "hosts": ["x.s3cret.example:443"]})
    assert recorded == [
        {"host": "[secret KEY].example", "port": 443, "address": None},
        {"allowed": 1, "hosts": ["x.[secret KEY].example:443"]},
    ]


def test_a_session_keeps_the_network_that_it_has(world: Networked) -> None:
    create(world, network="allow")
    assert create(world).network == "allow"
    assert create(world, network="allow").network == "allow"
    with pytest.raises(Conflict, match="exists with network 'allow'"):
        create(world, network="none")


def test_a_session_without_a_network_gets_none_later(world: Networked) -> None:
    create(world)
    assert create(world, network="none").network == "none"
    with pytest.raises(Conflict, match="exists with network 'none'"):
        create(world, network="allow")


def restart(world: World) -> None:
    world.restart(live(world))
    world.pass_time(1)


def die(world: World) -> None:
    kernel = world.kernel("s")
    assert kernel is not None
    world.do(kernel.die)
    world.ask("s", "hello")
    world.pass_time(60)


@pytest.mark.parametrize("lose", [restart, die])
def test_the_next_kernel_has_it_again(world: Networked, lose: Callable[[World], None]) -> None:
    create(world, network="allow")
    first = folder_of(world)
    lose(world)
    assert folder_of(world) != first
    assert world.run(ask(folder_of(world))) == REFUSED
    assert not first.exists()


def test_a_resumed_session_has_it_again_if_it_still_may(world: Networked) -> None:
    create(world, network="allow")
    world.run(world.manager.delete(PRINCIPAL, "s"))
    assert create(world).network == "allow"
    assert world.run(ask(folder_of(world))) == REFUSED
    world.run(world.manager.delete(PRINCIPAL, "s"))
    assert create(world, network="none").network == "none"
    world.run(world.manager.delete(PRINCIPAL, "s"))
    assert create(world).network == "none"


def test_a_resumed_session_says_that_it_has_none_any_more(world: Networked) -> None:
    create(world, network="allow")
    world.run(world.manager.delete(PRINCIPAL, "s"))
    world.policy = None
    model = create(world)
    assert (model.network, model.missing) == ("none", Missing(network=True))


def test_a_policy_that_goes_applies_at_once(world: Networked) -> None:
    create(world, network="allow")
    world.policy = None
    assert world.run(ask(folder_of(world))) == b"HTTP/1.1 403 Forbidden (no_policy)"


class Adopting:
    """A launcher that adopts the kernels of a world's."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def adopt(
        self, stored: StoredKernel, attend: Callable[[Any], None], secrets: tuple[tuple[str, str], ...] = ()
    ) -> FakeKernel:
        """The kernel, as its new owner."""
        (kernel,) = (kernel for kernel in self._world.launcher.kernels if kernel.id == stored.id)
        assert kernel.profile.egress is stored.egress
        kernel.connection = kernel._opened(None)
        attend(kernel.connection)
        return kernel


def test_an_adopted_kernel_finds_a_proxy_in_the_same_place(world: Networked) -> None:
    create(world, network="allow")
    session = live(world)
    kernel = world.kernel("s")
    assert kernel is not None
    stored = StoredKernel(
        *(kernel.id, "", "python3", kernel.profile.limits, kernel.profile.env),
        *(str(kernel.workspace), str(world.folder), {}, None, {"connection_info": {"key": ""}}),
        egress=kernel.profile.egress,
    )
    folder = folder_of(world)

    async def recover() -> tuple[int, int]:
        await session.begin_end("", keep_files=True, keep_kernel=True)
        await world.journal.commit()
        with pytest.raises(ConnectionRefusedError):
            await ask(folder)
        return await world.recovered(Adopting(world), {kernel.id: stored})

    assert world.run(recover()) == (1, 0)
    assert folder_of(world) == folder
    assert live(world).to_wire().network == "allow"
    assert world.run(ask(folder)) == REFUSED


@pytest.mark.parametrize("gone", ["ended", "restarted"])
def test_branches_have_their_sandboxs_network_whoever_leaves_it(world: Networked, gone: str) -> None:
    create(world, network="allow")
    folder = folder_of(world)
    for key in ("b", "c"):
        branch = world.run(world.manager.branch(PRINCIPAL, "s", key, BranchSpec()))
        assert branch.to_wire().network == "allow"
    assert world.run(ask(folder)) == REFUSED
    assert [event["session"] for event in connections(world)] == ["s"]
    session = live(world)
    world.run(session.end("deleted", keep_files=False) if gone == "ended" else _restarted(session))
    assert world.run(ask(folder)) == REFUSED
    assert [event["session"] for event in connections(world)][-1] in {"b", "c"}
    if gone == "restarted":
        assert folder_of(world) != folder
        assert world.run(ask(folder_of(world))) == REFUSED
        assert connections(world)[0]["session"] == "s"


async def _restarted(session: Session) -> None:
    await session.restart()
