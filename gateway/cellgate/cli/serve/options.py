"""Options of the command line, from the settings that declare them, and the settings' values back from them.

``cellgate_kernels.base.options`` is how they are declared. Here traitlets begins: nothing above knows traits
by name but those of its own commands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from traitlets import Bool, Enum, Float, HasTraits, Integer, List, TraitType, Unicode

from cellgate.cli.setting_checks import Size
from cellgate_kernels.base.options import Option, Unit, options_of
from cellgate_kernels.base.resources import parse_size, size_in_units
from cellgate_kernels.specs.addresses import without_secrets

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

TRAITS: Mapping[type, Callable[..., TraitType[Any, Any]]] = MappingProxyType(
    {bool: Bool, int: Integer, float: Float, str: Unicode}
)


def traits_of(*kinds: type[DataclassInstance]) -> dict[str, TraitType[Any, Any]]:
    """Make the traits of all options of these dataclasses, by name."""
    return {each.name: _trait(each) for kind in kinds for each in options_of(kind)}


def trait_of(kind: type[DataclassInstance], name: str) -> TraitType[Any, Any]:
    """Make the trait of one option, for a command that has few."""
    return traits_of(kind)[name]


def _trait(option: Option) -> TraitType[Any, Any]:
    default: Any = option.default if option.absent is None else option.absent
    given: dict[str, Any] = {"help": option.help}
    if option.kind in {int, float}:
        bounds = {"min": option.least, "max": option.most}
        given |= {name: bound for name, bound in bounds.items() if bound is not None}
        given["allow_none"] = default is None
    trait: TraitType[Any, Any]
    if option.unit is Unit.BYTES:
        size = "" if default is None else size_in_units(default)
        trait = Size(size, zero=option.least == 0, help=option.help)
    elif option.among:
        trait = Enum(option.among, default, **given)
    elif option.kind in TRAITS:
        trait = TRAITS[option.kind](default, **given)
    else:
        trait = List(Unicode(), list(default), **given)
    return trait.tag(config=True, metavar=option.metavar or "VALUE", not_empty=option.not_empty)


def aliases_of(class_name: str, *names: str, **called: str) -> dict[str, str]:
    """Map options of the command line to traits of a class; `called`: those whose option has another name."""
    options = {called.get(name, name): name for name in names}
    return {option.replace("_", "-"): f"{class_name}.{name}" for option, name in options.items()}


def flags_of(
    class_name: str, kind: type[DataclassInstance], *names: str
) -> dict[str, tuple[dict[str, Any], str]]:
    """Make flags of the command line that turn options of a dataclass on, with the options' help."""
    known = {each.name: each.help for each in options_of(kind)}
    return {name.replace("_", "-"): ({class_name: {name: True}}, known[name]) for name in names}


def read(kind: type[T], app: HasTraits, **given: object) -> T:
    """Make a dataclass of settings from the options of a command. `given`: fields that are no options."""
    values = dict(given)
    for each in options_of(kind):
        value = _value(each, app)
        if value is not None:
            values[each.field] = value
    return kind(**values)


def is_given(app: HasTraits, name: str) -> bool:
    """Return whether a setting is another than by default."""
    return bool(getattr(app, name) != app.traits()[name].default(app))


def told(app: HasTraits, *hidden: str) -> str:
    """Return, for a log, the settings that are not as by default, without `hidden` and secrets in URLs."""
    own = [name for name, trait in app.traits(config=True).items() if _is_ours(trait)]
    given = [name for name in sorted(own) if name not in hidden and is_given(app, name)]
    values = {name: getattr(app, name) for name in given}
    if isinstance(values.get("log_level"), int):
        values["log_level"] = logging.getLevelName(values["log_level"])
    return without_secrets(", ".join(f"{name}={value}" for name, value in values.items())) or "none"


def _is_ours(trait: TraitType[Any, Any]) -> bool:
    """Return whether a setting is of a command's own, and not of traitlets' Application."""
    return str(trait.this_class.__module__).startswith("cellgate.")


def _value(option: Option, app: HasTraits) -> Any:
    """Return the value of a field, or None for its default."""
    given = getattr(app, option.name)
    if given == option.absent:
        return None
    if option.unit is Unit.BYTES:
        return (0 if given == "0" else parse_size(given, name=option.name)) if given else None
    return type(option.default)(given) if isinstance(given, list) else given
