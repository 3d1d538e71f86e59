"""pandas' tables as data: what ``bootstrap.py`` adds to what a cell shows, if its request asks for it.

The form is pandas' Table Schema, as ``to_json(orient="table")`` writes it, but not made by it: that cuts
floats after ten decimals and times after milliseconds, writes two columns of one name over each other, and
has no form for many values. ``docs/reference/api.md`` states what is different, and
``gateway/cellgate/client/tables.py`` makes the table again.

A value for which JSON has no form is an object with one key that begins with ``$``. In a column whose values
are all of one such kind only their content is written, and the field says which kind (`values`).
"""

import json
import math
import warnings
from base64 import b64encode
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

MOST_VALUES = 995_000
MOST_CONTAINERS = 249_000
DEEPEST = 60
"""A gateway reads no message with much more of them, and would leave the whole output out."""
MOST_BITS = 800
"""Of an integer in decimal digits: reading and writing these costs the square of their number."""
MOST_WORDS = 200
TOO_LARGE = "it has too many values: ask for fewer rows"
PER_FIELD = 4
"""What a field counts for, in values."""

DAY = 86_400 * 10**9  # nanoseconds
PLAIN_DTYPES = {
    "integer": "int64",
    "number": "float64",
    "boolean": "bool",
    "datetime": "datetime64[ns]",
    "duration": "timedelta64[ns]",
}
"""The dtypes that a field's type stands for; others are named."""


class NoTable(Exception):
    """Why a table does not come as data."""


def table_or_why(table, rows):
    """Return the first `rows` of a DataFrame or Series as data, or None and why as metadata."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = {**Writer().table(table.head(rows)), "total_rows": len(table)}
        # What fails here would fail in the kernel's message, and with it the whole output.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except NoTable as error:
        why = str(error)
    except UnicodeEncodeError:
        why = "it has text that is no valid Unicode"
    except Exception as error:  # noqa: BLE001 - pandas and what is in a table raise anything
        why = f"{type(error).__name__}: {words(error)}"
    else:
        return found
    return None, {"problem": why}


def words(error):
    """Return an error's message, cut; a fixed one if the error can't give its own."""
    try:
        return str(error)[:MOST_WORDS].encode(errors="replace").decode()
    except Exception:  # noqa: BLE001 - it may be anybody's
        return "it can't be converted"


def duration(nanoseconds):
    """Format a duration by ISO 8601 as pandas does, where only days can be negative."""
    days, rest = divmod(nanoseconds, DAY)
    seconds, fraction = divmod(rest, 10**9)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    exactly = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"P{days}DT{hours}H{minutes}M{seconds}{exactly}S"


def in_thousandths(text):
    """Return a time in ISO's form with three decimals, or with six or nine and so on if it needs them."""
    whole, _, fraction = text.partition(".")
    fraction = fraction or "000"
    while len(fraction) > 3 and fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{whole}.{fraction}"


def zone_name(zone, moment=None):
    """Return a time zone's name in the database, or its offset as ``UTC+01:00``; None without any."""
    file = getattr(zone, "_filename", None)
    if isinstance(file, str):
        return f"dateutil/{file.rpartition('/zoneinfo/')[2]}"
    for attribute in ("key", "zone"):
        name = getattr(zone, attribute, None)
        if isinstance(name, str):
            return name
    offset = zone.utcoffset(moment)
    return None if offset is None else str(timezone(offset))


def tag_of(value):
    """Return the kind of an encoded value for which JSON has no form, or None."""
    if type(value) is dict and len(value) == 1:
        (key,) = value
        return key[1:] if key[:1] == "$" else None
    return None


def settled(found, is_object):
    """Return encoded values of a column, and what its field says of them: one kind and one sort of nothing.

    Other columns than those of objects know their own sort.
    """
    tags = [tag_of(value) for value in found]
    said = {}
    nothing = {
        value["$missing"] if tag == "missing" else "None"
        for value, tag in zip(found, tags, strict=True)
        if value is None or tag == "missing"
    }
    if len(nothing) > 1 and is_object:
        return found, said
    if nothing and is_object and nothing != {"None"}:
        (said["missing"],) = nothing
    kinds = {tag for value, tag in zip(found, tags, strict=True) if value is not None and tag != "missing"}
    if len(kinds) == 1 and None not in kinds:
        (said["values"],) = kinds
    inside = f"${said.get('values')}"
    return [
        None if value is None or tag == "missing" else value[inside] if "values" in said else value
        for value, tag in zip(found, tags, strict=True)
    ], said


def base_of(label, code):
    """Return a field's name for a label, if no other has it."""
    if type(code) in (str, int):
        return code
    inside = code[f"${tag_of(code)}"] if tag_of(code) else None
    return inside if isinstance(inside, str) else str(label)


def times_of_day(values):
    """Encode Arrow's to the nanosecond, which Python's own times of day don't know."""
    found = []
    for value, gone in zip(values.astype("int64[pyarrow]"), values.isna(), strict=True):
        seconds, fraction = (0, 0) if gone else divmod(int(value), 10**9)
        text = (datetime.min + timedelta(seconds=seconds)).time().isoformat()  # noqa: DTZ901
        exactly = f".{fraction:09d}".rstrip("0") if fraction else ""
        found.append(None if gone else text + exactly)
    return found


class Writer:
    """Writes one table, of limited size."""

    def __init__(self):
        import numpy  # noqa: PLC0415 - only when there is a table
        import pandas  # noqa: PLC0415

        self.numpy, self.pandas = numpy, pandas
        self.values, self.containers = MOST_VALUES, MOST_CONTAINERS
        # In this order: a bool is an int, numpy's timedelta64 an integer, a Timestamp a datetime and a date.
        self.known = (
            ((bool, numpy.bool_), lambda value, _: bool(value)),
            (str, lambda value, _: str.__str__(value)),
            (numpy.timedelta64, lambda value, depth: self.timedelta(pandas.Timedelta(value), depth)),
            ((int, numpy.integer), self.integer),
            ((float, numpy.floating), self.floating),
            (dict, self.mapping),
            ((list, tuple, set, frozenset), self.sequence),
            (numpy.ndarray, self.array),
            (datetime, self.moment),
            (date, lambda value, _: {"$date": f"{value.isoformat()}T00:00:00.000"}),
            (time, self.time_of_day),
            (timedelta, self.timedelta),
            (Decimal, lambda value, _: {"$decimal": str(value)}),
            ((bytes, bytearray, memoryview), lambda value, _: {"$bytes": b64encode(value).decode()}),
            (pandas.Period, self.period),
            (pandas.Interval, self.interval),
            ((complex, numpy.complexfloating), self.complex),
            (numpy.datetime64, self.moment_of_numpy),
        )

    # Tables

    def table(self, table):
        """Return the schema and the rows."""
        if table.ndim == 1:
            parts, labels = [table], [table.name]
        else:
            parts, labels = [table.iloc[:, at] for at in range(table.shape[1])], list(table.columns)
        index = table.index
        fields = len(parts) + index.nlevels
        self.spend(fields * (PER_FIELD + len(table)))
        self.opened(fields + len(table), 0)
        names = self.names(labels, index, is_series=table.ndim == 1)
        found = [*self.index(index), *(self.column(part) for part in parts)]
        fields = [{**name, **field} for name, (field, _) in zip(names, found, strict=True)]
        schema = {"fields": fields}
        schema["primaryKey" if index.is_unique else "index"] = [
            field["name"] for field in fields[: index.nlevels]
        ]
        schema["pandas_version"] = "1.4.0"
        if table.ndim == 1:
            schema["series"] = True
        elif columns := self.columns(table.columns):
            schema["columns"] = columns
        keys = [str(field["name"]) for field in fields]
        rows = zip(*(values for _, values in found), strict=True)
        return {"schema": schema, "data": [dict(zip(keys, row, strict=True)) for row in rows]}

    def names(self, labels, index, *, is_series):
        """Return each field's name, which is its key in the rows, and its label if that differs."""
        encoded = [self.value(label) for label in labels]
        bases = [base_of(*pair) for pair in zip(labels, encoded, strict=True)]
        if is_series and not labels[0]:
            bases = ["values"]
        taken, numbers = {str(base) for base in bases}, {}

        def another(base):
            number = numbers.get(base, 1)
            while f"{base}_{number}" in taken:
                number += 1
            numbers[base] = number + 1
            taken.add(f"{base}_{number}")
            return f"{base}_{number}"

        of_columns, had = [], set()
        for label, code, base in zip(labels, encoded, bases, strict=True):
            name = another(base) if str(base) in had else base
            had.add(str(name))
            plain = (
                label is None if is_series and name == "values" else type(code) is type(name) and code == name
            )
            of_columns.append({"name": name} if plain else {"name": name, "label": code})
        of_index = []
        for at, label in enumerate(index.names):
            default = "index" if index.nlevels == 1 else f"level_{at}"
            code = self.value(label)
            base = default if label is None else base_of(label, code)
            if label is None and base == "index" and base in taken and "level_0" not in taken:
                base = "level_0"  # as reset_index does
            name = another(base) if str(base) in taken else base
            taken.add(str(name))
            # Without a label the name that unnamed ones get stands for none.
            plain = label is None if name == default else type(code) is type(name) and code == name
            of_index.append({"name": name} if plain else {"name": name, "label": code})
        return [*of_index, *of_columns]

    def columns(self, columns):
        """Return the properties of the columns' index that its labels don't show."""
        said = {}
        labels = list(columns)
        if columns.nlevels > 1:
            said["levels"] = columns.nlevels
        if any(name is not None for name in columns.names):
            said["names"] = [self.value(name) for name in columns.names]
        if labels:
            if columns.nlevels > 1:
                again = list(self.pandas.MultiIndex.from_tuples(labels).dtypes)
                dtypes = list(columns.dtypes)
            else:
                again = [self.pandas.Index(labels, tupleize_cols=False).dtype]
                dtypes = [columns.dtype]
            if again != dtypes:
                said["dtypes"] = [str(dtype) for dtype in dtypes]
        return said

    def index(self, index):
        """Return the fields and values of an index's levels."""
        if index.nlevels == 1:
            return [self.column(index)]
        found = []
        for level, codes in zip(index.levels, index.codes, strict=True):
            field, values = self.column(level)
            found.append((field, [None if at < 0 else values[at] for at in codes.tolist()]))
        return found

    # Columns

    def column(self, values):
        """Return the field without its name, and the encoded values, of a column or a level."""
        dtype = values.dtype
        field = {"type": self.type_of(dtype), **self.dtype_of(dtype)}
        pandas = self.pandas
        if isinstance(dtype, pandas.CategoricalDtype):
            return self.categories(field, values.array)
        if isinstance(dtype, pandas.PeriodDtype):
            missing = values.isna()
            return field, [
                None if gone else self.start(each) for each, gone in zip(values.array, missing, strict=True)
            ]
        if isinstance(dtype, pandas.DatetimeTZDtype):
            moments = values.array.tz_convert(None).to_numpy()
            return field, [each and f"{each}Z" for each in self.moments(moments)]
        if isinstance(dtype, pandas.api.extensions.ExtensionDtype):
            values = values.array
        else:
            values = values.to_numpy()
            if dtype.kind == "M":
                return field, self.moments(values)
            if dtype.kind == "m":
                return field, self.durations(values)
        if dtype.name == "time64[ns][pyarrow]":
            return {**field, "values": "time"}, times_of_day(values)
        if field["type"] in ("integer", "number", "boolean") and dtype.kind != "c":
            return field, self.numbers(values, dtype)
        is_object = isinstance(dtype, self.numpy.dtype) and dtype.kind == "O"
        found, said = settled([self.value(value) for value in values], is_object)
        self.opened(sum(tag_of(value) is not None for value in found), 0)
        return {**field, **said}, found

    def type_of(self, dtype):
        """Return the type that pandas' own Table Schema gives a dtype."""
        types, pandas = self.pandas.api.types, self.pandas
        known = (
            (types.is_integer_dtype, "integer"),
            (types.is_bool_dtype, "boolean"),
            (types.is_numeric_dtype, "number"),
            (lambda it: isinstance(it, (pandas.DatetimeTZDtype, pandas.PeriodDtype)), "datetime"),
            (lambda it: isinstance(it, self.numpy.dtype) and it.kind == "M", "datetime"),
            (lambda it: isinstance(it, self.numpy.dtype) and it.kind == "m", "duration"),
            (lambda it: isinstance(it, pandas.CategoricalDtype), "any"),
            (types.is_string_dtype, "string"),
        )
        return next((name for holds, name in known if holds(dtype)), "any")

    def dtype_of(self, dtype):
        """Return the properties of a field that describe its dtype beyond the type."""
        pandas = self.pandas
        if isinstance(dtype, pandas.CategoricalDtype):
            return {"ordered": bool(dtype.ordered)}
        if isinstance(dtype, pandas.PeriodDtype):
            return {"freq": dtype.freq.freqstr, "dtype": str(dtype)}
        if isinstance(dtype, pandas.DatetimeTZDtype):
            name = zone_name(dtype.tz)
            said = {} if name is None else {"tz": name}
            kind = f"datetime64[{dtype.unit}, {name or 'UTC'}]"
            return said if dtype.unit == "ns" else {**said, "dtype": kind}
        if isinstance(dtype, pandas.api.extensions.ExtensionDtype):
            return {"extDtype": dtype.name, **self.more_of(dtype)}
        name = str(dtype)
        return {} if PLAIN_DTYPES.get(self.type_of(dtype)) == name else {"dtype": name}

    def more_of(self, dtype):
        """Return the whole of an extension's dtype, where its name does not say it."""
        try:
            named = self.pandas.api.types.pandas_dtype(dtype.name)
            if named == dtype and str(named) == str(dtype):
                return {}
        except (TypeError, ValueError, NotImplementedError):
            pass
        if isinstance(dtype, self.pandas.StringDtype) and dtype.na_value is self.pandas.NA:
            return {"dtype": f"string[{dtype.storage}]"}
        return {} if str(dtype) == dtype.name else {"dtype": str(dtype)}

    def categories(self, field, array):
        """Return the field and values of a categorical column; the field says what its categories are."""
        categories = array.categories
        inner, found = self.column(categories)
        field["constraints"] = {"enum": found}
        if "values" in inner or self.pandas.Index(found).dtype != categories.dtype:
            field["categories"] = inner
        return field, [None if code < 0 else found[code] for code in array.codes.tolist()]

    def numbers(self, values, dtype):
        """Encode numbers and truth values: null is the column's own sort of nothing."""
        kind = dtype.kind if isinstance(dtype, self.numpy.dtype) else ""
        if kind in ("i", "u", "b"):
            return values.tolist()
        if kind == "f" and dtype.itemsize <= 8 and self.numpy.isfinite(values).all():
            return values.tolist()
        nan_is_nothing = kind == "f" or isinstance(getattr(dtype, "na_value", None), float)
        return [self.number(value, nan_is_nothing) for value in values]

    def number(self, value, nan_is_nothing):
        """Return one of them; what JSON's numbers can't be is a string, as Table Schema has it."""
        found = self.value(value)
        tag = tag_of(found)
        if tag is None:
            return found
        if tag == "missing":
            return None if nan_is_nothing or found["$missing"] != "NaN" else "NaN"
        return found[f"${tag}"]

    def moments(self, values):
        """Encode numpy's times without a zone, to their last digit."""
        if not len(values):
            return []
        texts = self.numpy.datetime_as_string(values).tolist()
        return [None if text == "NaT" else in_thousandths(text) for text in texts]

    def durations(self, values):
        """Encode an array of numpy's durations; None for missing ones."""
        unit, count = self.numpy.datetime_data(values.dtype)
        factor = count * {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]
        missing = self.numpy.isnat(values).tolist()
        pairs = zip(values.astype("int64").tolist(), missing, strict=True)
        return [None if gone else duration(value * factor) for value, gone in pairs]

    # Values

    def value(self, value, depth=0):
        """Encode any value. Those of a column are counted with it."""
        if depth:
            self.spend(1)
        if value is None or type(value) is str:
            return value
        if value is self.pandas.NaT or value is self.pandas.NA:
            return {"$missing": "NA" if value is self.pandas.NA else "NaT"}
        for kinds, write in self.known:
            if isinstance(value, kinds):
                found = write(value, depth)
                break
        else:
            found = {"$text": str(value)}
        if depth and tag_of(found):
            self.opened(1, depth)
        return found

    def spend(self, count):
        """Count values. Raises NoTable."""
        self.values -= count
        if self.values < 0:
            raise NoTable(TOO_LARGE)

    def opened(self, count, depth):
        """Count lists and objects. Raises NoTable."""
        self.containers -= count
        if self.containers < 0:
            raise NoTable(TOO_LARGE)
        if depth > DEEPEST:
            raise NoTable("it has values that are nested too deep")

    def integer(self, value, _):
        """Return a huge one in hexadecimal digits."""
        value = int.__index__(value) if isinstance(value, int) else int(value)
        return value if value.bit_length() <= MOST_BITS else {"$int": hex(value)}

    def floating(self, value, _):
        """Return a floating-point value for JSON, whose numbers hold doubles exactly; others as text."""
        near = float.__float__(value) if isinstance(value, float) else float(value)
        if math.isfinite(near):
            return near if near == value else {"$float": str(value)}
        if math.isnan(near):
            return {"$missing": "NaN"}
        return {"$float": "INF" if near > 0 else "-INF"}

    def mapping(self, value, depth):
        """Return an object if it can be one."""
        plain = all(type(key) is str for key in value) and tag_of(dict.fromkeys(value)) is None
        self.opened(1 if plain else 2 + len(value), depth if plain else depth + 2)
        if plain:
            return {key: self.value(each, depth + 1) for key, each in value.items()}
        inner = depth + 3
        return {"$dict": [[self.value(key, inner), self.value(each, inner)] for key, each in value.items()]}

    def sequence(self, value, depth):
        """Encode a list, tuple or set."""
        self.opened(1, depth)
        return [self.value(each, depth + 1) for each in value]

    def array(self, value, depth):
        """Return an array within a table."""
        return self.sequence(value, depth) if value.ndim else self.value(value[()], depth)

    def moment(self, value, _):
        """Encode a time: in UTC if it has a zone, with its name after RFC 9557."""
        zone, offset = value.tzinfo, value.utcoffset()
        suffix = ""
        if offset is not None:
            name = zone_name(zone, value) or str(timezone(offset))
            suffix = "Z" if name == "UTC" else f"Z[{name.removeprefix('UTC')}]"
        if isinstance(value, self.pandas.Timestamp):
            naive = value if offset is None else value.tz_convert(None)
            text = str(self.numpy.datetime_as_string(naive.to_datetime64()))
        else:
            naive = value.replace(tzinfo=None) - (offset or timedelta(0))
            text = naive.isoformat(timespec="microseconds")
        return {"$timestamp": in_thousandths(text) + suffix}

    def moment_of_numpy(self, value, _):
        """Encode numpy's time, which may be a day, or finer than a nanosecond."""
        if self.numpy.isnat(value):
            return {"$missing": "NaT"}
        text = str(self.numpy.datetime_as_string(value))
        if text.count(":") < 2:
            text = str(self.numpy.datetime_as_string(value.astype("datetime64[s]")))
        return {"$timestamp": in_thousandths(text)}

    def time_of_day(self, value, _):
        """Encode a time of day; as text with a zone, whose offset depends on the day."""
        return {"$time" if value.tzinfo is None else "$text": value.isoformat()}

    def timedelta(self, value, _):
        """Encode a duration of pandas or Python."""
        if value is self.pandas.NaT:
            return {"$missing": "NaT"}
        seconds = value.days * 86_400 + value.seconds
        fraction = value.microseconds * 1000 + getattr(value, "nanoseconds", 0)
        return {"$timedelta": duration(seconds * 10**9 + fraction)}

    def period(self, value, depth):
        """Encode a period as its beginning and its frequency."""
        self.opened(1, depth + 1)
        self.spend(1)
        return {"$period": [self.start(value), value.freqstr]}

    def start(self, period):
        """Return the moment when a period begins, which identifies it together with its frequency."""
        try:
            moment = period.to_timestamp(how="start").to_datetime64()
        except self.pandas.errors.OutOfBoundsDatetime:
            moment = self.numpy.datetime64(period.asfreq("s", "start").strftime("%Y-%m-%dT%H:%M:%S"))
        return in_thousandths(str(self.numpy.datetime_as_string(moment)))

    def interval(self, value, depth):
        """Encode an interval as its ends and which of them it includes."""
        self.opened(1, depth + 1)
        left, right = self.value(value.left, depth + 2), self.value(value.right, depth + 2)
        return {"$interval": {"left": left, "right": right, "closed": value.closed}}

    def complex(self, value, depth):
        """Encode a complex number as its two parts."""
        self.opened(1, depth + 1)
        self.spend(1)
        return {
            "$complex": {"real": self.floating(value.real, depth), "imag": self.floating(value.imag, depth)}
        }
