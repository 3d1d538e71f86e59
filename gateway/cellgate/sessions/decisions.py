"""Decisions of sessions in the log: writes each stimulus and its step, reads such lines back, replays them.

With `--log-level debug` a session has a `LoggedMachine`. A line names the session by its number in the record
and has words and numbers of the machine alone: no code, no outputs, no names that users chose. `replay` gives
the stimuli to a fresh machine and finds the first step that differs; so a fault in production becomes a test.

As a program (``python -m cellgate.sessions.decisions < LOG``) it prints the result of a log's replay.
"""

from __future__ import annotations

import inspect
import logging
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from cellgate.sessions.machine import Occupancy, Occupant, SessionMachine, Step

logger = logging.getLogger(__name__)

WORD = "decision"
"""The first word of a decision in a line; the text before it is not read."""
BEGINS = "begins"
ARROW = "->"
LONGEST_LINE = 2000
"""The most characters of a line that are read."""
MOST_LIVES = 10_000
"""The most sessions that a replay follows at the same time."""
MOST_FACTS = 8
MOST_DIGITS = 15


def _stimuli() -> dict[str, frozenset[str]]:
    """Return the machine's stimuli, its public methods that return a step, with the names of their facts."""
    methods = {**vars(Occupancy), **vars(SessionMachine)}
    return {
        name: frozenset(inspect.signature(method).parameters) - {"self"}
        for name, method in methods.items()
        if inspect.isfunction(method)
        and not name.startswith("_")
        and method.__annotations__.get("return") == Step.__name__
    }


STIMULI: Mapping[str, frozenset[str]] = MappingProxyType(_stimuli())


class LoggedMachine(SessionMachine):
    """A machine that logs its decisions. `session`: the number of the session in the record.

    Each life of a session has its own name in the log, and its lines are numbered, so that a reader notices
    missing lines. Equal consecutive answers about the idle time are logged once.
    """

    def __init__(self, session: int) -> None:
        super().__init__()
        self._life = f"{session}-{secrets.token_hex(4)}"
        self._lines = 0
        self._idled = ""
        self._write(BEGINS)

    def note(self, stimulus: str, facts: Mapping[str, int], step: Step) -> None:
        """Log one decision, unless it repeats the last one about the idle time."""
        told = "".join(f" {name}={_word(fact)}" for name, fact in facts.items())
        text = f"{stimulus}{told} {ARROW} {step}"
        if stimulus == Occupancy.idled.__name__:
            if text == self._idled:
                return
            self._idled = text
        self._write(text)

    def _write(self, text: str) -> None:
        logger.debug("%s %s:%d %s", WORD, self._life, self._lines, text)
        self._lines += 1


def _noted(name: str) -> Callable[..., Step]:
    def stimulus(machine: LoggedMachine, **facts: int) -> Step:
        # Looked up at each call, so that a test may replace the method by a faulty one.
        step: Step = getattr(super(LoggedMachine, machine), name)(**facts)
        machine.note(name, facts, step)
        return step

    return stimulus


for _name in STIMULI:
    setattr(LoggedMachine, _name, _noted(_name))


def _word(fact: int) -> str:
    return fact.name.lower() if isinstance(fact, Occupant) else str(int(fact))


def machine_of(session: int) -> SessionMachine:
    """Return the machine for a new session, by its number; it logs if the log level is debug."""
    return LoggedMachine(session) if logger.isEnabledFor(logging.DEBUG) else SessionMachine()


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first decision that differs between a replay and the log. `line`: its number in the log."""

    line: int
    life: str
    why: str

    def __str__(self) -> str:
        return f"Line {self.line}, session {self.life}: {self.why}"


@dataclass(frozen=True, slots=True)
class DecisionReplay:
    """The result of a replay. `skipped`: decisions of sessions whose beginning is not in the log."""

    lives: int
    decisions: int
    skipped: int
    difference: Divergence | None


@dataclass(frozen=True, slots=True)
class _Decision:
    life: str
    number: int
    stimulus: str
    facts: Mapping[str, int]
    step: str

    def __str__(self) -> str:
        return " ".join([self.stimulus, *(f"{name}={_word(fact)}" for name, fact in self.facts.items())])


def replay(lines: Iterable[str]) -> DecisionReplay:
    """Replay the decisions in a log, up to the first that differs; other lines are skipped."""
    machines: dict[str, tuple[SessionMachine, int]] = {}
    lives = decisions = skipped = 0
    for line, text in enumerate(lines, 1):
        if (found := _read(text)) is None:
            continue
        if found.stimulus == BEGINS and not found.number:
            lives += 1
            machines[found.life] = SessionMachine(), 1
            if len(machines) > MOST_LIVES:
                del machines[next(iter(machines))]
            continue
        if found.life not in machines:
            skipped += 1
            continue
        machine, number = machines[found.life]
        machines[found.life] = machine, number + 1
        decisions += 1
        why = f"{found.number - number} lines are missing before it" if found.number != number else ""
        if why or (why := _problem(machine, found)):
            return DecisionReplay(lives, decisions, skipped, Divergence(line, found.life, why))
    return DecisionReplay(lives, decisions, skipped, None)


def _problem(machine: SessionMachine, found: _Decision) -> str:
    """Give a decision's stimulus to a machine; return how the step differs, or an empty text."""
    if STIMULI.get(found.stimulus) != frozenset(found.facts):
        return f"the machine knows no `{found}`; the log is of another version"
    step = getattr(machine, found.stimulus)(**found.facts)
    return "" if step == found.step else f"`{found}` makes `{step}`, and the log has `{found.step}`"


def _read(line: str) -> _Decision | None:
    """Return the decision in a line of the log; None without one."""
    words = line[:LONGEST_LINE].partition(f"{WORD} ")[2].split(maxsplit=MOST_FACTS + 4)
    life, colon, number = words[0].partition(":") if len(words) > 1 else ("", "", "")
    plain = life.isascii() and life.replace("-", "").isalnum()
    if not (colon and plain and number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS):
        return None
    stimulus, *rest = words[1:]
    if _plain(stimulus) == BEGINS:
        return _Decision(life, int(number), BEGINS, {}, "")
    # The words of a line are shown on terminals, so other characters are refused.
    if ARROW not in rest[:-1] or not stimulus.isascii() or not stimulus.isidentifier():
        return None
    at = rest.index(ARROW)
    facts: dict[str, int] = {}
    for name, _, word in (each.partition("=") for each in rest[:at]):
        known = Occupant.__members__.get(word.upper())
        if not (name.isascii() and name.isidentifier()):
            return None
        if known is None and not (word.isascii() and word.isdigit() and len(word) <= MOST_DIGITS):
            return None
        facts[name] = int(word) if known is None else known
    return _Decision(life, int(number), stimulus, facts, _plain(rest[at + 1]))


def _plain(word: str) -> str:
    """Return the letters at the start of a word: quotes or colours of a log may follow."""
    end = next((at for at, letter in enumerate(word) if not (letter.isalpha() or letter == "_")), len(word))
    return word[:end]


def main() -> int:
    """Replay the log on standard input, and print the result; return the exit code."""
    found = replay(iter(partial(sys.stdin.readline, LONGEST_LINE), ""))
    sys.stdout.write(
        f"{found.lives} sessions, {found.decisions} decisions; {found.skipped} without a beginning\n"
    )
    if found.difference is not None:
        sys.stdout.write(f"{found.difference}\n")
    return 0 if found.difference is None else 1


if __name__ == "__main__":
    sys.exit(main())
