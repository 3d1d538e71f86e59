"""Whether a setting's value fits, told in the user's words: what was set, what is expected, what was given.

And what it is then: the values of settings that have options. traitlets would speak of traits and
instances. It knows no commands and reads no settings: ``base`` does.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

from traitlets import Bool, Enum, Float, HasTraits, Integer, List, TraitError, TraitType, Unicode
from traitlets.config import Config
from traitlets.config.loader import DeferredConfig

from cellgate_kernels.errors import InvalidInput
from cellgate_kernels.limits import parse_size

LONGEST = 60
"""Characters of a value that are shown."""


class Size(Unicode[str, str | bytes]):
    """A number of bytes such as ``512m``; empty where that is the default, 0 where it means something."""

    def __init__(self, default: str, *, zero: bool = False, **options: Any) -> None:
        super().__init__(default, **options)
        self.zero = zero

    def validate(self, obj: Any, value: Any) -> Any:
        """The value as text, if it is a size. Raises TraitError."""
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
    """A number of seconds above zero; it is the user who waits, so there is no upper bound."""

    def validate(self, obj: Any, value: Any) -> Any:
        """The seconds. Raises TraitError."""
        seconds = super().validate(obj, value)
        if seconds is None or not 0 < seconds < math.inf:
            self.error(obj, value)
        return seconds


T = TypeVar("T")


def settings_of_kind(kind: type[T], options: HasTraits, **given: Any) -> T:
    """A dataclass of settings: its fields as `given`, and those of the others that options have the names of.

    A size becomes a number of bytes and a list a tuple; a field whose option is empty has its own default.
    """
    known = options.traits(config=True)
    values = dict(given)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in values and field.name in known:
            value = plain(options, field.name)
            if value is not None:
                values[field.name] = value
    return kind(**values)


def plain(options: HasTraits, name: str) -> Any:
    """An option's value: of a size the bytes, None for one that is empty, and of a list a tuple."""
    trait, value = options.traits()[name], getattr(options, name)
    if isinstance(trait, Size):
        if not value:
            return None
        return 0 if trait.zero and value == "0" else parse_size(value, name=name)
    return tuple(value) if isinstance(trait, List) else value


def unfit(obj: HasTraits, name: str, value: Any) -> str | None:
    """What is expected of this trait of `obj` and what was given; None when it fits.

    `value` is as a configuration holds it: text that has yet to be understood, or what a file says.
    """
    trait = obj.traits()[name]
    if isinstance(value, list) and not isinstance(trait, List) and len(value) != 1:
        return f"must be given once, not {len(value)} times"
    given = value.get_value(trait) if isinstance(value, DeferredConfig) else value
    try:
        understood = trait._validate(obj, given)
    except TraitError:
        return f"must be {_expected(trait)}, not {_shown(value)}"
    # traitlets compares with its bounds only, and nothing is less than "nan".
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
        words = [str(value).lower() for value in trait.values or () if isinstance(value, str)]
        return f"one of {', '.join(words)}"
    return "a list of texts" if isinstance(trait, List) else "a text"


def _range(trait: Integer[Any, Any] | Float[Any, Any]) -> str:
    # A Float without bounds has infinite ones.
    least, most = (None if bound is None or math.isinf(bound) else bound for bound in (trait.min, trait.max))
    if least is not None and most is not None:
        return f" from {least:.15g} to {most:.15g}"
    if least is not None:
        return f" of at least {least:.15g}"
    return "" if most is None else f" of at most {most:.15g}"


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, float):
        return f"{value:.15g}"
    # Not the repr of traitlets' own classes.
    shown = repr(str(value) if isinstance(value, str) else value)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"


def settings_of(config: Config) -> list[tuple[str, str, Any]]:
    """What a configuration sets: class, trait and value of each setting."""
    return [
        (class_name, name, value)
        for class_name, section in config.items()
        if isinstance(section, Config)
        for name, value in section.items()
    ]
