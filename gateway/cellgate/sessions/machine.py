"""The decisions of a session as a state machine: its events go in, the next step comes out.

Pure: no sockets, no clock, no tasks, no kernels. Each public method that returns a `Step` is a stimulus. Its
arguments are facts that the machine does not know by itself. The effects of a step on the queue and on the
session's cells are counted here at once; ``worker``, ``queue``, ``holds``, ``replacement``, ``rollbacks`` and
``end`` carry the step out before any other stimulus, without conditions of their own. So the stimuli of a
session, in their order, always make the same steps: ``decisions`` logs and replays them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType

MOST_FAULTS = 3
"""The internal errors in a row, without a completed cell between them, that a session survives."""
MOST_REVIVALS = 5
"""The kernels in a row, without a cell between them, that a session may start."""
MOST_QUESTIONS = 16
"""The most questions to the kernel that wait or are being answered."""


class Occupant(IntEnum):
    """A use that occupies a session; several may at once. Each is a bit.

    `QUEUED`: the queue has a cell or a `RESTART`, or an ended cell that is not recorded yet. `HELD`: a
    branch, a checkpoint or an exploration is being made from the session, or its kernel is answering a
    question. `DUE`: the checkpoint after its last cell is not made yet. `CHECKPOINTS`: it has automatic ones.
    """

    CELL = 1
    BESIDE = 2
    QUEUED = 4
    RESTART = 8
    REPLACING = 16
    HELD = 32
    EXPLORED = 64
    DUE = 128
    CHECKPOINTS = 256
    PACKAGES = 512
    PROGRAMS = 1024
    PORTS = 2048
    CLIENTS = 4096
    ENDING = 8192


Act = Enum("Act", "SEND BESIDE TAKE KEEP HOLD IDLE REVIVE")
"""A request to do something with a session.

`SEND` a new cell at once; run one `BESIDE` others; `TAKE` the next cell from the queue; `KEEP` a checkpoint
after a cell; `HOLD` the session for a branch, a checkpoint or a question; let its idle time run (`IDLE`);
`REVIVE` its kernel without a cell.
"""

_O = Occupant
FORBIDDING: Mapping[Act, tuple[Occupant, ...]] = MappingProxyType(
    {
        Act.SEND: (_O.REPLACING, _O.CELL, _O.BESIDE, _O.QUEUED, _O.RESTART, _O.HELD, _O.DUE, _O.ENDING),
        Act.BESIDE: (_O.HELD, _O.ENDING),
        Act.TAKE: (_O.HELD, _O.ENDING),
        Act.KEEP: (_O.CELL, _O.HELD, _O.ENDING),
        # A hold waits for the earlier hold.
        Act.HOLD: (
            *(_O.ENDING, _O.EXPLORED, _O.CELL, _O.BESIDE, _O.QUEUED, _O.RESTART, _O.REPLACING, _O.PACKAGES),
        ),
        # The idle time also runs while a kernel is replaced for a client that has gone.
        Act.IDLE: (
            *(_O.CELL, _O.BESIDE, _O.QUEUED, _O.RESTART, _O.PACKAGES, _O.CLIENTS, _O.PROGRAMS, _O.PORTS),
            _O.HELD,
        ),
        # With checkpoints, the lost state can be restored: a new kernel would end them.
        Act.REVIVE: (_O.REPLACING, _O.CELL, _O.RESTART, _O.ENDING, _O.CHECKPOINTS),
    }
)
"""The occupants that forbid each act; the first one that is there is the reason."""


def forbids(act: Act, there: int) -> Occupant | None:
    """Return the occupant in `there`, a sum of bits, that forbids an act; None if it is allowed."""
    return next((each for each in FORBIDDING[act] if each & there), None)


# Every quick cell checks these sums, so only the needed ones are made.
_SEND, _BESIDE, _TAKE, _KEEP = (sum(FORBIDDING[act]) for act in (Act.SEND, Act.BESIDE, Act.TAKE, Act.KEEP))
_CELL, _ENDING, _DUE = int(_O.CELL), int(_O.ENDING), int(_O.DUE)
_RUNNING = _O.CELL | _O.BESIDE
_BUSY = _RUNNING | _O.QUEUED


Step = StrEnum(
    "Step",
    "NOTHING GO REFUSE_ENDING REFUSE_FULL REFUSE_EXPLORED REFUSE_BUSY REFUSE_DEAD REFUSE_MANY REFUSE_SHARED"
    " SEND QUEUE BESIDE INTERRUPT REMOVE INSIST IDLE IN_USE"
    " WRAP_UP LEAVE KEEP SKIP GO_ON FINISH RESTART LOOK RUN STAND_IN_LINE TIME_OUT WAIT WATCH"
    " REPLACE GIVE_UP NOTE_DEATH NOTE_AND_REVIVE REVIVE TELL_DEAD CLOSE"
    " FAIL_CELL BREAK_OFF RESUME END DETACH",
)
"""The next step of a session.

`GO`: do what was requested. `INSIST`: as `RESTART`, after giving up a cell. `LEAVE`: the worker is done.
`KEEP`, `SKIP`: make the checkpoint that follows a cell, or don't. `GO_ON`: follow the current cell, which was
sent. `FINISH`: record the end of a cell that did not run. `RESTART`: get another kernel, by the queue.
`LOOK`: check whether the first queued cell may run. `WATCH`: end it at its deadline. `REPLACE`, `GIVE_UP`:
replace the kernel at once or not at all; after a cell, the queued cells are cancelled.
`TELL_DEAD`: tell clients that there is no kernel. `CLOSE`: close the kernel's connection.
"""


class Occupancy:
    """The occupants of a session, and the decisions about newcomers.

    `there`: the occupants that the machine can count itself, a sum of bits. `waiting`: cells in the queue.
    `over`: cells that ended in the queue and are not recorded. `restarts`: restarts in the queue. `beside`,
    `holds`: their numbers.
    """

    def __init__(self) -> None:
        self.there = 0
        self.waiting = self.over = self.restarts = self.beside = self.holds = 0

    @property
    def ending(self) -> bool:
        """Whether the end has begun."""
        return self.there & _ENDING != 0

    @property
    def busy(self) -> bool:
        """Whether a cell is running or queued."""
        return self.there & _BUSY != 0

    def came(self, *, occupant: Occupant) -> Step:
        """Count an occupant that no step has added: an adopted cell, a hold, a replacement."""
        if occupant is _O.HELD:
            self.holds += 1
        self.there |= occupant
        return Step.NOTHING

    def went(self, *, occupant: Occupant) -> Step:
        """Remove an occupant; of cells beside and of holds, only one."""
        left = 0
        if occupant is _O.HELD:
            self.holds = left = self.holds - 1
        elif occupant is _O.BESIDE:
            self.beside = left = self.beside - 1
        if not left:
            self.there &= ~occupant
        return Step.NOTHING

    def cancelled(self) -> Step:
        """Count all queued cells as ended; their ends are to be recorded."""
        self._cancel()
        return Step.NOTHING

    def asked(self, *, room: int) -> Step:
        """Decide whether a new cell may be queued where at most `room` cells may wait."""
        if self.there & _ENDING:
            return Step.REFUSE_ENDING
        return Step.REFUSE_FULL if self.waiting >= room else Step.GO

    def asked_beside(self, *, wanted: bool, alive: bool) -> Step:
        """Decide whether a Jupyter client's cell may run beside others, if `wanted`."""
        return Step.BESIDE if wanted and alive and not self.there & _BESIDE else Step.QUEUE

    def hold_wanted(self, *, alive: bool, packages: bool, questions: int) -> Step:
        """Decide whether it may be branched, explored or questioned now; `questions`: the number waiting."""
        occupant = forbids(Act.HOLD, self.there | (packages and _O.PACKAGES))
        if occupant is not None:
            return Step.REFUSE_EXPLORED if occupant is _O.EXPLORED else Step.REFUSE_BUSY
        if not alive:
            return Step.REFUSE_DEAD
        return Step.REFUSE_MANY if questions >= MOST_QUESTIONS else Step.GO

    def files_wanted(self, *, shared: bool) -> Step:
        """Decide whether a checkpoint may store or change the files; `shared`: other sessions use them."""
        return Step.REFUSE_SHARED if shared else Step.GO

    def chosen(self, *, cells: int) -> Step:
        """Decide whether the session may continue as a branch with this number of sent `cells`."""
        return Step.REFUSE_BUSY if self.busy or cells != 1 else Step.GO

    def idled(self, *, packages: bool, clients: bool, programs: bool, ports: bool) -> Step:
        """Decide whether the session's idle time runs. `clients`: channels are open; others are in use."""
        there = self.there | (packages and _O.PACKAGES) | (clients and _O.CLIENTS)
        there |= (programs and _O.PROGRAMS) | (ports and _O.PORTS)
        return Step.IDLE if forbids(Act.IDLE, there) is None else Step.IN_USE

    def _cancel(self) -> None:
        self.over, self.waiting = self.over + self.waiting, 0

    def _recount(self) -> None:
        """Recount the occupants of the queue after it has become shorter."""
        self.there &= ~(_O.QUEUED | _O.RESTART)
        if self.restarts:
            self.there |= _O.QUEUED | _O.RESTART
        elif self.waiting or self.over:
            self.there |= _O.QUEUED

    def _restart(self) -> None:
        self.restarts += 1
        self.there |= _O.QUEUED | _O.RESTART


class SessionMachine(Occupancy):
    """The decisions of one session. `alive` is always whether it has a kernel that can run a cell."""

    def __init__(self) -> None:
        super().__init__()
        self._revivals = 0
        self._faults = 0
        # Whether a cell has been completed, and no step after it has failed.
        self._completed = False

    # Requests

    def submitted(self, *, alive: bool, prepared: bool, turn: bool, due: bool) -> Step:
        """Decide whether a cell is sent at once or queued.

        `prepared`: the cell needs a step before it. `turn`: its principal may run it now. `due`: the
        checkpoint after the last cell is not made yet.
        """
        there = self.there | _DUE if due else self.there
        if not alive or prepared or not turn or there & _SEND:
            self.waiting += 1
            self.there |= _O.QUEUED
            return Step.QUEUE
        self.there |= _CELL
        return Step.SEND

    def submitted_beside(self, *, turn: bool) -> Step:
        """Decide whether a cell that may run beside others begins; otherwise it is `submitted`."""
        if not turn:
            return Step.QUEUE
        self.beside += 1
        self.there |= _O.BESIDE
        return Step.BESIDE

    def stopped(self, *, found: bool, running: bool) -> Step:
        """Decide how to stop a cell that was `found` among the unfinished ones."""
        if not found:
            return Step.NOTHING
        return Step.INTERRUPT if running else self._remove(Step.REMOVE)

    def _remove(self, step: Step) -> Step:
        self.waiting -= 1
        self._recount()
        return step

    def restart_wanted(self) -> Step:
        """Decide about a requested restart: queued cells are cancelled, and a running cell is given up."""
        step = Step.INSIST if self.there & _RUNNING else Step.RESTART
        self._cancel()
        self._restart()
        return step

    # The worker

    def resumed(self, *, broken: bool) -> Step:
        """Decide the first step of a fresh worker; `broken`: the former one failed at the current cell."""
        return Step.WRAP_UP if broken and self.there & _CELL else Step.GO

    def free(self, *, due: bool) -> Step:
        """Decide the worker's next step. `due`: a checkpoint must be made before another cell."""
        if self._completed:
            self._faults, self._completed = 0, False
        there = self.there
        if there & _ENDING:
            return Step.LEAVE
        if due and not there & _KEEP:
            return Step.KEEP
        if there & _CELL:
            self._revivals = 0
            return Step.GO_ON
        if self.over:
            self.over -= 1
            self._recount()
            return Step.FINISH
        if there & _TAKE:
            return Step.WAIT
        if self.restarts:
            self.restarts -= 1
            self._recount()
            return Step.RESTART
        return Step.LOOK if self.waiting else Step.WAIT

    def looked(self, *, late: bool, turn: bool) -> Step:
        """Decide about the first queued cell. `late`: its deadline has passed. `turn`: it may run now."""
        if late:
            self.waiting -= 1
            self.over += 1
            return Step.TIME_OUT
        if not turn:
            return Step.STAND_IN_LINE
        self._revivals = 0
        self.there |= _CELL
        return self._remove(Step.RUN)

    def kernel_wanted(self, *, alive: bool) -> Step:
        """Decide whether the next cell needs another kernel first."""
        return Step.GO if alive else Step.REPLACE

    def ran(
        self, *, recorded: bool, gave_up: bool, broken: bool, kernel: bool, exited: bool, transient: bool
    ) -> Step:
        """Decide about the kernel after a cell's end, once before that is `recorded` and once after.

        `gave_up`: the cell may still run there. `broken`: an internal error ended it; then its end is
        recorded first. `kernel`: there is one. `exited`: it is dead. `transient`: the session ends with the
        cell.
        """
        if recorded:
            self.there &= ~_CELL
            self._completed = not broken
        if recorded != broken or not (gave_up or exited) or not kernel or self.there & _ENDING:
            return Step.NOTHING
        self._cancel()
        if not gave_up:
            return Step.NOTE_DEATH
        return Step.GIVE_UP if transient else Step.REPLACE

    def settled(self, *, kernel: bool, exited: bool, clients: bool) -> Step:
        """Decide about the kernel after all consequences of a cell's end. `clients`: of the channels."""
        if kernel:
            return self._exited(clients) if exited else Step.NOTHING
        return Step.REVIVE if clients else Step.NOTHING

    def ran_beside(self, *, gave_up: bool, same: bool) -> Step:
        """Decide about the kernel of a cell beside others; `same`: the kernel is still the session's."""
        return Step.RESTART if gave_up and same else Step.NOTHING

    # The kernel

    def kernel_exited(self, *, same: bool, clients: bool) -> Step:
        """Decide about a kernel's death; `same`: it was the session's. A cell's worker notices on its own."""
        return self._exited(clients) if same else Step.NOTHING

    def _exited(self, clients: bool) -> Step:
        if self.there & (_CELL | _ENDING):
            return Step.NOTHING
        return Step.NOTE_AND_REVIVE if clients else Step.NOTE_DEATH

    def missed(self, *, alive: bool, checkpoints: bool) -> Step:
        """Decide whether to start a kernel without a cell. `checkpoints`: there are automatic ones."""
        if alive:
            return Step.NOTHING
        occupant = forbids(Act.REVIVE, self.there | (checkpoints and _O.CHECKPOINTS))
        if occupant is _O.CHECKPOINTS:
            return Step.TELL_DEAD
        if occupant is not None or self._revivals >= MOST_REVIVALS:
            return Step.NOTHING
        self._revivals += 1
        self._restart()
        return Step.RESTART

    def rollback_failed(self, *, insists: bool, alive: bool, same: bool) -> Step:
        """Decide whether to replace a kernel whose rollback failed; `insists`: a cell was given up."""
        return Step.REPLACE if insists and alive and same else Step.NOTHING

    def checkpoint_due(self, *, alive: bool, shared: bool) -> Step:
        """Decide whether to make the checkpoint after a cell; `shared`: other sessions use the files."""
        return Step.SKIP if not alive or shared or self.there & _O.BESIDE else Step.KEEP

    def first_waits(self, *, limited: bool) -> Step:
        """Decide whether to watch the first queued cell's deadline; `limited`: it has one, unwatched."""
        apart = self.there & (_O.REPLACING | _CELL) == _O.REPLACING
        return Step.WATCH if limited and apart and self.waiting else Step.NOTHING

    def first_late(self, *, in_line: bool, first: bool) -> Step:
        """Decide about a watched cell at its deadline; `in_line`: the session waits for a kernel."""
        return self._remove(Step.TIME_OUT) if in_line and first else Step.NOTHING

    # Faults and the end

    def failed(self, *, broken: bool) -> Step:
        """Decide the fate of the current cell after an internal error; `broken`: it is the second error."""
        self._completed = False
        self._cancel()
        self.restarts = 0
        self._recount()
        if broken and self.there & _CELL:
            self.there &= ~_CELL
            return Step.FAIL_CELL
        self._faults += 1
        return Step.BREAK_OFF

    def broken_off(self) -> Step:
        """Decide whether the session continues after an internal error."""
        if self.there & _ENDING:
            return Step.NOTHING
        return Step.END if self._faults > MOST_FAULTS else Step.RESUME

    def misheard(self, *, connected: bool, gave_up: bool) -> Step:
        """Decide about a kernel that lost a message; `gave_up`: the cell's end will replace the kernel."""
        if not connected:
            return Step.NOTHING
        if self.there & _CELL and gave_up:
            return Step.CLOSE
        self._restart()
        return Step.RESTART

    def ended(self, *, keep_kernel: bool) -> Step:
        """Decide how the session ends; `NOTHING` if the end has begun before."""
        if self.there & _ENDING:
            return Step.NOTHING
        self.there |= _ENDING
        return Step.DETACH if keep_kernel else Step.END

    def drained(self) -> Step:
        """Decide the remaining step for an ending session's queue."""
        step = Step.FINISH if self.over else Step.RESTART if self.restarts else Step.NOTHING
        self.over -= step is Step.FINISH
        self.restarts -= step is Step.RESTART
        self._recount()
        return step

    def closed(self) -> Step:
        """Drop all counts of waiting cells: the session is over."""
        self.restarts = 0
        self.there &= ~_CELL
        self._recount()
        return Step.NOTHING
