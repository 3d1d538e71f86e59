"""The machine of sessions as one class, and what reads its decisions back from a log."""

from __future__ import annotations

import inspect
import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate.server.log import formatter
from cellgate.sessions import decisions
from cellgate.sessions.decisions import BEGINS, MOST_FACTS, STIMULI, DecisionReplay, machine_of, replay
from cellgate.sessions.machine import MOST_FAULTS, MOST_REVIVALS, Occupancy, Occupant, SessionMachine, Step
from cellgate.sessions.queue import ExecutionQueue, SessionRuns
from tests.support.decisions import RecordedDecisions
from tests.support.examples import examples

QUIET = {"gave_up": False, "broken": False, "kernel": True, "exited": False, "transient": False}
READY = {"alive": True, "prepared": False, "turn": True, "due": False}
AT_REST = {"packages": False, "clients": False, "programs": False, "ports": False}


@pytest.fixture
def recorded() -> Iterator[RecordedDecisions]:
    found = RecordedDecisions()
    found.start()
    yield found
    found.stop()


def a_cell(machine: SessionMachine, **facts: bool) -> list[Step]:
    """A cell that is sent at once, from its request to the worker's rest."""
    return [
        machine.asked(room=1),
        machine.submitted(**READY),
        machine.free(due=False),
        machine.ran(recorded=False, **{**QUIET, **facts}),
        machine.ran(recorded=True, **{**QUIET, **facts}),
        machine.settled(kernel=True, exited=False, clients=False),
        machine.free(due=False),
    ]


# ---- the machine -------------------------------------------------------------------------------------------


def test_a_quick_cell_is_sent_at_once_and_leaves_nothing() -> None:
    machine = SessionMachine()
    sent = [Step.GO, Step.SEND, Step.GO_ON, Step.NOTHING, Step.NOTHING, Step.NOTHING, Step.WAIT]
    assert a_cell(machine) == sent
    assert (machine.there, machine.busy) == (0, False)


@pytest.mark.parametrize("fact", ["alive", "prepared", "turn", "due"])
def test_a_cell_that_can_t_be_sent_waits_and_the_room_is_counted(fact: str) -> None:
    machine = SessionMachine()
    assert machine.submitted(**{**READY, fact: not READY[fact]}) is Step.QUEUE
    assert [machine.asked(room=room) for room in (1, 2)] == [Step.REFUSE_FULL, Step.GO]
    assert machine.free(due=True) is Step.KEEP
    assert machine.free(due=False) is Step.LOOK
    assert machine.looked(late=False, turn=False) is Step.STAND_IN_LINE
    assert machine.looked(late=False, turn=True) is Step.RUN
    assert (machine.waiting, machine.there) == (0, Occupant.CELL)


def test_a_cell_that_is_late_is_finished_before_a_restart_and_that_before_a_cell() -> None:
    machine = SessionMachine()
    for _ in range(2):
        machine.submitted(**{**READY, "alive": False})
    assert machine.missed(alive=False, checkpoints=False) is Step.RESTART
    assert machine.looked(late=True, turn=False) is Step.TIME_OUT
    assert [machine.free(due=False) for _ in range(3)] == [Step.FINISH, Step.RESTART, Step.LOOK]


def test_nothing_begins_while_it_is_held_but_ends_are_recorded() -> None:
    machine = SessionMachine()
    machine.came(occupant=Occupant.HELD)
    machine.came(occupant=Occupant.HELD)
    assert machine.submitted(**READY) is Step.QUEUE
    assert machine.asked_beside(wanted=True, alive=True) is Step.QUEUE
    assert machine.restart_wanted() is Step.RESTART
    assert [machine.free(due=True) for _ in range(2)] == [Step.FINISH, Step.WAIT]
    machine.went(occupant=Occupant.HELD)
    assert machine.free(due=False) is Step.WAIT
    machine.went(occupant=Occupant.HELD)
    assert machine.free(due=False) is Step.RESTART


def test_a_restart_insists_when_a_cell_is_given_up_for_it() -> None:
    running, beside = SessionMachine(), SessionMachine()
    running.submitted(**READY)
    assert beside.asked_beside(wanted=True, alive=True) is Step.BESIDE
    assert [beside.submitted_beside(turn=turn) for turn in (False, True)] == [Step.QUEUE, Step.BESIDE]
    assert [machine.restart_wanted() for machine in (SessionMachine(), running, beside)] == [
        Step.RESTART,
        Step.INSIST,
        Step.INSIST,
    ]
    told = [beside.ran_beside(gave_up=gave_up, same=True) for gave_up in (False, True)]
    assert told == [Step.NOTHING, Step.RESTART]
    assert beside.ran_beside(gave_up=True, same=False) is Step.NOTHING
    beside.went(occupant=Occupant.BESIDE)
    assert not beside.there & Occupant.BESIDE


def test_two_cells_beside_others_of_one_msg_id_are_counted_apart() -> None:
    machine = SessionMachine()
    runs = SessionRuns(ExecutionQueue(), None, machine)  # type: ignore[arg-type] # it makes none here
    cells: list[Any] = [SimpleNamespace(id=number, msg_id="chosen") for number in "ab"]
    for cell in cells:
        assert machine.submitted_beside(turn=True) is Step.BESIDE
        runs.begin_beside(cell)
    assert [*runs.running] == cells
    runs.end_beside(cells[0])
    assert ([*runs.running], machine.busy) == (cells[1:], True)
    runs.end_beside(cells[1])
    assert ([*runs.running], machine.busy) == ([], False)


@pytest.mark.parametrize(
    ("facts", "before", "after"),
    [
        ({}, Step.NOTHING, Step.NOTHING),
        ({"gave_up": True}, Step.REPLACE, Step.NOTHING),
        ({"gave_up": True, "transient": True}, Step.GIVE_UP, Step.NOTHING),
        ({"exited": True}, Step.NOTE_DEATH, Step.NOTHING),
        ({"gave_up": True, "kernel": False}, Step.NOTHING, Step.NOTHING),
        ({"gave_up": True, "broken": True}, Step.NOTHING, Step.REPLACE),
        ({"exited": True, "broken": True}, Step.NOTHING, Step.NOTE_DEATH),
    ],
)
def test_what_becomes_of_a_kernel_after_a_cell(facts: dict[str, bool], before: Step, after: Step) -> None:
    machine = SessionMachine()
    machine.submitted(**READY)
    machine.submitted(**READY)
    assert machine.waiting == 1
    found = [machine.ran(recorded=recorded, **{**QUIET, **facts}) for recorded in (False, True)]
    assert found == [before, after]
    assert machine.waiting == (found == [Step.NOTHING, Step.NOTHING]), "what waits was sent for a lost state"


def test_a_dead_kernel_comes_back_for_clients_a_few_times_unless_it_can_be_gone_back_to() -> None:
    machine = SessionMachine()
    exits = [(same, clients) for same in (False, True) for clients in (False, True)]
    assert [machine.kernel_exited(same=same, clients=clients) for same, clients in exits] == [
        *(Step.NOTHING, Step.NOTHING),
        *(Step.NOTE_DEATH, Step.NOTE_AND_REVIVE),
    ]
    assert machine.missed(alive=True, checkpoints=False) is Step.NOTHING
    assert machine.missed(alive=False, checkpoints=True) is Step.TELL_DEAD
    for _ in range(MOST_REVIVALS):
        assert machine.missed(alive=False, checkpoints=False) is Step.RESTART
        assert machine.missed(alive=False, checkpoints=False) is Step.NOTHING, "one waits"
        assert machine.free(due=False) is Step.RESTART
    assert machine.missed(alive=False, checkpoints=False) is Step.NOTHING
    a_cell(machine)
    assert machine.missed(alive=False, checkpoints=False) is Step.RESTART


def test_too_many_faults_without_a_cell_end_a_session() -> None:
    machine = SessionMachine()
    for _ in range(MOST_FAULTS):
        assert machine.failed(broken=False) is Step.BREAK_OFF
        assert machine.broken_off() is Step.RESUME
    a_cell(machine)
    for _ in range(MOST_FAULTS):
        machine.failed(broken=False)
        assert machine.broken_off() is Step.RESUME
    machine.failed(broken=False)
    assert machine.broken_off() is Step.END
    assert machine.ended(keep_kernel=False) is Step.END
    assert machine.ended(keep_kernel=True) is Step.NOTHING
    assert machine.broken_off() is Step.NOTHING


def test_a_cell_whose_end_fails_too_is_given_up() -> None:
    machine = SessionMachine()
    machine.submitted(**READY)
    assert machine.failed(broken=False) is Step.BREAK_OFF
    assert machine.misheard(connected=True, gave_up=True) is Step.CLOSE
    assert machine.resumed(broken=True) is Step.WRAP_UP
    assert machine.failed(broken=True) is Step.FAIL_CELL
    assert machine.misheard(connected=False, gave_up=False) is Step.NOTHING
    assert machine.misheard(connected=True, gave_up=True) is Step.RESTART
    assert machine.resumed(broken=True) is Step.GO


def test_an_end_takes_what_is_queued_with_it_and_refuses_the_rest() -> None:
    machine = SessionMachine()
    machine.restart_wanted()
    machine.submitted(**READY)
    assert machine.ended(keep_kernel=False) is Step.END
    assert machine.free(due=True) is Step.LEAVE
    assert machine.asked(room=9) is Step.REFUSE_ENDING
    machine.cancelled()
    assert [machine.drained() for _ in range(3)] == [Step.FINISH, Step.RESTART, Step.NOTHING]
    assert not machine.busy


# ---- the log -----------------------------------------------------------------------------------------------


def a_life(machine: SessionMachine) -> None:
    """Something of all: cells, a line, a restart, a hold, faults, deaths, the end."""
    a_cell(machine)
    machine.idled(**AT_REST)
    machine.came(occupant=Occupant.HELD)
    machine.asked(room=1)
    machine.submitted(**READY)
    machine.asked(room=1)
    machine.went(occupant=Occupant.HELD)
    machine.free(due=False)
    machine.looked(late=False, turn=True)
    machine.restart_wanted()
    machine.ran(recorded=False, **{**QUIET, "gave_up": True})
    machine.ran(recorded=True, **{**QUIET, "gave_up": True})
    machine.free(due=True)
    machine.checkpoint_due(alive=True, shared=False)
    machine.free(due=False)
    machine.kernel_exited(same=True, clients=True)
    machine.missed(alive=False, checkpoints=True)
    machine.missed(alive=False, checkpoints=False)
    machine.free(due=False)
    machine.submitted(**READY)
    machine.submitted(**READY)
    machine.failed(broken=False)
    machine.broken_off()
    machine.free(due=False)
    machine.ran(recorded=True, **{**QUIET, "broken": True})
    machine.free(due=False)
    machine.free(due=False)
    machine.ended(keep_kernel=False)
    machine.asked(room=1)
    machine.drained()


@pytest.mark.parametrize("form", ["plain", "text", "colors", "json"])
def test_a_log_replays_whatever_form_it_has_and_whatever_stands_between(
    recorded: RecordedDecisions, form: str
) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    if form != "plain":
        handler.setFormatter(formatter(json=form == "json", colors=form == "colors"))
    decisions.logger.addHandler(handler)
    machines = [machine_of(7), machine_of(8)]
    for machine in machines:
        a_life(machine)
        decisions.logger.debug("Nothing about a decision 7-beef:1 at all")
    decisions.logger.removeHandler(handler)
    found = replay(stream.getvalue().splitlines())
    assert (found.difference, found.lives, found.skipped) == (None, 2, 0)
    assert found.decisions == len(recorded.lines) - 4
    assert replay(recorded.lines).decisions == found.decisions


def test_a_line_has_numbers_and_words_of_the_machine_alone(recorded: RecordedDecisions) -> None:
    a_life(machine_of(7))
    words = {*STIMULI, *map(str, Step), *(each.name.lower() for each in Occupant), "begins"}
    for line in recorded.lines:
        head, *rest = line.split()
        assert head == "decision"
        assert re.fullmatch(r"7-[0-9a-f]{8}:[0-9]+", rest[0])
        told = [word.rpartition("=")[2] for word in rest[1:] if word != "->"]
        assert all(word in words or word.isdigit() for word in told), line


def test_without_debugging_a_session_has_a_machine_that_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, decisions.logger.name)
    assert type(machine_of(1)) is SessionMachine


def test_the_same_answer_about_the_idle_time_is_logged_once(recorded: RecordedDecisions) -> None:
    machine = machine_of(1)
    for clients in (False, False, True, True, False):
        machine.idled(**{**AT_REST, "clients": clients})
    assert [line.rpartition(" ")[2] for line in recorded.lines[1:]] == ["idle", "in_use", "idle"]


def test_each_public_method_that_returns_a_step_is_a_stimulus_with_facts_a_line_has_room_for() -> None:
    assert {"submitted", "free", "came", "ended", "idled"} <= set(STIMULI)
    for name, facts in STIMULI.items():
        assert len(facts) <= MOST_FACTS
        kinds = {each.kind for each in inspect.signature(getattr(SessionMachine, name)).parameters.values()}
        assert kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


def test_a_line_that_is_missing_is_missed(recorded: RecordedDecisions) -> None:
    a_life(machine_of(1))
    for at in range(1, len(recorded.lines) - 1):
        difference = replay(recorded.lines[:at] + recorded.lines[at + 1 :]).difference
        assert difference is not None
        assert (difference.line, difference.why) == (at + 1, "1 lines are missing before it")


@pytest.mark.parametrize(
    "name", ["came", "went", "submitted", "free", "looked", "restart_wanted", "failed", "ended"]
)
def test_a_stimulus_that_nobody_told_the_machine_is_found_by_what_follows(
    recorded: RecordedDecisions, name: str
) -> None:
    """The lines are numbered as if it had never been, as a mistake in the product would have it."""
    a_life(machine_of(1))
    texts = [line.split(maxsplit=2)[2] for line in recorded.lines]
    # The last of them that changed anything.
    at = max(n for n, text in enumerate(texts) if text.split()[0] == name and not text.endswith("-> wait"))
    told = [f"decision 1-a:{n} {text}" for n, text in enumerate(texts)]
    assert replay(told).difference is None
    told = [f"decision 1-a:{n} {text}" for n, text in enumerate(texts[:at] + texts[at + 1 :])]
    difference = replay(told).difference
    assert difference is not None
    assert difference.line > at
    assert " makes " in difference.why


@pytest.mark.parametrize("odd", ["\x1b[31mfree", "came\x1b[0m", "fr\u202eee", "came:x"])
def test_no_word_of_a_forged_line_reaches_a_terminal(odd: str) -> None:
    lines = [
        f"decision 1-a:0 {BEGINS}",
        f"decision 1-a:1 {odd} due=0 -> wait",
        f"decision 1-a:1 free {odd}=0 -> wait",
    ]
    assert replay(lines) == DecisionReplay(1, 0, 0, None)


def always(step: Step) -> Callable[..., Step]:
    return lambda machine, **facts: step


def no_count(machine: SessionMachine, **facts: Any) -> Step:
    """It decides, and forgets what it decided."""
    before = dict(vars(machine))
    step = SUBMITTED(machine, **facts)
    vars(machine).update(before)
    return step


SUBMITTED = SessionMachine.submitted
MISTAKES: list[tuple[type, str, Callable[..., Step]]] = [
    (SessionMachine, "submitted", always(Step.QUEUE)),
    (SessionMachine, "submitted", no_count),
    (Occupancy, "asked", always(Step.GO)),
    (SessionMachine, "looked", always(Step.STAND_IN_LINE)),
    (SessionMachine, "restart_wanted", always(Step.RESTART)),
    (SessionMachine, "ran", always(Step.NOTHING)),
    (SessionMachine, "missed", always(Step.RESTART)),
    (SessionMachine, "checkpoint_due", always(Step.SKIP)),
    (SessionMachine, "kernel_exited", always(Step.NOTE_DEATH)),
    (Occupancy, "idled", always(Step.IN_USE)),
    (SessionMachine, "ended", always(Step.DETACH)),
    (Occupancy, "went", always(Step.NOTHING)),
]


@pytest.mark.parametrize(("owner", "name", "mistake"), MISTAKES)
def test_a_mistake_in_a_decision_is_found(
    owner: type,
    name: str,
    mistake: Callable[..., Step],
    recorded: RecordedDecisions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_life(machine_of(1))
    assert replay(recorded.lines).difference is None
    monkeypatch.setattr(owner, name, mistake)
    assert replay(recorded.lines).difference is not None


FIELD = """
2026-11-29T10:00:00Z [info     ] A session begins [cellgate.sessions.state] cause=created session=s
2026-11-29T10:00:00Z [debug    ] decision 41-0badcafe:0 begins  [cellgate.sessions.decisions]
2026-11-29T10:00:01Z [debug    ] decision 41-0badcafe:1 asked room=32 -> go [cellgate.sessions.decisions]
2026-11-29T10:00:01Z [debug    ] decision 41-0badcafe:2 submitted alive=1 prepared=0 turn=1 due=0 -> send [x]
2026-11-29T10:00:01Z [debug    ] POST /v1/sessions/decision%2041/execute 200 3.1 ms [cellgate.access]
2026-11-29T10:00:02Z [debug    ] decision 41-0badcafe:3 submitted alive=1 prepared=0 turn=1 due=0 -> send [x]
""".splitlines()
"""A fault as a log would have it: two cells were sent at once."""


MENDED = [[*FIELD[:-1], FIELD[-1].replace("-> send", "-> queue")]]
"""Logs of faults up to the first wrong step, with the step as it should have been."""


@pytest.mark.parametrize("lines", MENDED)
def test_a_fault_of_the_field_does_not_come_back(lines: list[str]) -> None:
    assert replay(lines).difference is None


def test_the_first_step_that_differs_is_told_with_its_line_and_session() -> None:
    found = replay(FIELD)
    assert (found.lives, found.decisions, found.skipped) == (1, 3, 0)
    assert str(found.difference) == (
        "Line 7, session 41-0badcafe:"
        " `submitted alive=1 prepared=0 turn=1 due=0` makes `queue`, and the log has `send`"
    )
    found = replay(line for line in FIELD if "begins " not in line)
    assert (found.lives, found.skipped, found.difference) == (0, 3, None)


def test_the_program_tells_what_a_log_comes_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(FIELD)))
    assert decisions.main() == 1
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(FIELD[:-1])))
    assert decisions.main() == 0
    first, difference, second = capsys.readouterr().out.splitlines()
    assert (first, second) == (
        "1 sessions, 3 decisions; 0 without a beginning",
        "1 sessions, 2 decisions; 0 without a beginning",
    )
    assert difference.startswith("Line 7,")


@pytest.mark.parametrize(
    "line",
    [
        "decision 1-a:1 unknown -> go",
        "decision 1-a:1 __init__ -> go",
        "decision 1-a:1 forbids -> go",
        "decision 1-a:1 submitted alive=1 -> send",
        "decision 1-a:1 submitted alive=1 prepared=0 turn=1 due=0 more=1 -> send",
    ],
)
def test_a_stimulus_of_another_version_is_told(line: str) -> None:
    found = replay(["decision 1-a:0 begins", line])
    assert found.difference is not None
    assert "of another version" in found.difference.why


@examples(200)
@given(st.lists(st.text(max_size=60) | st.builds("decision 1-a:{} {}".format, st.integers(), st.text())))
def test_no_line_whatever_is_in_it_stops_a_replay(lines: list[str]) -> None:
    machine_lines = ["decision 1-b:0 begins", *lines, "decision 1-b:1 asked room=1 -> go", json.dumps(lines)]
    found = replay(machine_lines)
    assert found.difference is None or found.difference.life != "1-b"


def test_a_replay_follows_a_limited_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MOST_LIVES", 2)
    begins = [f"decision {life}-a:0 begins" for life in range(3)]
    found = replay([*begins, *(f"decision {life}-a:1 asked room=1 -> go" for life in range(3))])
    assert (found.lives, found.decisions, found.skipped, found.difference) == (3, 2, 1, None)


@pytest.mark.parametrize("decide", [SessionMachine.restart_wanted, SessionMachine.cancelled])
def test_a_stimulus_is_one_line_whatever_it_brings_with_it(
    recorded: RecordedDecisions, decide: Callable[[SessionMachine], Step]
) -> None:
    machine = machine_of(1)
    machine.submitted(**{**READY, "alive": False})
    getattr(machine, decide.__name__)()
    machine.failed(broken=False)
    told = [line.split()[2] for line in recorded.lines]
    assert told == ["begins", "submitted", decide.__name__, "failed"]
