"""The columns of tables and the values in them, as JSON has them: what ``rows.py`` tells of comes from here.

A table is a value of one of the types in `OPENERS`, of pandas, Polars, PyArrow or NumPy; a subclass may be
anybody's and is none. Nothing is imported: libraries are looked up among the modules that are there. A value
in a table whose type is not known here is told of by the type's name, and no method of it is called.
"""

import math
import re
import sys
from collections import deque
from datetime import date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import PosixPath
from types import ModuleType
from uuid import UUID

MOST_TEXT = 200
"""Characters of a cell or a name."""
MOST_BITS = 256
"""Bits of an integer that is written out."""
EXACT = 2**53
"""Larger integers lose precision in some JSON readers, and are text."""
MOST_INSIDE = 10
"""Items that are written out of a list or dict in a cell."""
DEEPEST = 3

KINDS = (
    ("number", re.compile(r"u?int\d|float|double|halffloat|decimal")),
    ("boolean", re.compile(r"bool")),
    ("text", re.compile(r"str|large_str|utf8|large_utf8|[<>=|]?u\d|categor|enum|dictionary")),
    ("time", re.compile(r"date|time|duration|period")),
)
"""What the beginning of a dtype's name says of the values; anything else is "other"."""

TYPE_NAME = type.__dict__["__name__"].__get__


def type_name(value):
    """Return the name of a value's type, whatever its class says."""
    return cut(TYPE_NAME(type(value)))


def cut(text):
    """Return the text, cut with an ellipsis, as valid Unicode."""
    text = str.__getitem__(text, slice(MOST_TEXT + 1))
    text = text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "\u2026"
    return text if text.isascii() else text.encode(errors="replace").decode()


# ---- columns ----------------------------------------------------------------------------------------------


class Column:
    """A column of a table. `read` returns the values of a slice or a list of positions, as Python's objects.

    `whole`: what returns all values as an array of NumPy's, if that is there at once, or None.
    """

    def __init__(self, name, dtype, read, whole=None):
        self.name = name
        self.type = cut(str(dtype))
        self.kind = kind_of(getattr(getattr(dtype, "categories", None), "dtype", None) or dtype)
        self.read = read
        self._whole = whole

    def array(self):
        """Return all values as an array of numbers, truth values or times; None if they are others."""
        values = None if self._whole is None or "numpy" not in sys.modules else self._whole()
        return values if values is not None and values.dtype.kind in "iufbmM" else None


def kind_of(dtype):
    """Return what sort of values a dtype stands for."""
    name = str(dtype).lower()
    return next((kind for kind, pattern in KINDS if pattern.match(name)), "other")


def of_numpy(values):
    """Return numpy's values as Python's objects, times as text with all digits."""
    if values.dtype.kind in "mM":
        text = sys.modules["numpy"].datetime_as_string if values.dtype.kind == "M" else None
        return [
            None if each == "NaT" else each
            for each in (text(values) if text else values.astype(str)).tolist()
        ]
    return values.tolist()


def numpy_array(value):
    """Open an array: its fields or its second axis are its columns, or the places of all further axes."""
    if value.ndim == 0:
        value = value.reshape(1)
    if value.dtype.names is not None and value.ndim == 1:
        names, parts = value.dtype.names, [value[name] for name in value.dtype.names]
        return len(value), [], names, lambda place: numpy_column(names[place], parts[place])
    shape = value.shape[1:]
    width = math.prod(shape)

    def column_at(place):
        inside = sys.modules["numpy"].unravel_index(place, shape) if shape else ()
        return numpy_column("", value[(slice(None), *inside)])

    if len(shape) < 2:
        return len(value), [], range(width) if shape else ["value"], column_at
    inside = sys.modules["numpy"].ndindex(shape)
    return len(value), [], [", ".join(map(str, each)) for each in islice(inside, width)], column_at


def numpy_column(name, values):
    """Return a column of an array of one axis."""
    return Column(name, values.dtype, lambda where: of_numpy(values[where]), lambda: values)


def pandas_frame(value):
    """Open a DataFrame of pandas."""
    return (
        len(value),
        pandas_levels(value.index),
        list(value.columns),
        lambda place: pandas_column("", value.iloc[:, place]),
    )


def pandas_series(value):
    """Open a Series of pandas."""
    name = "value" if value.name is None else value.name
    return len(value), pandas_levels(value.index), [name], lambda _: pandas_column(name, value)


def pandas_index(value):
    """Open an index of pandas."""
    levels = pandas_levels(value)
    return len(value), [], [each.name for each in levels], levels.__getitem__


def pandas_levels(index):
    """Return the columns of an index, named as pandas names them when it makes columns of them."""
    single = index.nlevels == 1
    return [
        Column(
            name if name is not None else "index" if single else f"level_{level}",
            index.dtype if single else index.levels[level].dtype,
            lambda where, level=level: index[where].get_level_values(level).tolist(),
            partial(pandas_array, index) if single else None,
        )
        for level, name in enumerate(index.names)
    ]


def pandas_column(name, values):
    """Return a column of a Series."""
    return Column(
        name, values.dtype, lambda where: values.iloc[where].tolist(), partial(pandas_array, values)
    )


def pandas_array(values):
    """Return the array of pandas' values, if they are NumPy's; times of a zone as those of UTC."""
    if type(values.dtype).__module__.startswith("numpy"):
        return values.to_numpy()
    return values.to_numpy(dtype="datetime64[ns]") if hasattr(values.dtype, "tz") else None


def polars_frame(value):
    """Open a DataFrame of Polars."""
    return value.height, [], value.columns, lambda place: polars_column(value.to_series(place))


def polars_series(value):
    """Open a Series of Polars."""
    return len(value), [], [value.name or "value"], lambda _: polars_column(value)


def polars_column(values):
    """Return a column of Polars'."""

    def read(where):
        return (values[where] if isinstance(where, slice) else values.gather(where)).to_list()

    def whole():
        return None if values.null_count() else values.to_numpy()

    plain = kind_of(values.dtype) in {"number", "boolean"}
    return Column(values.name, values.dtype, read, whole if plain else None)


def arrow_table(value):
    """Open a table or record batch of PyArrow."""
    return value.num_rows, [], value.column_names, lambda place: arrow_column(value.column(place))


def arrow_array(value):
    """Open an array of PyArrow."""
    return len(value), [], ["value"], lambda _: arrow_column(value)


def arrow_column(values):
    """Return a column of PyArrow's; times are text, because Python's lack the last digits."""
    kind = kind_of(values.type)

    def read(where):
        found = (
            values[where]
            if isinstance(where, slice)
            else values.take(sys.modules["pyarrow"].array(where, "int64"))
        )
        return (found.cast("string") if kind == "time" else found).to_pylist()

    def whole():
        if values.null_count:
            return None
        # Of a chunked array it is always a copy, and has no such argument.
        return values.to_numpy() if hasattr(values, "chunks") else values.to_numpy(zero_copy_only=False)

    return Column("", values.type, read, whole if kind in {"number", "boolean"} else None)


PYARROW_ARRAYS = (
    *("ChunkedArray", "BooleanArray", "DictionaryArray", "ListArray", "StructArray", "Decimal128Array"),
    *(f"{name}Array" for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")),
    *(f"{name}Array" for name in ("Float", "Double", "String", "LargeString", "StringView", "Binary")),
    *(f"{name}Array" for name in ("Date32", "Date64", "Timestamp", "Time32", "Time64", "Duration")),
)
OPENERS = (
    ("numpy", "ndarray", numpy_array),
    ("pandas", "DataFrame", pandas_frame),
    ("pandas", "Series", pandas_series),
    *(("pandas", name, pandas_index) for name in ("Index", "RangeIndex", "DatetimeIndex", "MultiIndex")),
    ("polars", "DataFrame", polars_frame),
    ("polars", "Series", polars_series),
    ("pyarrow", "Table", arrow_table),
    ("pyarrow", "RecordBatch", arrow_table),
    *(("pyarrow", name, arrow_array) for name in PYARROW_ARRAYS),
)
"""Types of tables: the module, the name in it, and what opens a value.

That returns the number of rows, the columns of the index, the labels of the others, and what returns one of
these by its place.
"""


def openers():
    """Return what opens a table, by the id of its type: a class may have a hash of its own."""
    return {id(kind): opener for kind, opener in known(OPENERS)}


def known(types):
    """Yield the types that their libraries have, if these have been imported, with what is said of them."""
    for name, attribute, said in types:
        library = sys.modules.get(name)
        if type(library) is ModuleType and isinstance(kind := vars(library).get(attribute), type):
            yield kind, said


# ---- cells ------------------------------------------------------------------------------------------------


class Cells:
    """Makes JSON of values: null is what is missing, and what JSON has no form for is text.

    With `texts` false the beginning of a text that is cut is left out.
    """

    def __init__(self, texts=True):
        self._texts = texts
        self._written = {id(kind): write for kind, write in self._known()}

    def _known(self):
        """Yield types, each with what makes text or a cell of a value."""
        for kind in (complex, date, time_of_day, timedelta, Decimal, Fraction, UUID, PosixPath):
            yield kind, str
        for kind in (bytes, bytearray):
            yield kind, lambda value: repr(bytes(value[: MOST_TEXT + 1]))
        yield datetime, moment
        for kind in (list, tuple, set, frozenset, deque, dict):
            yield kind, self._inside
        numbers = (
            "bool",
            "float16",
            "float32",
            "float64",
            *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
        )
        yield from known(("numpy", name, lambda value: self.plain(value.item())) for name in numbers)
        yield from known(("numpy", name, str) for name in ("str_", "datetime64", "timedelta64", "complex128"))
        yield from known([("numpy", "ndarray", lambda value: f"array {value.shape} {value.dtype}")])
        yield from known(("pandas", name, str) for name in ("Timestamp", "Timedelta", "Period", "Interval"))
        yield from known([("polars", "Series", lambda value: self._inside(value.to_list()))])

    def cell(self, value):
        """Return a value as a cell; long text as its beginning and its length."""
        found = self.plain(value)
        if type(found) is not str:
            return found
        if len(found) > MOST_TEXT:
            return {"text": cut(found) if self._texts else "", "length": len(found)}
        return found if found.isascii() else found.encode(errors="replace").decode()

    def plain(self, value):
        """Return a value as JSON has it, with the whole of a text."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return value
        if kind is float:
            return value if math.isfinite(value) else None if math.isnan(value) else repr(value)
        if kind is int:
            if -EXACT <= value <= EXACT:
                return value
            return str(value) if value.bit_length() <= MOST_BITS else f"{value.bit_length()} bits"
        pandas = sys.modules.get("pandas")
        if type(pandas) is ModuleType and (value is pandas.NA or value is pandas.NaT):
            return None
        write = self._written.get(id(kind))
        if write is None:
            return f"<{type_name(value)}>"
        found = write(value)
        return None if found == "NaT" else found

    def _inside(self, value, depth=1):
        """Return the beginning of a list, a dict or the like as Python writes it."""
        kind = type(value)
        if depth > DEEPEST:
            return "\u2026"
        if kind is dict:
            found = [
                f"{self._item(key, depth)}: {self._item(each, depth)}"
                for key, each in islice(value.items(), MOST_INSIDE)
            ]
        else:
            found = [self._item(each, depth) for each in islice(value, MOST_INSIDE)]
        if len(value) > MOST_INSIDE:
            found.append("\u2026")
        begin, end = {dict: "{}", set: "{}", frozenset: "{}", tuple: "()"}.get(kind, "[]")
        return f"{begin}{', '.join(found)}{end}"

    def _item(self, value, depth):
        if type(value) in (list, tuple, set, frozenset, deque, dict):
            return self._inside(value, depth + 1)
        found = self.plain(value)
        return repr(found[: MOST_TEXT + 1]) if type(value) is str else str(found)

    def labels(self, given):
        """Return the labels of columns as text, each of them once."""
        found, seen = [], set()
        for place, label in enumerate(given):
            text = self.plain(label)
            name = text if type(text) is str else str(text)
            if len(name) > MOST_TEXT:
                name = cut(name) if self._texts else f"column {place + 1}"
            name = "".join(letter if letter.isprintable() else "?" for letter in name)
            base, number = name[: MOST_TEXT - 10], 2
            while name in seen:
                name, number = f"{base} ({number})", number + 1
            seen.add(name)
            found.append(name)
        return found


def moment(value):
    """Return a date and time as text; without its offset where somebody else's class would tell that."""
    zones = [type(None), timezone, *(kind for kind, _ in known([("zoneinfo", "ZoneInfo", None)]))]
    return str(value if type(value.tzinfo) in zones else value.replace(tzinfo=None))
