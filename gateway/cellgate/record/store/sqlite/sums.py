"""Sums what cells used, from the rows of executions. SQL for a thread with a connection of its own."""

from __future__ import annotations

import sqlite3
import time
from threading import Event

from cellgate.record.store.interface import GivenUp
from cellgate.record.store.summing import (
    SUM_SECONDS,
    SUMMED,
    PlacedSum,
    SumBy,
    SumQuestion,
    placed_sum,
    too_long,
)

_STEPS = 20_000
"""The steps of SQLite's machine between two looks at the time: a millisecond or so."""
_PLACES = {SumBy.PRINCIPAL: "s.principal", SumBy.SESSION: "s.id", SumBy.DAY: "substr(x.ended_at, 1, 10)"}


def sums(db: sqlite3.Connection, question: SumQuestion, stop: Event | None = None) -> list[PlacedSum]:
    """Return sums as `Reads.sums`. Raises GivenUp once `stop` is set, and InvalidInput if it takes long."""
    query, asked = _statement(question)
    until = time.monotonic() + SUM_SECONDS

    def is_over() -> bool:
        return time.monotonic() >= until or (stop is not None and stop.is_set())

    db.set_progress_handler(is_over, _STEPS)
    try:
        return [placed_sum(question.by, values) for values in db.execute(query, asked)]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        if stop is not None and stop.is_set():
            raise GivenUp from error
        raise too_long() from error
    finally:
        db.set_progress_handler(None, 0)


def _statement(question: SumQuestion) -> tuple[str, list[object]]:
    place = _PLACES[question.by]
    clauses = ["x.ended_at >= ?", "x.ended_at < ?"]
    asked: list[object] = [question.begin, question.end]
    if question.after:
        clauses.append(f"{place} > ?")
        asked.append(int(question.after) if question.by is SumBy.SESSION else question.after)
    if question.principal is not None:
        clauses.append("s.principal = ?")
        asked.append(question.principal)
    if question.exact:
        clauses.append("s.key = ?")
        asked.append(question.prefix)
    elif question.prefix:
        clauses.append("substr(s.key, 1, ?) = ?")
        asked += [len(question.prefix), question.prefix]
    query = f"""SELECT {place}, s.principal, s.key, {SUMMED}
        FROM executions AS x JOIN sessions AS s ON s.id = x.session_id
        WHERE {" AND ".join(clauses)} GROUP BY {place} ORDER BY {place} LIMIT ?"""  # noqa: S608
    return query, [*asked, question.limit]
