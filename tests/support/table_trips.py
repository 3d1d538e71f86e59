"""Tables through the kernel's writer, JSON and the client's reader; run by the kernel environment's Python.

``table_trips.py CHECK EXAMPLES`` runs one of `CHECKS`. pandas is there and the gateway's own packages are
not, so the files of both sides are loaded by their paths, and hypothesis from the folder in HYPOTHESIS.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import math
import os
import sys
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

ROOT = Path(__file__).parents[2]
# Behind the kernel's own packages, of which the folder has other versions.
sys.path.append(os.environ["HYPOTHESIS"])

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

try:
    import pyarrow as pa
except ImportError:  # the environment `minimal`
    pa = None


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem + "_tried", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = load("kernels/cellgate_kernels/inside/tables.py")
client_tables = load("gateway/cellgate/client/tables.py")


def written(table: Any, rows: int = 1000) -> Any:
    """The table as it arrives."""
    found = tables.table_or_why(table, rows)
    return json.loads(json.dumps(found, allow_nan=False))


def column(values: Any, **options: Any) -> dict[str, Any]:
    """The field of a column, and what was written of its values."""
    arrived = written(pd.DataFrame({"x": pd.Series(values, **options)}))
    return {"field": arrived["schema"]["fields"][1], "values": [row["x"] for row in arrived["data"]]}


def bits(value: Any) -> Any:  # noqa: PLR0911
    """What tells a value from all others: NaN from NA, -0.0 from 0.0, True from 1, Decimal 1.0 from 1.00."""
    if value is None or value is pd.NA or value is pd.NaT:
        return repr(value)
    if isinstance(value, (float, np.floating)):
        return ("float", "nan" if math.isnan(value) else float(value).hex())
    if isinstance(value, complex):
        return ("complex", bits(value.real), bits(value.imag))
    if isinstance(value, dict):
        return ("dict", [(bits(key), bits(each)) for key, each in value.items()])
    if isinstance(value, (list, tuple)):
        return ("list", [bits(each) for each in value])
    if isinstance(value, (pd.Timestamp, dt.datetime)):
        stamp = pd.Timestamp(value)
        return ("time", str(stamp.tz_convert("UTC") if stamp.tz else stamp), str(stamp.utcoffset()))
    if isinstance(value, dt.timedelta):
        return ("duration", value.days, value.seconds, value.microseconds, getattr(value, "nanoseconds", 0))
    if isinstance(value, pd.Interval):
        return ("interval", bits(value.left), bits(value.right), value.closed)
    return (type(value).__name__, str(value))


def same(left: Any, right: Any) -> None:
    """Both are one table: dtypes, labels and names, and values to the last bit."""
    check = pd.testing.assert_series_equal if right.ndim == 1 else pd.testing.assert_frame_equal
    if not any(isinstance(value, (dict, list)) for value in np.ravel(right.to_numpy(dtype=object))):
        check(left, right, check_exact=True, check_freq=False)
    for one, other in zip(parts(left), parts(right), strict=True):
        assert one.dtype == other.dtype, (one.dtype, other.dtype)
        assert [bits(value) for value in one] == [bits(value) for value in other]
    assert [bits(name) for name in left.index.names] == [bits(name) for name in right.index.names]
    if right.ndim == 2:
        assert [bits(label) for label in left.columns] == [bits(label) for label in right.columns]
        assert list(left.columns.names) == list(right.columns.names)


def parts(table: Any) -> list[Any]:
    index = [table.index.get_level_values(at) for at in range(table.index.nlevels)]
    return index + ([table] if table.ndim == 1 else [table.iloc[:, at] for at in range(table.shape[1])])


# What tables are made of.

ZONES = ("UTC", "Europe/Berlin", "Asia/Kathmandu", "UTC+05:30", "America/New_York")
# The first and the last of nanoseconds in 64 bits are ends that zones can't be added to.
NANOSECONDS = st.integers(-(2**63) + 2 * 10**14, 2**63 - 2 * 10**14)
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats() | st.sampled_from([2.5e-11, 1 / 3, -0.0, 5e-324, 1e16, 2.0**53 + 2, math.inf, -math.inf])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
DATES = st.dates()
MOMENTS = st.builds(
    lambda at, zone: pd.Timestamp(at, tz=zone), NANOSECONDS, st.none() | st.sampled_from(ZONES)
) | st.datetimes(
    timezones=st.none() | st.sampled_from([ZoneInfo("Europe/Rome"), dt.UTC]),
    min_value=dt.datetime(1900, 1, 1),  # noqa: DTZ001
)
PERIODS = st.builds(
    pd.Period, DATES.filter(lambda day: day.year > 1), st.sampled_from(["D", "M", "Y", "Q-MAR", "W-WED", "h"])
)
INTERVALS = st.builds(
    lambda ends, closed: pd.Interval(*sorted(ends), closed=closed),
    st.tuples(INT64, INT64),
    st.sampled_from(["left", "right", "both", "neither"]),
)
# pandas can't compare signalling ones.
DECIMALS = st.decimals().filter(lambda number: not number.is_snan())
MISSING = st.sampled_from([None, math.nan, pd.NA, pd.NaT])
SCALARS = st.one_of(
    MISSING,
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**1000, max_value=2**1010),
    FLOATS,
    TEXTS,
    st.binary(max_size=5),
    DECIMALS,
    DATES,
    st.times(),
    MOMENTS,
    st.timedeltas(),
    st.builds(lambda count: pd.Timedelta(count, unit="ns"), NANOSECONDS),
    PERIODS,
    INTERVALS,
    st.complex_numbers(),
)
KEYS = TEXTS | st.sampled_from(["$date", "$missing", "$"]) | st.integers() | st.booleans()
OBJECTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
LABELS = st.one_of(
    st.sampled_from(["a", "a_1", "b", "index", "level_0", "level_1", "values", "1", "", "$date"]),
    st.integers(-3, 3),
    st.integers(min_value=2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.tuples(st.sampled_from("ab"), st.integers(0, 1)),
    st.builds(pd.Timestamp, NANOSECONDS),
    DATES,
)
Values = Callable[[int], st.SearchStrategy[Any]]


def of(elements: st.SearchStrategy[Any], make: Callable[[list[Any]], Any]) -> Values:
    return lambda count: st.lists(elements, min_size=count, max_size=count).map(make)


def as_dtype(dtype: Any) -> Callable[[list[Any]], Any]:
    return lambda values: pd.array(values, dtype=dtype)


def as_numpy(dtype: str) -> Callable[[list[Any]], Any]:
    return lambda values: (
        np.array(values, dtype="int64").view(dtype) if dtype[0] in "dt" else np.array(values, dtype=dtype)
    )


def as_objects(values: list[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):
        array[at] = value
    return array


def as_floating(pairs: list[tuple[float, bool]]) -> Any:
    numbers = np.array([number for number, _ in pairs], dtype="float64")
    return pd.arrays.FloatingArray(numbers, np.array([gone for _, gone in pairs], dtype=bool))


def as_arrow(kind: Any) -> Callable[[list[Any]], Any]:
    return lambda values: pd.arrays.ArrowExtensionArray(
        pa.chunked_array([pa.array(values, type=kind, from_pandas=False)])
    )


def maybe(elements: st.SearchStrategy[Any], nothing: Any = None) -> st.SearchStrategy[Any]:
    return st.just(nothing) | elements


def zoned(zone: str, unit: str) -> Values:
    def make(values: list[int]) -> Any:
        naive = pd.array(np.array(values, dtype="int64").view("datetime64[ns]")).as_unit(unit)
        return naive.tz_localize("UTC").tz_convert(zone)

    return of(NANOSECONDS, make)


SECONDS = st.integers(-(10**11), 10**11) | st.just(-(2**63))
COLUMNS: dict[str, Values] = {
    "int64": of(INT64, as_numpy("int64")),
    "uint64": of(st.integers(0, 2**64 - 1), as_numpy("uint64")),
    "int8": of(st.integers(-128, 127), as_numpy("int8")),
    "bool": of(st.booleans(), as_numpy("bool")),
    "float64": of(FLOATS, as_numpy("float64")),
    "float32": of(st.floats(width=32), as_numpy("float32")),
    "complex128": of(st.complex_numbers(), as_numpy("complex128")),
    "datetime64[ns]": of(NANOSECONDS | st.just(-(2**63)), as_numpy("datetime64[ns]")),
    "datetime64[us]": of(st.integers(-(10**16), 10**16), as_numpy("datetime64[us]")),
    "datetime64[s]": of(SECONDS, as_numpy("datetime64[s]")),
    "timedelta64[ns]": of(INT64, as_numpy("timedelta64[ns]")),
    "timedelta64[ms]": of(SECONDS, as_numpy("timedelta64[ms]")),
    "zoned": lambda count: st.sampled_from(ZONES).flatmap(
        lambda zone: st.sampled_from(["ns", "us", "s"]).flatmap(lambda unit: zoned(zone, unit)(count))
    ),
    "Int64": of(maybe(INT64), as_dtype("Int64")),
    "UInt8": of(maybe(st.integers(0, 255)), as_dtype("UInt8")),
    "boolean": of(maybe(st.booleans()), as_dtype("boolean")),
    "Float64": of(st.tuples(FLOATS, st.booleans()), as_floating),
    "string": of(maybe(TEXTS), as_dtype("string")),
    "objects": of(OBJECTS, as_objects),
    "texts": of(maybe(TEXTS, math.nan), as_objects),
    "decimals": of(maybe(DECIMALS), as_objects),
    "dates": of(maybe(DATES, pd.NaT), as_objects),
    "categories": of(maybe(TEXTS), lambda values: pd.Categorical(values, ordered=True)),
    "categories of times": of(
        NANOSECONDS, lambda values: pd.Categorical(np.array(values, dtype="int64").view("datetime64[ns]"))
    ),
    "categories of intervals": of(
        st.integers(0, 9),
        lambda values: pd.cut(pd.Series(values, dtype="float64"), [-1.5, 1 / 3, 2, 9]).array,
    ),
    "periods": lambda count: st.sampled_from(["D", "M", "3M", "W-SUN", "Q-DEC", "min", "ns"]).flatmap(
        lambda freq: of(
            maybe(DATES.filter(lambda day: 1700 < day.year < 2200)), as_dtype(pd.PeriodDtype(freq))
        )(count)
    ),
    "intervals": of(
        st.tuples(FLOATS, FLOATS).filter(lambda ends: ends[0] <= ends[1]),
        lambda values: pd.arrays.IntervalArray.from_tuples(
            values, closed="left", dtype=pd.IntervalDtype("float64", "left")
        ),
    ),
    "sparse": of(FLOATS, lambda values: pd.arrays.SparseArray(np.array(values, dtype="float64"))),
}
if pa is not None:
    COLUMNS |= {
        "arrow's integers": of(maybe(INT64), as_arrow(pa.int64())),
        "arrow's floats": of(maybe(FLOATS), as_arrow(pa.float64())),
        "arrow's texts": of(maybe(TEXTS), as_arrow(pa.string())),
        "arrow's bytes": of(maybe(st.binary(max_size=4)), as_arrow(pa.binary())),
        "arrow's decimals": of(maybe(st.decimals(-(10**6), 10**6, places=3)), as_arrow(pa.decimal128(12, 3))),
        "arrow's dates": of(maybe(DATES), as_arrow(pa.date32())),
        "arrow's times": of(
            maybe(st.integers(0, 86_400 * 10**9 - 1)),
            lambda values: as_arrow(pa.int64())(values).astype(pd.ArrowDtype(pa.time64("ns"))),
        ),
        "arrow's moments": of(maybe(NANOSECONDS), as_arrow(pa.timestamp("ns", "Europe/Berlin"))),
        "arrow's durations": of(maybe(NANOSECONDS), as_arrow(pa.duration("ns"))),
    }
# What an index can be made of: it takes no lists, and has no dtype for some of the others.
LEVELS = (
    "int64",
    "float64",
    "datetime64[ns]",
    "timedelta64[ns]",
    "zoned",
    "string",
    "Int64",
    "categories",
    "periods",
    "intervals",
)
NAMES = st.none() | st.sampled_from(["a", "index", "level_0", "level_1", "values", 0, 1, ("p", 1)])


@st.composite
def indexes(draw: st.DrawFn, count: int) -> Any:
    kind = draw(st.sampled_from(["range", "one", "equal", "several"]))
    if kind == "range":
        return pd.RangeIndex(count, name=draw(NAMES))
    if kind == "equal":
        return pd.Index([7] * count, dtype="int64", name=draw(NAMES))
    level = st.sampled_from(LEVELS).flatmap(lambda name: COLUMNS[name](count))
    if kind == "one":
        values = draw(level)
        return pd.Index(values, dtype=values.dtype, name=draw(NAMES))
    levels = draw(st.lists(level, min_size=2, max_size=3))
    names = draw(st.lists(NAMES, min_size=len(levels), max_size=len(levels)))
    return pd.MultiIndex.from_arrays([pd.Index(each, dtype=each.dtype) for each in levels], names=names)


@st.composite
def columns_of(draw: st.DrawFn, width: int) -> Any:
    several = st.tuples(st.sampled_from("ab"), st.integers(0, 2))
    if width and draw(st.integers(0, 3)) == 0:
        return pd.MultiIndex.from_tuples(
            draw(st.lists(several, min_size=width, max_size=width)),
            names=draw(st.sampled_from([None, ["p", 2]])),
        )
    labels = draw(st.lists(LABELS, min_size=width, max_size=width))
    return pd.Index(
        as_objects(labels), dtype=object, tupleize_cols=False, name=draw(st.sampled_from([None, "k"]))
    )


@st.composite
def any_table(draw: st.DrawFn) -> Any:
    count, width = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    index = draw(indexes(count))
    kinds = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=width, max_size=width))
    arrays = [draw(COLUMNS[kind](count)) for kind in kinds]
    series = [pd.Series(array, index=index, dtype=array.dtype) for array in arrays]
    if draw(st.integers(0, 3)) == 0:
        return series[0].rename(draw(NAMES))
    return pd.DataFrame(dict(enumerate(series)), index=index).set_axis(draw(columns_of(width)), axis=1)


# Checks.


def check_trips(count: int) -> None:
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(any_table())
    def comes_back(table: Any) -> None:
        found = written(table)
        assert isinstance(found, dict), found
        assert all(len(row) == len(found["schema"]["fields"]) for row in found["data"])
        same(client_tables.to_frame(found), table)

    comes_back()


def check_columns(count: int) -> None:
    """Each kind of column by itself, so that none depends on luck."""

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data(), st.integers(0, 3))
    def comes_back(data: st.DataObject, rows: int) -> None:
        array = data.draw(COLUMNS[name](rows))
        table = pd.DataFrame({name: pd.Series(array, dtype=array.dtype)})
        same(client_tables.to_frame(written(table)), table)

    for name in COLUMNS:
        try:
            comes_back()
        except Exception as error:
            raise AssertionError(name) from error


def check_simple(_: int) -> None:
    """Tables that pandas' own writer has no trouble with are as it writes them; some also say a dtype."""
    days = pd.to_datetime(["2020-01-01", "2020-01-02 12:30:00.25", None], format="ISO8601")
    for table in (
        pd.DataFrame(
            {"n": [1, 2, 3], "word": ["x", "y", None], "f": [1.0, 2.5, math.nan], "b": [True, False, True]}
        ),
        pd.DataFrame(np.arange(6).reshape(2, 3)),
        pd.DataFrame({"day": days, "there": days.tz_localize("UTC").tz_convert("Europe/Berlin")}),
        pd.DataFrame({"t": pd.to_timedelta(["1 days 02:03:04", "-1s", "500ms"])}, index=list("abc")),
        pd.DataFrame(
            {"c": pd.Categorical(["x", None, "y"], ordered=True)}, index=pd.Index([3, 1, 2], name="key")
        ),
        pd.DataFrame({"i": pd.array([1, None], dtype="Int64"), "s": pd.array(["x", None], dtype="string")}),
        pd.DataFrame(
            {"v": [2.5, 3.0]}, index=pd.MultiIndex.from_tuples([(1, "x"), (1, "y")], names=["p", None])
        ),
        pd.DataFrame({"v": [1, 2]}, index=days[:2]),
        pd.Series([1, 2], name="n"),
        pd.Series([1, 2]),
        pd.Series(list("xxy")).value_counts(),
        pd.DataFrame({"v": [1]}, index=pd.period_range("2020-01", periods=1, freq="M")),
        pd.DataFrame(),
    ):
        found = written(table)
        assert found.pop("total_rows") == len(table)
        for field in found["schema"]["fields"]:
            field.pop("dtype", None)
            field.pop("missing", None)
        found["schema"].pop("series", None)
        assert found == json.loads(table.to_json(orient="table")), table


def check_forms(_: int) -> None:
    """The forms that the documentation states."""
    numbers = column([2.5e-11, 1 / 3, math.nan, math.inf, -math.inf, -0.0, 5e-324])
    assert numbers["values"] == [2.5e-11, 1 / 3, None, "INF", "-INF", -0.0, 5e-324]
    assert numbers["field"] == {"name": "x", "type": "number"}
    assert math.copysign(1, numbers["values"][5]) == -1
    assert column([2**53 + 1, -(2**63)])["values"] == [2**53 + 1, -(2**63)]
    objects = column([2**70, 2**2000], dtype=object)
    assert objects["values"] == [2**70, {"$int": hex(2**2000)}]
    moments = column(
        pd.to_datetime(["2020-01-01 00:00:00.123456789"]).tz_localize("UTC").tz_convert("Europe/Berlin")
    )
    assert moments == {
        "field": {"name": "x", "type": "datetime", "tz": "Europe/Berlin"},
        "values": ["2020-01-01T00:00:00.123456789Z"],
    }
    assert column([Decimal("1.10"), None])["values"] == ["1.10", None]
    assert column([b"\xff"]) == {
        "field": {"name": "x", "type": "string", "dtype": "object", "values": "bytes"},
        "values": ["/w=="],
    }
    mixed = column([Decimal("1.10"), 1.5, None, pd.NA, {"$date": 1}, {1: "x"}], dtype=object)
    assert mixed["values"] == [
        {"$decimal": "1.10"},
        1.5,
        None,
        {"$missing": "NA"},
        {"$dict": [["$date", 1]]},
        {"$dict": [[1, "x"]]},
    ]
    assert column([UUID(int=1)])["values"] == ["00000000-0000-0000-0000-000000000001"]
    assert column(["x", math.nan], dtype=object)["field"]["missing"] == "NaN"
    berlin = dt.datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert column([berlin], dtype=object)["values"] == ["2019-12-31T23:00:00.000Z[Europe/Berlin]"]
    twice = written(pd.DataFrame([[1, 2, 3]], columns=["a", "a", "a_1"]).rename_axis(index="a"))
    assert twice["data"] == [{"a_2": 0, "a": 1, "a_3": 2, "a_1": 3}] or twice["data"] == [
        {"a_3": 0, "a": 1, "a_2": 2, "a_1": 3}
    ], twice
    again = written(pd.DataFrame({"v": [5]}).reset_index())
    assert again["data"] == [{"level_0": 0, "index": 0, "v": 5}]
    pair = written(pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", 1), ("a", 2)])))
    assert [field.get("label") for field in pair["schema"]["fields"]] == [None, ["a", 1], ["a", 2]]
    assert pair["schema"]["columns"] == {"levels": 2}
    equal = written(pd.DataFrame({"v": [1, 2]}, index=[1, 1]))
    assert (equal["schema"]["index"], len(equal["data"])) == (["index"], 2)
    both = written(pd.DataFrame([[1, 2]], columns=[1, "1"]))
    assert sorted(both["data"][0].values()) == [0, 1, 2]
    first = written(pd.DataFrame({"n": range(50)}), 3)
    assert (len(first["data"]), first["total_rows"]) == (3, 50)


def refusal(table: dict[str, Any]) -> str:
    try:
        client_tables.to_frame(table)
    except ValueError as error:
        return str(error)
    return ""


class Rude:
    def __str__(self) -> str:
        raise KeyError("not today")


def check_refused(_: int) -> None:
    """No table, and a word why; and what is no table is no table for the reader."""
    circle: list[Any] = []
    circle.append(circle)
    wide = [1]
    for _level in range(40):
        wide = [wide, wide]  # type: ignore[list-item]
    for value, word in (
        ("\ud800", "no valid Unicode"),
        ({"\ud800": 1}, "no valid Unicode"),
        (circle, "nested too deep"),
        (wide, "too many values"),
        (Rude(), "KeyError: 'not today'"),
    ):
        nothing, why = written(pd.DataFrame({"x": pd.Series([value], dtype=object)}))
        assert (nothing, word in why["problem"]) == (None, True), why
    nothing, why = written(pd.DataFrame(np.zeros((1000, 1000))))
    assert (nothing, why) == (None, {"problem": "it has too many values: ask for fewer rows"})
    good = written(pd.DataFrame({"x": [1.5], "t": pd.to_timedelta(["1s"])}))
    assert client_tables.to_frame(good).shape == (1, 2)
    for wrong in (
        {},
        {**good, "data": [{}]},
        {**good, "data": [1]},
        {**good, "schema": []},
        {"schema": {"fields": 1}},
    ):
        assert "this is no table" in refusal(wrong), wrong


def check_shell(_: int) -> None:
    """As a cell shows it: only if the request asks, and the reason in the metadata."""
    from IPython.core.interactiveshell import InteractiveShell

    bootstrap = load("kernels/cellgate_kernels/inside/bootstrap.py")
    shell = InteractiveShell.instance()
    asked: dict[str, Any] = {}
    shell.get_parent = lambda: {"metadata": asked}  # type: ignore[attr-defined]
    bootstrap.tables_on_request(shell)
    table = pd.DataFrame({"x": [2.5e-11], "y": [2**53 + 1]})
    plain = {"text/plain", "text/html"}
    assert set(shell.display_formatter.format(table)[0]) == plain
    asked["cellgate"] = {"tables": 5}
    data, metadata = shell.display_formatter.format(table)
    assert data[bootstrap.TABLE]["data"] == [{"index": 0, "x": 2.5e-11, "y": 2**53 + 1}]
    assert metadata == {}
    data, metadata = shell.display_formatter.format(pd.DataFrame({"x": [Rude()]}, columns=["x"]).head(0))
    assert data[bootstrap.TABLE]["data"] == []
    circle: list[Any] = []
    circle.append(circle)
    data, metadata = shell.display_formatter.format(pd.Series([circle]))
    assert set(data) == {"text/plain"}
    assert metadata == {bootstrap.TABLE: {"problem": "it has values that are nested too deep"}}


CHECKS = {
    "trips": check_trips,
    "columns": check_columns,
    "simple": check_simple,
    "forms": check_forms,
    "refused": check_refused,
    "shell": check_shell,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    CHECKS[sys.argv[1]](int(sys.argv[2]))
    print("as it was")
