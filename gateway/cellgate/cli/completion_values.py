"""Completion: what may follow at the cursor when Tab is pressed, for argcomplete to offer.

argcomplete handles the shells: at each Tab the shell runs the command that is being typed, with the line in
the environment. traitlets creates the parser of that command, and this module tells the parser what its
arguments and the values of its options may be. It derives that from the command's usage line and from its
options' metavars and values, so a new command needs nothing here. No gateway is asked.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from argcomplete.completers import DirectoriesCompleter, FilesCompleter
from traitlets import Enum, TraitType

_FURTHER = ("--help-all", "--version")
"""Options that traitlets handles before it creates its parser."""

Completer = Callable[..., Iterable[str]]


def teach(
    parser: argparse.ArgumentParser,
    *,
    traits: Mapping[str, TraitType[Any, Any]],
    forms: Mapping[str, list[str]],
    has_subcommands: bool,
) -> None:
    """Tell the parser of a command with these settings and `forms_of` its usage what may be completed."""
    for action in parser._actions:
        if action.dest == "extra_args":
            _complete_by(action, _none if has_subcommands else _arguments(forms))
        elif isinstance(action.metavar, str) and "." in action.metavar:
            _complete_by(action, _value_of(traits[action.metavar.partition(".")[2]]))
    for option in _FURTHER if has_subcommands else _FURTHER[:1]:
        parser.add_argument(option, action="store_true")


def _complete_by(action: argparse.Action, completer: Completer) -> None:
    action.completer = completer  # type: ignore[attr-defined]  # argcomplete looks for it there


def _value_of(trait: TraitType[Any, Any]) -> Completer:
    if isinstance(trait, Enum):
        values = [value for value in trait.values or () if isinstance(value, str)]
        return lambda **_: values
    return _completer_of(str(trait.metadata.get("metavar", "")))


def _arguments(forms: Mapping[str, list[str]]) -> Completer:
    """Complete by a command's forms: the arguments so far determine which placeholder is next."""

    def complete(*, prefix: str, parsed_args: argparse.Namespace, **context: Any) -> Iterable[str]:
        before = list(getattr(parsed_args, "extra_args", ()))
        actions = [action for action in forms if action]
        if actions and not before:
            return actions
        action = before.pop(0) if actions else ""
        words = forms.get(action, [])
        if len(before) >= len(words):
            return ()
        completer = _completer_of(words[len(before)])
        return completer(prefix=prefix, parsed_args=parsed_args, **context)

    return complete


def forms_of(usage: str, forms: Iterable[str]) -> Mapping[str, list[str]]:
    """Return placeholders of a command's arguments, by the action that precedes them, or by "" without one.

    Options that a form needs are no arguments.
    """
    found: dict[str, list[str]] = {}
    for form in tuple(forms) or re.split(r"\|(?=[a-z])", usage.replace("[options]", "")):
        words = re.sub(r" --[a-z]+ [A-Z]+", "", form).split()
        if words and re.fullmatch(r"[a-z]+", words[0]):
            found[words[0]] = words[1:]
        else:
            found[""] = words
    return found


def _completer_of(placeholder: str) -> Completer:
    """Return the completer for a placeholder of a usage line."""
    placeholder = placeholder.removesuffix("...")
    if "FILE" in placeholder or "MOUNT" in placeholder:
        return FilesCompleter()
    if placeholder == "DIR":
        return DirectoriesCompleter()
    if "|" in placeholder:
        return lambda **_: placeholder.split("|")
    return _none


def _none(**_: Any) -> Iterable[str]:
    return ()
