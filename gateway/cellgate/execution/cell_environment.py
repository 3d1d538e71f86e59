"""The code that sets environment variables for one cell, and restores the previous values after it.

It runs in the user's namespace, before and after the cell, and leaves no names there. Pure: this module
generates the code; ``run`` runs it silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

RESTORING = (
    "(lambda o: ([o.environ.pop(k, None) if v is None else o.environ.__setitem__(k, v)"
    " for k, v in o.__dict__.pop('_cellgate_env', {}).items()], None)[1])(__import__('os'))"
)
"""Python code that restores the values from before `setting`."""


def setting(variables: Iterable[tuple[str, str]]) -> str:
    """Python code that sets the variables and saves the previous values."""
    return (
        "(lambda o, e: (setattr(o, '_cellgate_env', {k: o.environ.get(k) for k in e}),"
        " o.environ.update(e), None)[2])"
        f"(__import__('os'), __import__('json').loads({json.dumps(dict(variables))!r}))"
    )
