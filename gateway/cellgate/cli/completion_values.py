"""Completion: what may follow at the cursor when Tab is pressed, for argcomplete to offer.

argcomplete handles the shells: at each Tab the shell runs the command that is being typed, with the line in
the environment. traitlets creates the parser of that command, and this module tells the parser what its
arguments and the values of its options may be. It derives that from the command's usage line and from its
options' metavars and values, so a new command needs nothing here. Names of sessions and of their files come
from the gateway, with a timeout; errors there are silent.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from argcomplete.completers import DirectoriesCompleter, FilesCompleter
from traitlets import Enum, TraitType

from cellgate_kernels.base.errors import CellgateError

if TYPE_CHECKING:
    from cellgate.client import Gateway

_PATIENCE = 2.0
"""Seconds for which a Tab may wait for the gateway."""
_MOST = 500
_DOT = "__DOT__"
"""What stands for the dot of ``Class.trait`` in traitlets' names of parsed options."""
_OF_GATEWAY = frozenset({"url", "token", "ca_file", "data_dir", "config_file"})
"""The settings that say which gateway is asked, and how."""
_FURTHER = ("--help-all", "--version")
"""Options that traitlets handles before it creates its parser."""

Completer = Callable[..., Iterable[str]]


class Command(Protocol):
    """The part of a command that is used here."""

    usage: ClassVar[str]
    forms: ClassVar[tuple[str, ...]]

    @classmethod
    def class_traits(cls, **metadata: Any) -> dict[str, TraitType[Any, Any]]:
        """Traitlets' method."""

    def known_gateway(self, typed: Mapping[str, str]) -> Gateway | None:
        """A client of the gateway of the settings, if this command talks to one.

        `typed`: settings of the line that is being typed, by ``Class.trait``.
        """


def teach(parser: argparse.ArgumentParser, command: Command, *, has_subcommands: bool) -> None:
    """Tell the parser of a command what may be completed."""
    for action in parser._actions:
        if action.dest == "extra_args":
            _complete_by(action, _none if has_subcommands else _arguments(command))
        elif isinstance(action.metavar, str) and "." in action.metavar:
            trait = command.class_traits()[action.metavar.partition(".")[2]]
            _complete_by(action, _value_of(trait, command))
    for option in _FURTHER if has_subcommands else _FURTHER[:1]:
        parser.add_argument(option, action="store_true")


def _complete_by(action: argparse.Action, completer: Completer) -> None:
    action.completer = completer  # type: ignore[attr-defined]  # argcomplete looks for it there


def _value_of(trait: TraitType[Any, Any], command: Command) -> Completer:
    if isinstance(trait, Enum):
        values = [value for value in trait.values or () if isinstance(value, str)]
        return lambda **_: values
    if trait.name == "session":
        return _sessions(command)
    return _completer_of(str(trait.metadata.get("metavar", "")), command)


def _arguments(command: Command) -> Completer:
    """Completes by the command's forms: the arguments so far determine which placeholder is next."""
    forms = forms_of(command.usage, command.forms)

    def complete(*, prefix: str, parsed_args: argparse.Namespace, **context: Any) -> Iterable[str]:
        before = list(getattr(parsed_args, "extra_args", ()))
        actions = [action for action in forms if action]
        if actions and not before:
            return actions
        action = before.pop(0) if actions else ""
        words = forms.get(action, [])
        if len(before) >= len(words):
            return ()
        completer = _completer_of(words[len(before)], command)
        return completer(prefix=prefix, parsed_args=parsed_args, **context)

    return complete


def forms_of(usage: str, forms: Iterable[str]) -> Mapping[str, list[str]]:
    """The placeholders of a command's arguments, by the action that precedes them, or by "" without one.

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


def _completer_of(placeholder: str, command: Command) -> Completer:
    """The completer for a placeholder of a usage line."""
    placeholder = placeholder.removesuffix("...")
    if "FILE" in placeholder or "MOUNT" in placeholder:
        return FilesCompleter()
    match placeholder:
        case "DIR":
            return DirectoriesCompleter()
        case "SESSION" | "[SESSION]":
            return _sessions(command)
        case "PATH" | "[PATH]":
            return _paths(command)
    if "|" in placeholder:
        return lambda **_: placeholder.split("|")
    return _none


def _none(**_: Any) -> Iterable[str]:
    return ()


def _sessions(command: Command) -> Completer:
    async def names(gateway: Gateway) -> AsyncGenerator[str]:
        async for model in gateway.sessions():
            yield model.session

    return lambda *, parsed_args, **_: _asked(command, names, parsed_args)


def _paths(command: Command) -> Completer:
    """Completes files of the session named by the preceding argument."""

    def complete(*, parsed_args: argparse.Namespace, **_: Any) -> Iterable[str]:
        session = parsed_args.extra_args[-1]

        async def names(gateway: Gateway) -> AsyncGenerator[str]:
            async for file in gateway.session(session).files.list():
                yield file.path

        return _asked(command, names, parsed_args)

    return complete


def _asked(
    command: Command, names: Callable[[Gateway], AsyncGenerator[str]], parsed_args: argparse.Namespace
) -> list[str]:
    """The names that the gateway of the line, or of the other settings, returns in time."""
    found: list[str] = []
    typed = {
        name.replace(_DOT, "."): value
        for name, value in vars(parsed_args).items()
        if name.partition(_DOT)[2] in _OF_GATEWAY and isinstance(value, str)
    }

    async def ask() -> None:
        gateway = command.known_gateway(typed)
        if gateway is None:
            return
        async with asyncio.timeout(_PATIENCE), aclosing(names(gateway)) as given:
            async for name in given:
                # A control character could steer the shell's line editor, or the terminal.
                if name.isprintable():
                    found.append(name)
                if len(found) == _MOST:
                    return

    with suppress(CellgateError, TimeoutError):
        asyncio.run(ask())
    return found
