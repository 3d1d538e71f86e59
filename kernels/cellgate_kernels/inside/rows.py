"""The rows of a Python kernel's tables, by pages: what ``bootstrap.py`` lets each Python kernel tell of.

They are asked for by a message of our own on the shell channel, as variables are. Nothing of the table or of
the cells' namespace is changed. ``columns.py`` opens tables and reads their values; here are their pages,
order and filter. ``kernel/rows.py`` of the gateway's library checks the answers.
"""

import json
import sys
import time
import warnings
from array import array
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from functools import partial
from math import isnan
from pathlib import Path

REQUEST = "cellgate_rows_request"
REPLY = "cellgate_rows_reply"

MOST_ROWS = 1000
MOST_COLUMNS = 100
MOST_CELLS = 20_000
MOST_BYTES = 900_000
"""Of the rows as JSON, so that a page has less than 1 MB with its columns: else it has fewer rows."""
MOST_ORDERED = 10_000_000
"""Rows that are sorted or filtered."""
MOST_LISTED = 2_000_000
"""Rows that are sorted as Python's objects, which takes longer."""
OF_AN_ORDER, OF_A_LIST = 40, 150
"""Bytes that sorting takes for each row, at its peak: of arrays, and of Python's objects."""
SMALL = 32 * 1024 * 1024
"""Bytes for which no room is looked for."""
MEMORY = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""The files of a control group, of version 2 and 1, that tell its limit and what of it is used."""
AT_ONCE = 50_000
SECONDS = 10.0
"""A filter that takes longer is given up."""

COMPARISONS = ("!=", "<=", ">=", "=", "<", ">")
COMPARED = {
    "!=": lambda one, other: one != other,
    "<=": lambda one, other: one <= other,
    ">=": lambda one, other: one >= other,
    "=": lambda one, other: one == other,
    "<": lambda one, other: one < other,
    ">": lambda one, other: one > other,
}
MISSING = object()


class Refused(Exception):
    """No rows are told, for a reason that is one of `Refusal` in ``kernel/rows.py``."""


class RowPages:
    """Tells of the rows of one kernel's tables. `serve` it before the kernel runs.

    `columns`: the module ``columns.py``.
    """

    def __init__(self, app, columns):
        self.app = app
        self._tables = columns
        # The rows of the last request that were sorted or filtered, and what they are rows of.
        self._asked, self._positions = None, None

    def serve(self):
        """Answer requests from now on."""
        self.app.kernel.shell_handlers[REQUEST] = self.requested
        self.app.shell.events.register("pre_execute", self.forget)

    def forget(self):
        """Forget what was sorted: a cell may change it."""
        self._asked, self._positions = None, None

    async def requested(self, stream, ident, message):
        """Answer a request for a page."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answer = self.page(message["content"])
        except Refused as error:
            answer = {"refused": error.args[0]}
        except MemoryError:
            self.forget()
            answer = {"refused": "too_many"}
        except Exception:  # noqa: BLE001 - a library's value in a state that it does not expect
            self.forget()
            answer = {"refused": "failed"}
        self.app.session.send(stream, REPLY, {"status": "ok", **answer}, message, ident=ident)

    def page(self, asked):
        """Return the rows that were asked for, with their columns. Raises Refused."""
        value = self.app.shell.user_ns.get(asked["name"], MISSING)
        if value is MISSING:
            raise Refused("no_variable")
        opener = self._tables.openers().get(id(type(value)))
        if opener is None:
            raise Refused("no_rows")
        count, index, names, column_at = opener(value)
        cells = self._tables.Cells(asked.get("texts") is not False)
        labels = cells.labels([*(each.name for each in index), *names])
        find = partial(self._column, labels, index, column_at)
        positions = self._in_order(value, asked, count, find, cells, len(labels))
        first = min(asked["first_column"], len(names))
        last = min(first + MOST_COLUMNS, len(names))
        shown = [*range(len(index)), *range(len(index) + first, len(index) + last)]
        columns = [find(place) for place in shown]
        found = count if positions is None else len(positions)
        at = min(asked["offset"], found)
        to = min(at + min(asked["limit"], MOST_ROWS, max(1, MOST_CELLS // max(1, len(columns)))), found)
        where = slice(at, to) if positions is None else [int(each) for each in positions[at:to]]
        read = [[cells.cell(each) for each in column.read(where)] for column in columns]
        return {
            "type": self._tables.type_name(value),
            "columns": [
                {"name": labels[place], "type": column.type, "kind": column.kind, "index": place < len(index)}
                for place, column in zip(shown, columns, strict=True)
            ],
            "rows": fitting([list(row) for row in zip(*read, strict=True)] if read else []),
            "offset": at,
            "total": found,
            "all_rows": count,
            "first_column": first,
            "all_columns": len(names),
        }

    @staticmethod
    def _column(labels, index, column_at, named):
        """Return a column by its place or label. Raises Refused."""
        if isinstance(named, str):
            if named not in labels:
                raise Refused("no_column")
            named = labels.index(named)
        return index[named] if named < len(index) else column_at(named - len(index))

    def _in_order(self, value, asked, count, find, cells, width):
        """Return the positions of the rows in the order that was asked for; None for all as they are."""
        sort, sought, within = asked.get("sort"), asked.get("filter") or None, asked.get("column")
        if sort is None and sought is None:
            return None
        wanted = (asked["name"], id(value), count, sort, asked.get("descending"), sought, within)
        if self._asked != wanted:
            self.forget()
            if count > MOST_ORDERED:
                raise Refused("too_many")
            positions = None
            if sought is not None:
                among = [find(within)] if within is not None else [find(place) for place in range(width)]
                positions = filtered(cells, among, sought, count, compares=within is not None)
            if sort is not None:
                down = bool(asked.get("descending"))
                positions = ordered(cells, find(sort), positions, count, descending=down)
            self._asked, self._positions = wanted, positions
        return self._positions


def fitting(rows):
    """Return the first rows, at least one, that have fewer than `MOST_BYTES` as JSON."""
    size = 0
    for number, row in enumerate(rows):
        size += len(json.dumps(row, ensure_ascii=False).encode()) + 1
        if size > MOST_BYTES and number:
            return rows[:number]
    return rows


# ---- order and filter -------------------------------------------------------------------------------------


def ordered(cells, column, positions, count, *, descending):
    """Return the positions, by default all, in the order of a column, missing values last. Raises Refused."""
    many = count if positions is None else len(positions)
    values = column.array()
    check_room(many * (OF_A_LIST if values is None else OF_AN_ORDER))
    if values is not None:
        numpy = sys.modules["numpy"]
        values = values if positions is None else values[numpy.asarray(positions)]
        order = order_of(numpy, values, descending)
        return order if positions is None else numpy.asarray(positions)[order]
    if many > MOST_LISTED:
        raise Refused("too_many")
    places = range(count) if positions is None else [int(each) for each in positions]
    keys = keys_of(cells, column.read(slice(0, count) if positions is None else places))
    there = [place for place, key in enumerate(keys) if key is not None]
    try:
        order = sorted(there, key=keys.__getitem__, reverse=descending)
    except (TypeError, ArithmeticError):
        raise Refused("no_order") from None
    order += [place for place, key in enumerate(keys) if key is None]
    return array("q", (places[place] for place in order))


def check_room(need, folder=Path("/sys/fs/cgroup")):
    """Check that there are so many bytes of memory. Raises Refused.

    Above a limit of its control group a kernel is killed, with all variables. Files that the system has
    cached count as used, so this refuses rather too early. Other limits raise MemoryError, which is harmless.
    """
    if need < SMALL:
        return
    for most, used in MEMORY:
        try:
            left = int((folder / most).read_text()) - int((folder / used).read_text())
        except (OSError, ValueError):
            continue
        if left < need:
            raise Refused("too_many")


def keys_of(cells, values):
    """Return what values are ordered by; None for those that are missing."""
    if set(map(type, values)) <= {str, type(None)}:
        return values
    sorts = {key[0] for value in values if (key := key_of(cells, value)) is not None}
    # Of one sort, which is usual, they need no tuple to say of which.
    pick = (lambda key: key) if len(sorts) > 1 else (lambda key: key[1])
    return [None if (key := key_of(cells, value)) is None else pick(key) for value in values]


def order_of(numpy, values, descending):
    """Return the positions of an array's values in their order. What is equal stays as it is."""
    if not descending:
        return numpy.argsort(values, kind="stable")
    order = len(values) - 1 - numpy.argsort(values[::-1], kind="stable")[::-1]
    return numpy.roll(order, -int(missing(numpy, values).sum()))


def missing(numpy, values):
    """Return where an array has nothing."""
    if values.dtype.kind == "f":
        return numpy.isnan(values)
    return numpy.isnat(values) if values.dtype.kind in "mM" else numpy.zeros(len(values), bool)


def key_of(cells, value):
    """Return what a value is ordered by: its sort and itself, or its text; None if it is missing."""
    kind = type(value)
    plain = cells.plain(value)
    if plain is None:
        return None
    if kind in (int, float, bool):
        return "", value
    if kind in (str, bytes, date, datetime, time_of_day, timedelta, Decimal):
        return str(kind), value
    if type(plain) in (int, float, bool):
        return "", plain
    return "text", plain


def filtered(cells, columns, sought, count, *, compares):
    """Return the positions of the rows of which one of the columns fits. Raises Refused.

    `compares`: whether what is sought may begin with a comparison.
    """
    sign = next((each for each in COMPARISONS if sought.startswith(each)), None) if compares else None
    late = time.monotonic() + SECONDS
    if sign is None:
        fits = partial(contains, cells, sought.casefold())
    else:
        (column,) = columns
        wanted = sought[len(sign) :].strip()
        values = column.array()
        if values is not None and wanted and values.dtype.kind in "iufb":
            numpy = sys.modules["numpy"]
            found = COMPARED[sign](values, number_of(wanted)) & ~missing(numpy, values)
            return numpy.flatnonzero(found)
        fits = comparison(cells, column, sign, wanted)
    found = array("q")
    for at in range(0, count, AT_ONCE):
        part = slice(at, min(at + AT_ONCE, count))
        mask = bytearray(part.stop - at)
        for column in columns:
            for place, value in enumerate(column.read(part)):
                if not mask[place] and fits(value):
                    mask[place] = 1
        found.extend(at + place for place, fitting in enumerate(mask) if fitting)
        if time.monotonic() > late:
            raise Refused("too_long")
    return found


def contains(cells, sought, value):
    """Return whether a value's text has another one in it, in capital letters or not."""
    text = value if type(value) is str else cells.plain(value)
    return text is not None and sought in (text if type(text) is str else str(text)).casefold()


def comparison(cells, column, sign, wanted):
    """Return what tells whether a value fits: numbers and truth values as such, others as text."""
    if not wanted:
        if sign not in {"=", "!="}:
            raise Refused("bad_filter")
        return lambda value: (cells.plain(value) is None) == (sign == "=")
    compare = COMPARED[sign]
    if column.kind in {"number", "boolean"}:
        number = number_of(wanted)

        def fits(value):
            value = value if type(value) in (int, float, bool, Decimal) else cells.plain(value)
            return type(value) not in (str, type(None)) and not isnan(value) and compare(value, number)

        return fits

    is_time = column.kind == "time"
    wanted = wanted.replace("T", " ", 1) if is_time else wanted

    def fits_as_text(value):
        text = cells.plain(value)
        if text is None:
            return False
        text = text if type(text) is str else str(text)
        # Of a time as much is compared as was given: a month, a day, a second.
        return compare(text.replace("T", " ", 1)[: len(wanted)] if is_time else text, wanted)

    return fits_as_text


def number_of(text):
    """Return a text as a number or a truth value. Raises Refused."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        return int(text) if len(text) < 20 and text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise Refused("bad_filter") from None
