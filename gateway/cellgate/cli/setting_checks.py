"""Validation of settings, with errors in the user's terms: which setting, what is expected, what was given.

traitlets' own errors are about traits and instances. It knows no commands and reads no settings: ``base``
does.
"""

from __future__ import annotations

import math
from typing import Any

from traitlets import Bool, Enum, Float, HasTraits, Integer, List, TraitError, TraitType, Unicode
from traitlets.config import Config
from traitlets.config.loader import DeferredConfig

from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import parse_size

LONGEST = 60
"""Characters of a value that are shown at most."""


class Size(Unicode[str, str | bytes]):
    """A number of bytes such as ``512m``; empty only if that is the default, 0 only with `zero`."""

    def __init__(self, default: str, *, zero: bool = False, **options: Any) -> None:
        super().__init__(default, **options)
        self.zero = zero

    def validate(self, obj: Any, value: Any) -> Any:
        """Return the value as text, if it is a size. Raises TraitError."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        text = super().validate(obj, value)
        if text == self.default_value or (self.zero and text == "0"):
            return text
        try:
            parse_size(text)
        except InvalidInput:
            self.error(obj, value)
        return text


class Duration(Float[float | None, float | int | None]):
    """A number of seconds above zero; the user decides how long to wait, so there is no upper limit."""

    def validate(self, obj: Any, value: Any) -> Any:
        """Return the seconds. Raises TraitError."""
        seconds = super().validate(obj, value)
        if seconds is None or not 0 < seconds < math.inf:
            self.error(obj, value)
        return seconds


def unfit(obj: HasTraits, name: str, value: Any) -> str | None:
    """Explain why a value does not fit a trait of `obj`; None if the value is valid.

    `value` is as in a configuration: text that is not parsed yet, or a value from a file.
    """
    trait = obj.traits()[name]
    if isinstance(value, list) and not isinstance(trait, List) and len(value) != 1:
        return f"must be given once, not {len(value)} times"
    given = value.get_value(trait) if isinstance(value, DeferredConfig) else value
    try:
        understood = trait._validate(obj, given)
    except TraitError:
        return f"must be {_expected(trait)}, not {_shown(value)}"
    # traitlets only compares with minimum and maximum, and no comparison with "nan" is true.
    if isinstance(trait, Float) and not math.isfinite(understood or 0.0):
        return f"must be {_expected(trait)}, not {_shown(value)}"
    return None


def _expected(trait: TraitType[Any, Any]) -> str:
    if isinstance(trait, Size):
        return "a size such as 512m or 1.5g" + (", or 0" if trait.zero else "")
    if isinstance(trait, Integer):
        return f"a whole number{_range(trait)}"
    if isinstance(trait, Duration):
        return "a number of seconds above 0"
    if isinstance(trait, Float):
        return f"a number{_range(trait)}"
    if isinstance(trait, Bool):
        return "True or False"
    if isinstance(trait, Enum):
        # Where "" stands for the default, nobody gives it.
        words = [value.lower() for value in trait.values or () if isinstance(value, str) and value]
        return f"one of {', '.join(words)}"
    return "a list of texts" if isinstance(trait, List) else "a text"


def _range(trait: Integer[Any, Any] | Float[Any, Any]) -> str:
    least = _finite(trait.min)
    most = _finite(trait.max)
    if least is not None and most is not None:
        return f" from {least:.15g} to {most:.15g}"
    if least is not None:
        return f" of at least {least:.15g}"
    return "" if most is None else f" of at most {most:.15g}"


def _finite(limit: float | None) -> float | None:
    """Return the limit, or None for the infinite one of a Float without limits."""
    return None if limit is None or math.isinf(limit) else limit


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, float):
        return f"{value:.15g}"
    # `str` avoids the repr of traitlets' own subclasses.
    shown = repr(str(value) if isinstance(value, str) else value)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"


def settings_of(config: Config) -> list[tuple[str, str, Any]]:
    """Return the settings in a configuration: class, trait and value of each."""
    return [
        (class_name, name, value)
        for class_name, section in config.items()
        if isinstance(section, Config)
        for name, value in section.items()
    ]
