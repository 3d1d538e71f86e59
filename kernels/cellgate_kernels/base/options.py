"""Settings for operators: the field of a dataclass has all facts about an option, once.

`option` declares such a field. ``cellgate.cli.serve.options`` makes the command line's option and its line of
the reference, and reads its value. A field of settings without `option` is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KEY = "option"
"""The key of an option in the metadata of its field."""
T = TypeVar("T")


class Unit(StrEnum):
    """The unit of a number; the values are metavars."""

    BYTES = "SIZE"
    SECONDS = "SECONDS"
    DAYS = "DAYS"
    NUMBER = "N"


BYTES, SECONDS, DAYS = Unit.BYTES, Unit.SECONDS, Unit.DAYS


@dataclass(frozen=True, slots=True)
class Option:
    """The facts about an option. See `option`."""

    name: str
    field: str
    default: Any
    help: str
    unit: Unit | None
    metavar: str
    least: float | None
    most: float | None
    among: tuple[str, ...]
    absent: str | float | None
    not_empty: bool

    @property
    def kind(self) -> type:
        """The type of the option's value; None is for a number that depends on another setting."""
        if self.default is None:
            return float if self.unit is Unit.SECONDS else int
        return type(self.default)


def option(  # noqa: PLR0913 - most by name
    default: T,
    help: str,  # noqa: A002 - as traitlets and argparse call it
    *,
    name: str = "",
    unit: Unit | None = None,
    metavar: str = "",
    least: float | None = None,
    most: float | None = None,
    among: tuple[str, ...] = (),
    absent: str | float | None = None,
    not_empty: bool = False,
) -> T:
    """Declare a field of a dataclass as an option.

    `name`: the setting's, if it is not the field's, after the `PREFIX` of a dataclass that has one. `among`:
    all allowed words. `absent`: the word for a default that is no valid value, such as 0 for None.
    `not_empty`: whether an option that is given with an empty value, as by an unset variable of the shell, is
    refused: its default is another place.
    """
    metavar = metavar or unit or (Unit.NUMBER if isinstance(default, int | float | None) else "")
    least = 0 if absent == 0 else least
    known = Option(name, "", default, help, unit, metavar, least, most, among, absent, not_empty)
    return field(default=default, metadata={KEY: known})


def options_of(kind: type[DataclassInstance]) -> Iterator[Option]:
    """Iterate over the options among the fields of a dataclass."""
    prefix = getattr(kind, "PREFIX", "")
    for each in fields(kind):
        if (known := each.metadata.get(KEY)) is not None:
            yield replace(known, name=known.name or prefix + each.name, field=each.name)
