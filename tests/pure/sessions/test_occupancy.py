"""What may not be done with a session as long as something occupies it: the whole table."""

import pytest

from cellgate.sessions.machine import Act, Occupant, forbids

ROWS = [
    line.split()
    for line in """
             SEND  BESIDE  TAKE  KEEP  HOLD  IDLE  REVIVE
CELL         no    yes     yes   no    no    no    no
BESIDE       no    yes     yes   yes   no    no    yes
QUEUED       no    yes     yes   yes   no    no    yes
RESTART      no    yes     yes   yes   no    no    no
REPLACING    no    yes     yes   yes   no    yes   no
HELD         no    no      no    no    yes   no    yes
EXPLORED     yes   yes     yes   yes   no    yes   yes
DUE          no    yes     yes   yes   yes   yes   yes
CHECKPOINTS  yes   yes     yes   yes   yes   yes   no
PACKAGES     yes   yes     yes   yes   no    no    yes
PROGRAMS     yes   yes     yes   yes   yes   no    yes
PORTS        yes   yes     yes   yes   yes   no    yes
CLIENTS      yes   yes     yes   yes   yes   no    yes
ENDING       no    no      no    no    no    yes   no
""".splitlines()[1:]
]
"""An exploration holds its session, too. Where cells may install packages, none is sent at once."""


def answers(*there: Occupant) -> dict[str, Occupant | None]:
    return {act.name: forbids(act, sum(there)) for act in Act}


def test_each_occupant_forbids_what_the_table_says_and_no_other_does() -> None:
    told = [[each.name, *("no" if by else "yes" for by in answers(each).values())] for each in Occupant]
    assert ([list(answers()), *told], set(answers().values())) == (ROWS, {None})


@pytest.mark.parametrize("other", [Occupant.HELD, Occupant.QUEUED, Occupant.REPLACING, Occupant.PACKAGES])
def test_the_occupant_that_has_an_answer_of_its_own_is_named(other: Occupant) -> None:
    assert answers(other, Occupant.EXPLORED)["HOLD"] is Occupant.EXPLORED
    assert answers(Occupant.CHECKPOINTS, Occupant.RESTART)["REVIVE"] is Occupant.RESTART
