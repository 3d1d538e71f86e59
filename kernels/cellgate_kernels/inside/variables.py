"""The variables of a Python kernel's user, by name: what ``bootstrap.py`` lets each Python kernel tell of.

They are asked for by a message of our own on the shell channel, so the answer comes between two cells and is
itself none: nothing is executed, counted or remembered. Of a value is told what its type says at once. Types
that are not known here may be anybody's: of their values only the type's name is told, and no method of
theirs is called. Nothing is imported: types of libraries are looked up among the modules that are there.
"""

import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import date, datetime, timedelta, timezone
from functools import partial
from itertools import chain, islice
from pathlib import PosixPath
from types import FunctionType, ModuleType

REQUEST = "cellgate_variables_request"
REPLY = "cellgate_variables_reply"
FEATURE = "cellgate variables"
"""Among the supported features of a kernel_info_reply: it tells of variables."""

MOST = 1000
"""Variables that are told of: those that were defined last."""
MOST_NAME = 200
MOST_SHOWN = 80
MOST_BITS = 256
"""Bits of an integer that is written out."""
MOST_COLUMNS = 1000
"""Columns of a table whose size is asked for, which takes longer the more there are."""
MOST_COUNTED = 10_000
"""Values whose sizes are added up for one variable."""
SECONDS = 1.0
"""After so long the remaining variables are told of without a summary."""

NOTHING = object()
TYPE_NAME = type.__dict__["__name__"].__get__
COUNTED = (list, tuple, dict, set, frozenset, deque, OrderedDict, defaultdict, Counter)
MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
WRITTEN = (bool, float, complex, type(None), date, timedelta)
PLAIN = (*WRITTEN, int, str, bytes, bytearray, datetime, range)


class Variables:
    """Tells of one kernel's variables. `serve` it before the kernel runs.

    `openers`: what returns what opens a table, by the id of its type, as ``columns.py`` does.
    """

    def __init__(self, app, openers):
        self.app = app
        self.openers = openers

    def serve(self):
        """Answer requests from now on."""
        self.app.kernel.shell_handlers[REQUEST] = self.requested

    async def requested(self, stream, ident, message):
        """Answer a request; with ``"texts": false``, text is told of by its length alone."""
        listed, truncated = self.listed(message["content"].get("texts") is not False)
        answer = {"status": "ok", "variables": listed, "truncated": truncated}
        self.app.session.send(stream, REPLY, answer, message, ident=ident)

    def listed(self, texts):
        """Return the variables in the order of their definition, and whether some were left out."""
        shell = self.app.shell
        hidden = shell.user_ns_hidden
        found = [
            (name, value)
            for name, value in list(shell.user_ns.items())
            if type(name) is str and not name.startswith("_") and hidden.get(name, NOTHING) is not value
        ]
        fitting = [(name, value) for name, value in found if len(name) <= MOST_NAME and name.isidentifier()]
        openers = self.openers()
        known = {kind: partial(table, opener) for kind, opener in openers.items()} | summaries(texts)
        late = time.monotonic() + SECONDS
        told = []
        for name, value in fitting[-MOST:]:
            summary, more = "", {}
            # By its id: a class may have a hash of its own, which would be called.
            kind = id(type(value))
            if kind in known and time.monotonic() < late:
                try:
                    summary, size = known[kind](value)
                    size = held(value, known) if size is None else size
                    rows = openers[kind](value)[0] if kind in openers else None
                    more = {"size": size, "rows": rows}
                except Exception:  # noqa: BLE001 - a library's value in a state that it does not expect
                    summary, more = "", {}
            one = {"name": name, "type": short(TYPE_NAME(type(value))), "summary": short(summary)}
            told.append(one | {key: each for key, each in more.items() if each is not None})
        return told, len(told) < len(found)


def held(value, known):
    """Return the bytes of a plain value, or of a container with all that is in it; None if not known at once.

    It is not known if a value of a type that is not known is in it, or if there are very many.
    """
    size, seen, left = 0, set(), [value]
    while left:
        one = left.pop()
        kind = type(one)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if len(seen) > MOST_COUNTED:
            return None
        if kind in COUNTED or kind in PLAIN:
            size += sys.getsizeof(one)
            if kind in MAPPINGS:
                left += islice(chain(one.keys(), one.values()), MOST_COUNTED + 1)
            elif kind in COUNTED:
                left += islice(one, MOST_COUNTED + 1)
            continue
        described = known[id(kind)](one)[1] if id(kind) in known else None
        if described is None:
            return None
        size += described
    return size


def short(text):
    """Return the text on one line, cut."""
    # Of a subclass of str, which a name of a type may be, no method is called.
    text = str.__getitem__(text, slice(MOST_SHOWN + 1))
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line if len(line) <= MOST_SHOWN else line[: MOST_SHOWN - 1] + "\u2026"


def summaries(texts):
    """By the id of a type, what makes of a value its summary and its size in bytes, or None for that."""
    known = dict.fromkeys(WRITTEN, written)
    known.update(dict.fromkeys(COUNTED, counted))
    known.update({int: integer, datetime: moment, range: of_range, PosixPath: partial(path, texts)})
    known.update({FunctionType: function, ModuleType: module})
    known.update({str: partial(text, texts), bytes: partial(text, texts), bytearray: partial(text, texts)})
    for name, attribute, describe in LIBRARIES:
        library = sys.modules.get(name)
        if type(library) is ModuleType and isinstance(kind := vars(library).get(attribute), type):
            known[kind] = describe
    return {id(kind): describe for kind, describe in known.items()}


def written(value):
    """Return the value's repr."""
    return repr(value), None


def integer(value):
    """Return an integer's text, shortened if long: writing it out may take seconds."""
    bits = value.bit_length()
    return (repr(value) if bits <= MOST_BITS else f"{bits} bits"), None


def moment(value):
    """Return a date and time, unless somebody else's class says which time zone it is of."""
    return (str(value) if type(value.tzinfo) in (type(None), timezone) else ""), None


def of_range(value):
    """Return a range, unless numbers of somebody else's class are in it."""
    return (repr(value) if {type(value.start), type(value.stop), type(value.step)} == {int} else ""), None


def text(shown, value):
    """Return the beginning, or with `shown` false the length alone."""
    size = len(value) if type(value) is not str else sys.getsizeof(value)
    if shown:
        return repr(value[: MOST_SHOWN + 1]), size
    return number_of(len(value), "character" if type(value) is str else "byte"), size


def path(shown, value):
    """Return a path as text, or nothing if `shown` is false."""
    return (str(value) if shown else ""), None


def counted(value):
    """Return the number of items."""
    return number_of(len(value), "item"), None


def number_of(count, what):
    """Return a number with its noun."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def function(value):
    """Return the names of a function's parameters."""
    code = value.__code__
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    return f"({', '.join(names[:MOST_SHOWN])})", None


def module(value):
    """Return a module's name and version."""
    told = [vars(value).get(name) for name in ("__name__", "__version__")]
    return " ".join(each[:MOST_SHOWN] for each in told if type(each) is str), None


def array(value):
    """numpy's: shape and type."""
    kind = value.dtype
    named = str(kind) if kind.names is None else number_of(len(kind.names), "field")
    return f"{value.shape} {named}", value.nbytes


def frame(value):
    """Describe pandas' tables by rows and columns."""
    rows, columns = value.shape
    size = int(value.memory_usage(index=False).sum()) if columns <= MOST_COLUMNS else None
    return table_of(rows, columns), size


def table_of(rows, columns):
    """Return the shape of a table in words."""
    return f"{number_of(rows, 'row')}, {number_of(columns, 'column')}"


def table(opener, value):
    """Describe another table of a library by its rows and bytes."""
    return number_of(opener(value)[0], "row"), value.nbytes


def column(value):
    """Return a series of pandas, or an index."""
    return f"{number_of(len(value), 'item')} {value.dtype}", value.nbytes


def polars_frame(value):
    """Describe a Polars frame: rows, columns and bytes."""
    rows, columns = value.shape
    return table_of(rows, columns), int(value.estimated_size()) if columns <= MOST_COLUMNS else None


def polars_column(value):
    """Return a series of polars."""
    return f"{number_of(len(value), 'item')} {value.dtype}", int(value.estimated_size())


def arrow_table(value):
    """Describe a table of pyarrow: rows, columns and bytes."""
    columns = value.num_columns
    return table_of(value.num_rows, columns), value.nbytes if columns <= MOST_COLUMNS else None


def tensor(value):
    """Describe a tensor of torch: shape, type, device and bytes."""
    return f"{tuple(value.shape)} {value.dtype} {value.device}", value.element_size() * value.nelement()


LIBRARIES = (
    ("numpy", "ndarray", array),
    *(("numpy", name, written) for name in ("bool", "int64", "int32", "float64", "float32")),
    ("pandas", "DataFrame", frame),
    ("pandas", "Series", column),
    ("pandas", "Index", column),
    ("pandas", "RangeIndex", column),
    ("pandas", "DatetimeIndex", column),
    ("polars", "DataFrame", polars_frame),
    ("polars", "Series", polars_column),
    ("pyarrow", "Table", arrow_table),
    ("torch", "Tensor", tensor),
)
"""Types of libraries: the module, the name in it, and what describes a value."""
