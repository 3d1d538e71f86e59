"""What files of `deploy` have in common: variables, and which of them `cellgate serve` takes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cellgate.cli.serve.serve import ServeApp

VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?::([-?])([^}]*))?\}")


def filled(text: str, given: Mapping[str, str]) -> str:
    """The text with its variables as Compose replaces them."""

    def value(found: re.Match[str]) -> str:
        name, how, default = found.groups()
        assert how != "?" or given.get(name), f"{name} is to be given"
        return given.get(name) or default or ""

    return VARIABLE.sub(value, text)


def is_setting(app: ServeApp, variable: str) -> bool:
    """Whether a variable of the environment is a setting of the gateway."""
    name = variable.removeprefix("CELLGATE__ServeApp__").removeprefix("CELLGATE_").lower()
    return name in app.traits(config=True) or name.replace("_", "-") in app.aliases
