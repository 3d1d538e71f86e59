"""Sums what cells used, from the rows of executions, by a connection of its own."""

from __future__ import annotations

from dataclasses import asdict

from psycopg import errors

from cellgate.record.store.postgresql import statements
from cellgate.record.store.postgresql.record_connection import Connection
from cellgate.record.store.summing import SUM_SECONDS, PlacedSum, SumBy, SumQuestion, placed_sum, too_long


def sums(db: Connection, question: SumQuestion) -> list[PlacedSum]:
    """Return sums as `Reads.sums`. Raises InvalidInput if that takes long."""
    if any("\0" in text for text in (question.principal or "", question.prefix, question.after)):
        return []  # no text that PostgreSQL could have stored
    asked = asdict(question)
    how = "exact" if question.exact else "prefix" if question.prefix else ""
    query = statements.sums(
        question.by, how, of_one=question.principal is not None, goes_on=bool(question.after)
    )
    if question.by is SumBy.SESSION:
        asked["after"] = int(question.after or 0)
    try:
        with db.transaction():
            db.execute(statements.SET_PATIENCE, (f"{SUM_SECONDS:g}s",))
            return [placed_sum(question.by, values) for values in db.execute(query, asked)]
    except errors.QueryCanceled as error:
        raise too_long() from error
