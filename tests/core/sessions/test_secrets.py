"""Secrets in this process: cells that print them, kernels that die over them, kernels that are adopted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cellgate.errors import Conflict, StorageError
from cellgate.execution.limits import SessionLimits
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.resumed import BACKLOG_BYTES
from cellgate.execution.run import ExecutionRun
from cellgate.identity.secrets import Secret
from cellgate.record.rows import ExecutionRow
from cellgate.record.store.sqlite.journal import Journal
from cellgate.sessions import adoption
from cellgate.sessions.adoption import MESSAGES_A_TURN, masked
from cellgate.sessions.session import Session
from cellgate.wire.models import SessionBody
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import InvalidInput, KernelStartFailed
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.channels.spool import Spooled
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.stored import KernelStore, StoredKernel
from cellgate_kernels.protocol.masking import Masker, MessageMasker
from cellgate_kernels.protocol.messages import EMPTY, Channel, Header, Message
from cellgate_kernels.testing import Behaviour, Cell, FakeKernel, virtual_time
from tests.core.world import PRINCIPAL, World
from tests.pure.record.recorded import Recorded

VALUE = "sk-1234567890"
MARK = "[secret KEY]"


class Source:
    """Secrets, as the directory has them."""

    def __init__(self) -> None:
        self.known = {(PRINCIPAL, "KEY"): Secret("KEY", VALUE), ("ada", "KEY"): Secret("KEY", VALUE)}
        self.broken = False

    async def check_secrets(self, owner: str, names: Collection[str]) -> None:
        if not all((owner, name) in self.known for name in names):
            raise InvalidInput("no such secret")

    def missing_secrets(self, owner: str, names: Collection[str]) -> Sequence[str]:
        return [name for name in names if (owner, name) not in self.known]

    def secrets(self, owner: str, names: Collection[str]) -> Sequence[Secret]:
        if self.broken:
            raise StorageError("can't be read")
        found = [self.known.get((owner, name)) for name in names]
        return [secret for secret in found if secret is not None]


def printing(code: str) -> Behaviour:
    """Print the code, each word by a message of its own; the word `dies` ends the kernel."""

    async def behave(cell: Cell) -> None:
        cell.begin()
        for word in code.split("|"):
            if word == "dies":
                await cell.kernel.taken()
                cell.kernel.die()
                return
            cell.stream(word)
        cell.reply()
        cell.idle()

    return behave


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def world(tmp_path: Path, source: Source, before: Callable[[World], None]) -> Iterator[World]:
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        before(made)
        made.run(made.open(secrets=source))
        made.launcher.program = printing
        yield made
        made.run(made.close())
        made.check()


@pytest.fixture
def before() -> Callable[[World], None]:
    """What is in the folder before the gateway starts."""
    return lambda world: None


def with_secret(world: World, key: str = "s") -> None:
    world.run(world.manager.get_or_create(PRINCIPAL, SessionBody(session=key, secrets=["KEY"])))


def printed(world: World, code: str, owner: str = PRINCIPAL) -> str:
    """What the record has of a cell's streams."""
    accepted = world.run(world.manager.execute(owner, "s", ExecuteRequest(code)))
    assert isinstance(accepted.execution, ExecutionRun)
    world.pass_time(5)
    events = world.run(recorded(world, accepted.session.row.id))
    streams = [event for event in events if event["type"] == "stream"]
    return "".join(event["text"] for event in streams if event["execution"] == accepted.execution.id)


async def recorded(world: World, session_id: int) -> list[dict[str, Any]]:
    await world.journal.commit()
    batches = world.journal.reads.event_batches(session_id)
    return [json.loads(row.body) async for batch in batches for row in batch]


def test_cells_get_the_variable_and_do_not_show_it(world: World) -> None:
    with_secret(world)
    assert world.launcher.started[-1].variables == {"KEY": VALUE}
    assert printed(world, f"a {VALUE}|!") == f"a {MARK}!"
    assert printed(world, "|".join(VALUE)) == MARK
    assert printed(world, VALUE[:5]) == VALUE[:5], "what was held back is shown at the end"
    other = world.run(world.session("other"))
    assert other.kernel is not None
    assert not other.kernel.connection.masks


def test_what_was_held_back_is_shown_when_the_kernel_dies(world: World) -> None:
    with_secret(world)
    assert printed(world, f"x|{VALUE[:5]}|dies") == f"x{VALUE[:5]}"


def test_a_kernel_started_after_a_change_gets_the_new_value_and_both_are_masked(
    world: World, source: Source
) -> None:
    with_secret(world)
    source.known[PRINCIPAL, "KEY"] = Secret("KEY", "another-value")
    printed(world, "dies")
    assert printed(world, f"{VALUE} another-value") == f"{MARK} {MARK}"
    assert world.launcher.started[-1].variables == {"KEY": "another-value"}
    source.known.clear()
    printed(world, "dies")
    assert printed(world, f"{VALUE} another-value") == f"{MARK} {MARK}"
    assert world.launcher.started[-1].variables == {}


def test_secrets_that_can_not_be_read_start_no_kernel(world: World, source: Source) -> None:
    source.broken = True
    with pytest.raises(StorageError):
        with_secret(world)
    assert world.launcher.started == []
    source.broken = False
    with_secret(world)


def test_a_resumed_session_has_its_secrets_again_or_says_what_is_gone(world: World, source: Source) -> None:
    source.known[PRINCIPAL, "OTHER"] = Secret("OTHER", "another-value")
    body = SessionBody(session="s", secrets=["KEY", "OTHER"])
    session = world.run(world.manager.get_or_create(PRINCIPAL, body))[0]
    world.run(session.end("idle_timeout"))
    del source.known[PRINCIPAL, "OTHER"]
    accepted = world.run(world.manager.execute(PRINCIPAL, "s", ExecuteRequest(VALUE)))
    world.pass_time(5)
    assert world.launcher.started[-1].variables == {"KEY": VALUE}
    events = world.run(recorded(world, accepted.session.row.id))
    assert VALUE not in json.dumps([event for event in events if event["type"] == "stream"])
    losses = [event["loss"] for event in events if event["type"] == "session" and "loss" in event]
    assert losses[-1]["missing"] == {"env": ["OTHER"]}


def test_a_session_whose_secrets_can_not_be_read_is_resumed_without_them_only_if_it_is_asked_for(
    world: World, source: Source
) -> None:
    with_secret(world)
    world.run(world.manager.delete(PRINCIPAL, "s"))
    source.broken = True
    with pytest.raises(StorageError):
        world.run(world.manager.execute(PRINCIPAL, "s", ExecuteRequest("1")))
    assert len(world.launcher.started) == 1
    assert world.manager.get(PRINCIPAL, "s") is None
    world.run(world.manager.get_or_create(PRINCIPAL, SessionBody(session="s", secrets=[])))
    assert world.launcher.started[-1].variables == {}


def test_a_resumed_session_that_names_secrets_has_only_those(world: World) -> None:
    with_secret(world)
    session = world.live("s")
    assert session is not None
    world.run(session.end("idle_timeout"))
    world.run(world.manager.get_or_create(PRINCIPAL, SessionBody(session="s", secrets=[])))
    assert world.launcher.started[-1].variables == {}


def test_nobody_gets_the_secrets_of_another(world: World) -> None:
    with pytest.raises(InvalidInput):
        world.run(world.manager.get_or_create("bob", SessionBody(secrets=["KEY"])))


# ---- kernels of a gateway before ---------------------------------------------------------------------------


def stored(secrets: tuple[str, ...]) -> StoredKernel:
    return StoredKernel(
        id="k1",
        identity="i",
        kernelspec="python3",
        limits=ResourceLimits(),
        env=(),
        workspace="",
        runtime="/nowhere",
        info={},
        environment=None,
        provisioner={"connection_info": {"key": "k"}},
        secrets=secrets,
    )


class TestAdopted:
    """A session whose kernel is alive, with a secret."""

    @pytest.fixture
    def before(self) -> Callable[[World], None]:
        async def record(folder: Path) -> None:
            journal = await Journal.open(folder / "record.sqlite3")
            session = Recorded(journal, "s")
            limits = SessionLimits().to_wire()
            session._session("idle", "resumed", limits=limits)
            session._save(limits=limits)
            await journal.close()

        return lambda world: world.run(record(world.folder))

    def adopt(self, world: World) -> list[Kernel]:
        found: list[Kernel] = []

        async def adopt(
            known: StoredKernel,
            attend: Callable[[KernelConnection], None],
            secrets: tuple[tuple[str, str], ...] = (),
        ) -> Kernel:
            kernel = await world.launcher.start(KernelProfile("python3", secrets=secrets))
            attend(kernel.connection)
            found.append(kernel)
            return kernel

        world.launcher.adopt = adopt  # type: ignore[method-assign]
        world.run(world.recovered(world.launcher, {"k1": stored(("KEY",))}))
        return found

    def test_is_masked_again(self, world: World) -> None:
        [kernel] = self.adopt(world)
        assert kernel.connection.masks
        assert kernel.profile.secrets == (("KEY", VALUE),)
        assert printed(world, f"{VALUE[:4]}|{VALUE[4:]}", "ada") == MARK

    def test_knows_the_value_before_a_change(self, world: World, source: Source) -> None:
        source.known["ada", "KEY"] = Secret("KEY", "another-value", VALUE)
        self.adopt(world)
        assert printed(world, f"{VALUE} another-value", "ada") == f"{MARK} {MARK}"

    def test_ends_if_it_may_have_a_value_that_can_not_be_read(self, world: World, source: Source) -> None:
        source.known["ada", "KEY"] = Secret("KEY", "another-value", former_lost=True)
        self.adopt(world)
        assert world.manager.get("ada", "s") is None

    def test_ends_rather_than_go_on_unmasked(self, world: World, source: Source) -> None:
        source.broken = True
        assert self.adopt(world) == []
        assert world.manager.get("ada", "s") is None


class TestAdoptedWithACell:
    """A session whose kernel went on with a cell, and said things that are in its spool."""

    @pytest.fixture
    def before(self) -> Callable[[World], None]:
        async def record(folder: Path) -> None:
            journal = await Journal.open(folder / "record.sqlite3")
            session = Recorded(journal, "s")
            limits = SessionLimits().to_wire()
            session._session("idle", "resumed", limits=limits)
            session._save(limits=limits)
            queued = {"position": 0, "code": "x", "msg_id": "cell", "timeout": 60.0}
            first = session.log.append("queued", "e1", queued)
            session.log.append("started", "e1", {"execution_count": 1, "code": "x"})
            row = ExecutionRow(
                session.row.id, "e1", 1, "cell", first["seq"], None, None, first["at"], None, None
            )
            session.log.save_execution(row)
            await journal.close()

        return lambda world: world.run(record(world.folder))

    def adopted(
        self, world: World, monkeypatch: pytest.MonkeyPatch, spooled: list[str], arriving: list[str]
    ) -> FakeKernel:
        """The kernel, adopted with these texts in its spool; `arriving`: what its socket has by then."""
        spool = [Spooled(0, said("busy", "status", {"execution_state": "busy"}))]
        spool.append(Spooled(0, said("begun", "execute_input", {"execution_count": 1, "code": "x"})))
        spool += [Spooled(number, printed_as(text, text)) for number, text in enumerate(spooled, 1)]
        found: list[FakeKernel] = []

        async def adopt(
            known: StoredKernel,
            attend: Callable[[KernelConnection], None],
            secrets: tuple[tuple[str, str], ...] = (),
        ) -> Kernel:
            kernel = await world.launcher.start(KernelProfile("python3", secrets=secrets))
            attend(kernel.connection)
            for text in arriving:
                kernel.connection.fan.tell(printed_as(text, text))
            found.append(kernel)
            return kernel

        monkeypatch.setattr(world.launcher, "adopt", adopt)
        monkeypatch.setattr(adoption, "read_spool", lambda folder, key: spool)
        world.run(world.recovered(world.launcher, {"k1": stored(("KEY",))}))
        world.pass_time(1)
        return found[0]

    def ended(self, world: World, kernel: FakeKernel, *texts: str) -> str:
        """What the record has of the cell, once it has printed these too and ended."""
        for text in texts:
            kernel.connection.fan.tell(printed_as(text, text))
        kernel.connection.fan.tell(said("reply", "execute_reply", {"status": "ok", "execution_count": 1}))
        kernel.connection.fan.tell(said("idle", "status", {"execution_state": "idle"}))
        world.pass_time(5)
        session = world.manager.get("ada", "s")
        assert session is not None
        events = [each for each in world.run(recorded(world, session.row.id)) if each["execution"] == "e1"]
        assert events[-1]["type"] == "finished"
        return "".join(each["text"] for each in events if each["type"] == "stream")

    def test_a_cell_that_nobody_wants_any_more_is_interrupted_and_what_it_says_is_read(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """More than a backlog holds had come, and the cell was cancelled before its run began."""
        opened = Session.open

        async def open_and_stop(session: Session, *args: Any) -> None:
            await opened(session, *args)
            session.stop("e1")

        monkeypatch.setattr(Session, "open", open_and_stop)
        flood = [f"{number:0{MIB}}" for number in range(BACKLOG_BYTES // MIB + 1)]
        kernel = self.adopted(world, monkeypatch, ["a"], flood)
        assert "interrupt_request" in kernel.requests
        cell = b'{"msg_id":"cell","msg_type":"execute_request"}'
        parent = structs.replace(said("cell", "status", {}), header_frame=cell)
        world.do(kernel.say, Channel.IOPUB, "stream", {"name": "stdout", "text": "b"}, parent)
        assert self.ended(world, kernel).endswith("b")

    @pytest.mark.parametrize(
        ("spooled", "arriving", "later"),
        [
            (["a", VALUE[:5]], [], [VALUE[5:], "b"]),
            (["a"], [VALUE[:5]], [VALUE[5:], "b"]),
            (["a", VALUE[:5]], [VALUE[5:]], ["b"]),
            (["a", VALUE[:5]], [VALUE[:5], VALUE[5:]], ["b"]),
            (["a", VALUE[:5]], [VALUE[:5]], [VALUE[5:], "b"]),
            (["a", VALUE[:5]], [], [VALUE[:5], VALUE[5:], "b"]),
        ],
    )
    def test_a_value_in_halves_is_masked_once_wherever_the_halves_are(
        self,
        world: World,
        monkeypatch: pytest.MonkeyPatch,
        spooled: list[str],
        arriving: list[str],
        later: list[str],
    ) -> None:
        kernel = self.adopted(world, monkeypatch, spooled, arriving)
        assert self.ended(world, kernel, *later) == f"a{MARK}b"

    def test_what_was_held_back_and_became_no_value_is_shown_once(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernel = self.adopted(world, monkeypatch, ["a", VALUE[:5]], ["a", VALUE[:5]])
        assert self.ended(world, kernel) == f"a{VALUE[:5]}"

    def test_what_was_held_back_is_shown_when_the_kernel_dies(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernel = self.adopted(world, monkeypatch, ["a", VALUE[:5]], [])
        kernel.die()
        assert self.ended(world, kernel) == f"a{VALUE[:5]}"

    def test_a_long_spool_takes_turns_and_what_comes_meanwhile_is_in_its_place(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Everybody else waits for a second or two if it is read in one go."""
        spooled = [f"{number} " for number in range(500)]
        meanwhile = [f"{number} " for number in range(500, 700)]
        coming = list(meanwhile)
        heard = [0]
        process = ExecutionRun.receive

        def receive(run: ExecutionRun, message: Message) -> None:
            heard[-1] += 1
            process(run, message)
            if coming and run._kernel is not None:
                text = coming.pop(0)
                run._kernel.connection.fan.tell(printed_as(text, text))

        async def count_turns() -> None:
            while sum(heard) < len(spooled) + len(meanwhile):
                heard.append(0)
                await asyncio.sleep(0)

        monkeypatch.setattr(ExecutionRun, "receive", receive)
        counting = world.loop.create_task(count_turns())
        kernel = self.adopted(world, monkeypatch, spooled, [])
        assert self.ended(world, kernel, "last") == "".join([*spooled, *meanwhile, "last"])
        world.run(counting)
        assert max(heard) <= 2 * MESSAGES_A_TURN


def said(name: str, msg_type: str, content: dict[str, Any]) -> Message:
    """What a kernel has said of the cell, under this id."""
    channel = Channel.SHELL if msg_type == "execute_reply" else Channel.IOPUB
    frame = json.dumps(content).encode()
    header = Header(name, msg_type)
    return Message(channel, EMPTY, EMPTY, EMPTY, frame, (), header, Header("cell", "execute_request"))


def printed_as(name: str, text: str) -> Message:
    return said(name, "stream", {"name": "stdout", "text": text})


def test_a_kernel_is_stored_without_values(tmp_path: Path) -> None:
    store = KernelStore(tmp_path / "kernels")
    store.save(stored(("KEY",)))
    assert store.load()["k1"].secrets == ("KEY",)
    profile = KernelProfile("python3", secrets=(("KEY", VALUE),))
    assert VALUE not in repr(profile)
    assert KernelStartFailed(repr(profile)).message.count(VALUE) == 0


def test_a_spool_is_masked_and_keeps_its_places() -> None:
    def message(msg_type: str, content: dict[str, object], channel: Channel = Channel.IOPUB) -> Message:
        frame = json.dumps(content).encode()
        return Message(
            channel, EMPTY, EMPTY, EMPTY, frame, (), Header("id", msg_type), Header("cell", "execute_request")
        )

    texts = ["a", VALUE[:5], VALUE[5:], VALUE[:3]]
    spool = [
        Spooled(place, message("stream", {"name": "stdout", "text": text}))
        for place, text in enumerate(texts)
    ]
    spool.append(Spooled(4, message("display_data", {"data": {"text/plain": VALUE}, "metadata": {}})))
    found = masked(spool, MessageMasker(Masker([("KEY", VALUE)])))
    told = [(each.before, each.message.content().get("text")) for each in found]
    assert told == [(0, "a"), (1, ""), (2, MARK), (3, ""), (4, VALUE[:3]), (4, None)]
    assert found[-1].message.content()["data"] == {"text/plain": MARK}


def test_a_branch_masks_all_that_its_parent_was_given(world: World, source: Source) -> None:
    """Its memory has the values of the parent's kernel, whatever has become of the secret."""
    with_secret(world)
    source.known.clear()
    branch = world.run(world.manager.branch(PRINCIPAL, "s", "b", BranchSpec()))
    accepted = world.run(world.manager.execute(PRINCIPAL, "b", ExecuteRequest(f"a {VALUE}|!")))
    world.pass_time(5)
    assert isinstance(accepted.execution, ExecutionRun)
    events = world.run(recorded(world, branch.row.id))
    assert "".join(event["text"] for event in events if event["type"] == "stream") == f"a {MARK}!"
    assert branch.row.environment["secrets"] == ["KEY"]


def test_a_session_without_the_secret_that_is_asked_for_is_a_conflict(world: World, source: Source) -> None:
    source.known[PRINCIPAL, "OTHER"] = Secret("OTHER", "o" * 20)
    with_secret(world)
    session = world.run(world.session("s"))
    world.run(world.session("without"))

    def ask(key: str, secrets: list[str], *, exact: bool = True) -> object:
        body = SessionBody(session=key, secrets=secrets)
        return world.run(world.manager.get_or_create(PRINCIPAL, body, exact=exact))

    assert ask("s", ["KEY"]) == ask("s", []) == (session, False)
    with pytest.raises(Conflict, match=r"exists with other secrets \(OTHER\);"):
        ask("s", ["KEY", "OTHER"])
    with pytest.raises(Conflict, match=r"secrets \(KEY\)"):
        ask("without", ["KEY"])
    # As those ask who do not say all that they want.
    assert ask("s", ["KEY", "OTHER"], exact=False) == (session, False)
