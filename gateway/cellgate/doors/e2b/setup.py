"""The code that prepares a kernel as E2B's template does: further forms of lists, dicts and tables.

It runs as a silent cell and leaves no names. It imports neither pandas nor anything else that is not there
already. A value that has no such form, or one that is too large, is shown without it.
"""

from __future__ import annotations

from typing import Final

DATA: Final = "application/vnd.cellgate.columns+json"
"""The columns of a table. E2B's own name of it would not be read as JSON."""

SETUP: Final = f"""
def _cellgate_e2b():
    import json

    from IPython import get_ipython
    from IPython.core.formatters import JSONFormatter

    most = 100_000

    def is_small(value):
        left = most
        rest = [value]
        while rest:
            value = rest.pop()
            if isinstance(value, dict):
                left -= 2 * len(value) + 1
                inner = value.values()
            elif isinstance(value, (list, tuple)):
                left -= len(value) + 1
                inner = value
            else:
                if isinstance(value, (str, bytes)):
                    left -= len(value) // 64
                if left < 0:
                    return False
                continue
            if left < 0:
                return False
            rest.extend(inner)
        return True

    def as_json(value):
        try:
            if is_small(value):
                return json.loads(json.dumps(value, allow_nan=False))
        except Exception:
            pass

    def text(value):
        return value.isoformat() if hasattr(value, "isoformat") else str(value)

    def as_columns(table):
        try:
            if table.size > most or not table.columns.is_unique:
                return None
            table = table.astype(object).where(table.notna(), None)
            columns = {{str(name): list(table[name]) for name in table.columns}}
            if is_small(columns):
                return json.loads(json.dumps(columns, default=text, allow_nan=False))
        except Exception:
            return None

    class Columns(JSONFormatter):
        format_type = {DATA!r}
        print_method = "_repr_cellgate_columns_"

    formatters = get_ipython().display_formatter.formatters
    columns = Columns(parent=get_ipython().display_formatter)
    for module in ("pandas", "pandas.core.frame"):
        columns.for_type_by_name(module, "DataFrame", as_columns)
    formatters[{DATA!r}] = columns
    for kind in (list, dict):
        formatters["application/json"].for_type(kind, as_json)


_cellgate_e2b()
del _cellgate_e2b
"""
