"""The code that prepares a kernel as E2B's template does: further forms of lists, tables and figures.

It runs as a silent cell and leaves no names. It imports neither pandas nor matplotlib: a value's further form
is asked for when it is shown, and then its library is there. What a chart of a figure is, E2B's own package
says (``e2b_charts``), if the kernel can import it. A value that has no such form, or one that is too large,
is shown without it.
"""

from __future__ import annotations

from typing import Final

DATA: Final = "application/vnd.cellgate.columns+json"
"""The columns of a table. E2B's own name of it would not be read as JSON."""

CHART: Final = "application/vnd.cellgate.chart+json"
"""What a figure shows, as numbers and words; named as `DATA` is, for the same reason."""

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

    def as_chart(figure):
        try:
            from e2b_charts import chart_figure_to_dict
        except Exception:
            return None
        try:
            chart = chart_figure_to_dict(figure)
            if is_small(chart):
                return json.loads(json.dumps(chart, default=text, allow_nan=False))
        except Exception:
            return None

    class Columns(JSONFormatter):
        format_type = {DATA!r}
        print_method = "_repr_cellgate_columns_"

    class Chart(JSONFormatter):
        format_type = {CHART!r}
        print_method = "_repr_cellgate_chart_"

        def pop(self, typ, default=None):
            # pyplot takes figures out of all formatters when it is loaded, which may be later.
            return default

    formatters = get_ipython().display_formatter.formatters
    columns = Columns(parent=get_ipython().display_formatter)
    charts = Chart(parent=get_ipython().display_formatter)
    charts.for_type_by_name("matplotlib.figure", "Figure", as_chart)
    formatters[{CHART!r}] = charts
    for module in ("pandas", "pandas.core.frame"):
        columns.for_type_by_name(module, "DataFrame", as_columns)
    formatters[{DATA!r}] = columns
    for kind in (list, dict):
        formatters["application/json"].for_type(kind, as_json)


_cellgate_e2b()
del _cellgate_e2b
"""
