"""pandas' DataFrames and Series from tables as data, as they were in the kernel.

What a table says is in ``docs/reference/api.md``; the kernels' own ``tables.py`` writes it. A table comes
from somebody's cell: it is data here, and nothing of it is run. pandas is imported when there is a table,
because the client does not need it otherwise.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from importlib import import_module
from typing import Any

_DURATION = re.compile(r"P(-?[0-9]{1,20})DT([0-9]{1,2})H([0-9]{1,2})M([0-9]{1,2})(?:\.([0-9]{1,9}))?S")
_TIME_OF_DAY = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?")
_DECIMAL_TYPE = re.compile(r"decimal(128|256)\(([0-9]{1,2}), (-?[0-9]{1,2})\)\[pyarrow\]")
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_PLAIN_DTYPES = {"integer": "int64", "number": "float64", "boolean": "bool"}
_NANOSECOND_TIMES = "time64[ns][pyarrow]"


def to_frame(table: Mapping[str, Any]) -> Any:
    """Return a table's DataFrame or Series, with the rows that it has. Raises ValueError for no table.

    Columns whose dtype this pandas does not know are columns of objects.
    """
    reader = _Reader(import_module("pandas"), import_module("numpy"))
    try:
        return reader.table(table)
    except (KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"this is no table: {type(error).__name__}: {error}") from error


def _nanoseconds(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"this is no duration: {text[:40]!r}")
    days, hours, minutes, seconds = (int(part) for part in found.groups()[:4])
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return whole * 10**9 + int((found[5] or "").ljust(9, "0"))


def _since_midnight(text: str) -> int:
    found = _TIME_OF_DAY.fullmatch(text)
    if found is None:
        raise ValueError(f"this is no time of day: {text[:40]!r}")
    hours, minutes, seconds = (int(part) for part in found.groups()[:3])
    return ((hours * 60 + minutes) * 60 + seconds) * 10**9 + int((found[4] or "").ljust(9, "0"))


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


class _Reader:
    """Reads tables with this pandas."""

    def __init__(self, pandas: Any, numpy: Any) -> None:
        self._pandas = pandas
        self._numpy = numpy
        self._nothing = {"NaN": float("nan"), "NA": pandas.NA, "NaT": pandas.NaT}
        self._kinds: dict[str, Callable[[Any], Any]] = {
            "missing": self._nothing.__getitem__,
            "float": lambda text: float(text) if text.endswith("INF") else numpy.longdouble(text),
            "int": lambda text: int(text, 16),
            "dict": lambda pairs: {_hashable(self._value(key)): self._value(each) for key, each in pairs},
            "decimal": Decimal,
            "bytes": base64.b64decode,
            "date": lambda text: date.fromisoformat(text.partition("T")[0]),
            "time": time.fromisoformat,
            "timestamp": self._timestamp,
            "timedelta": self._timedelta,
            "period": lambda pair: self._period(pair[0], pair[1]),
            "interval": lambda ends: pandas.Interval(
                self._value(ends["left"]), self._value(ends["right"]), ends["closed"]
            ),
            "complex": lambda parts: complex(self._value(parts["real"]), self._value(parts["imag"])),
            "text": str,
        }

    def table(self, table: Mapping[str, Any]) -> Any:
        """Return the DataFrame or Series."""
        schema, rows = table["schema"], table["data"]
        fields = schema["fields"]
        levels = len(schema["index"] if "index" in schema else schema["primaryKey"])
        columns = [[row[str(field["name"])] for row in rows] for field in fields]
        index = self._index(fields[:levels], columns[:levels])
        parts = [
            self._series(field, values, index)
            for field, values in zip(fields[levels:], columns[levels:], strict=True)
        ]
        if schema.get("series"):
            return parts[0].rename(self._label(fields[-1], unnamed="values"))
        frame = self._pandas.DataFrame(dict(enumerate(parts)), index=index)
        labels = [self._label(field) for field in fields[levels:]]
        return (
            frame if not labels else frame.set_axis(self._columns(labels, schema.get("columns", {})), axis=1)
        )

    def _series(self, field: Mapping[str, Any], values: Sequence[Any], index: Any) -> Any:
        array = self._column(field, values)
        # With its dtype: objects are not looked through for another one.
        return self._pandas.Series(array, index=index, dtype=array.dtype)

    def _label(self, field: Mapping[str, Any], unnamed: str | None = None) -> Any:
        if "label" in field:
            return _hashable(self._value(field["label"]))
        return None if field["name"] == unnamed else field["name"]

    def _columns(self, labels: Sequence[Any], said: Mapping[str, Any]) -> Any:
        names = [_hashable(self._value(name)) for name in said.get("names", [])] or None
        dtypes = said.get("dtypes")
        if "levels" not in said:
            # Not through pandas' own choice, which makes floats of 0 and 0.0.
            dtype = "object" if dtypes else None
            index = self._pandas.Index(labels, dtype=dtype, tupleize_cols=False)
            index = index.astype(dtypes[0]) if dtypes else index
            return index if names is None else index.rename(names[0])
        found = self._pandas.MultiIndex.from_tuples(labels, names=names)
        if not dtypes:
            return found
        levels = [level.astype(dtype) for level, dtype in zip(found.levels, dtypes, strict=True)]
        return found.set_levels(levels)

    def _index(self, fields: Sequence[Mapping[str, Any]], columns: Sequence[Sequence[Any]]) -> Any:
        if len(fields) == 1:
            name = self._label(fields[0], unnamed="index")
            return self._axis(self._column(fields[0], columns[0])).rename(name)
        levels, codes = [], []
        for field, values in zip(fields, columns, strict=True):
            keys = [None if value is None else json.dumps(value) for value in values]
            places = {key: at for at, key in enumerate(dict.fromkeys(key for key in keys if key is not None))}
            levels.append(self._axis(self._column(field, [json.loads(key) for key in places])))
            codes.append([-1 if key is None else places[key] for key in keys])
        names = [self._label(field, unnamed=f"level_{at}") for at, field in enumerate(fields)]
        return self._pandas.MultiIndex(levels=levels, codes=codes, names=names)

    def _axis(self, array: Any) -> Any:
        return self._pandas.Index(array, dtype=array.dtype, tupleize_cols=False)

    # Columns

    def _column(self, field: Mapping[str, Any], values: Sequence[Any]) -> Any:
        kind = field["type"]
        if "constraints" in field and "ordered" in field:
            return self._categories(field, values)
        if "freq" in field:
            dtype = self._pandas.PeriodDtype(field["dtype"][len("period[") : -1])
            freq = dtype.freq
            return self._pandas.array(
                [None if text is None else self._period(text, freq) for text in values], dtype=dtype
            )
        if kind == "datetime":
            return self._moments(field, values)
        if kind == "duration":
            return self._durations(field, values)
        if kind in _PLAIN_DTYPES and "values" not in field and field.get("dtype") != "object":
            return self._numbers(field, values)
        return self._objects(field, values)

    def _categories(self, field: Mapping[str, Any], values: Iterable[Any]) -> Any:
        found = field["constraints"]["enum"]
        inner = field.get("categories")
        categories = self._pandas.Index(found) if inner is None else self._axis(self._column(inner, found))
        places = {json.dumps(value): at for at, value in enumerate(found)}
        codes = [-1 if value is None else places[json.dumps(value)] for value in values]
        return self._pandas.Categorical.from_codes(codes, categories=categories, ordered=field["ordered"])

    def _moments(self, field: Mapping[str, Any], values: Iterable[str | None]) -> Any:
        dtype = field.get("dtype", "datetime64[ns]")
        unit = re.split(r"[\[,\]]", dtype)[1]
        texts = ["NaT" if text is None else text.removesuffix("Z") for text in values]
        is_local = (
            "tz" not in field and "," not in dtype and not any(text and text[-1] == "Z" for text in values)
        )
        found = self._numpy.array(texts, dtype=f"datetime64[{unit}]")
        moments = self._pandas.array(found, dtype=found.dtype)
        return moments if is_local else moments.tz_localize("UTC").tz_convert(field.get("tz", "UTC"))

    def _durations(self, field: Mapping[str, Any], values: Iterable[str | None]) -> Any:
        dtype = self._numpy.dtype(field.get("dtype", "timedelta64[ns]"))
        factor = _NANOSECONDS[self._numpy.datetime_data(dtype)[0]]
        least = self._numpy.iinfo("int64").min  # NaT
        counts = [least if text is None else _nanoseconds(text) // factor for text in values]
        return self._pandas.array(self._numpy.array(counts, dtype="int64").view(dtype), dtype=dtype)

    def _numbers(self, field: Mapping[str, Any], values: Sequence[Any]) -> Any:
        if "extDtype" not in field:
            dtype = self._numpy.dtype(field.get("dtype", _PLAIN_DTYPES[field["type"]]))
            if dtype.kind == "f":
                make = float if dtype.itemsize <= 8 else self._numpy.longdouble
                values = [make("nan") if value is None else make(value) for value in values]
            return self._numpy.array(values, dtype=dtype)
        name = field["extDtype"]
        if name.startswith("decimal"):
            return self._extension(field, [None if value is None else Decimal(value) for value in values])
        if field["type"] != "number":
            return self._extension(field, values)
        found = [None if value is None else float(value) for value in values]
        if not name.startswith("Float"):
            return self._extension(field, found)
        nan = float("nan")
        numbers = [nan if value is None else value for value in found]
        missing = self._numpy.array([value is None for value in found], dtype=bool)
        return self._pandas.arrays.FloatingArray(self._numpy.array(numbers, dtype=name.lower()), missing)

    def _objects(self, field: Mapping[str, Any], values: Sequence[Any]) -> Any:
        if field.get("extDtype") == _NANOSECOND_TIMES:
            return self._extension(
                field, [None if text is None else _since_midnight(text) for text in values]
            )
        of_kind = self._kinds[field["values"]] if "values" in field else self._value
        nothing = self._nothing[field["missing"]] if "missing" in field else None
        found = [nothing if value is None else of_kind(value) for value in values]
        if "extDtype" in field:
            return self._extension(field, found)
        array = self._numpy.empty(len(found), dtype=object)
        array[:] = self._one_by_one(found)
        dtype = field.get("dtype", "object")
        return array if dtype == "object" else array.astype(dtype)

    def _one_by_one(self, values: Sequence[Any]) -> Any:
        # numpy makes an array of several dimensions of lists of equal length.
        array = self._numpy.empty(len(values), dtype=object)
        for at, value in enumerate(values):
            array[at] = value
        return array

    def _extension(self, field: Mapping[str, Any], values: Sequence[Any]) -> Any:
        pandas, name = self._pandas, field["extDtype"]
        if name.endswith("[pyarrow]"):
            return self._arrow(name, values)
        try:
            dtype = pandas.api.types.pandas_dtype(field.get("dtype", name))
        except (TypeError, ValueError):
            return self._one_by_one(values)
        if isinstance(dtype, pandas.SparseDtype):
            dense = [dtype.na_value if value is None else value for value in values]
            return pandas.arrays.SparseArray(self._numpy.array(dense, dtype=dtype.subtype), dtype=dtype)
        return pandas.array(self._one_by_one(values), dtype=dtype)

    def _arrow(self, name: str, values: Sequence[Any]) -> Any:
        try:
            pyarrow = import_module("pyarrow")
        except ImportError:
            return self._one_by_one(values)
        decimal = _DECIMAL_TYPE.fullmatch(name)
        if decimal:
            kind = getattr(pyarrow, f"decimal{decimal[1]}")(int(decimal[2]), int(decimal[3]))
        else:
            try:
                # pandas takes Arrow's string for its own.
                kind = getattr(self._pandas.api.types.pandas_dtype(name), "pyarrow_dtype", pyarrow.string())
            except (TypeError, ValueError, NotImplementedError):
                kind = None
        array = pyarrow.array(values, type=kind, from_pandas=False)
        if f"{array.type}[pyarrow]" != name:
            return self._one_by_one(values)
        return self._pandas.arrays.ArrowExtensionArray(pyarrow.chunked_array([array]))

    # Values

    def _value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._value(each) for each in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((key, inside),) = value.items()
            if key.startswith("$"):
                return self._kinds[key[1:]](inside)
        return {key: self._value(each) for key, each in value.items()}

    def _timestamp(self, text: str) -> Any:
        moment, _, zone = text.removesuffix("]").partition("Z")
        found = self._pandas.Timestamp(moment)
        if text == moment:
            return found
        name = zone.removeprefix("[") or "UTC"
        return found.tz_localize("UTC").tz_convert(f"UTC{name}" if name[0] in "+-" else name)

    def _timedelta(self, text: str) -> Any:
        nanoseconds = _nanoseconds(text)
        if abs(nanoseconds) < 2**63:
            return self._pandas.Timedelta(nanoseconds, unit="ns")
        return timedelta(microseconds=nanoseconds // 1000)

    def _period(self, text: str, freq: Any) -> Any:
        return self._pandas.Period(self._pandas.Timestamp(text), freq=freq)
