"""Commands whose first argument is an action: which one was chosen, and its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cellgate.cli.base import BaseApp, UsageError, did_you_mean
from cellgate.cli.setting_checks import settings_of

_ALIKE = (
    frozenset({"delete", "remove", "rm", "del", "end", "stop", "kill", "revoke", "uninstall"}),
    frozenset({"put", "upload"}),
    frozenset({"get", "download"}),
    frozenset({"add", "create", "new", "set", "install"}),
    frozenset({"info", "show", "status"}),
    frozenset({"ls", "list", "search", "find"}),
    frozenset({"change", "rename", "title", "edit", "update", "modify"}),
)
"""What other programs call an action, and we do."""


def forms_of(actions: Mapping[str, str]) -> tuple[str, ...]:
    """Return the usages in full of a command with these actions, each with the names of its arguments."""
    return tuple(f"{action} {names}".strip() for action, names in actions.items())


def choose_action(
    command: str, usage: str, actions: Mapping[str, str], words: Sequence[str], forms: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Return the action and its arguments. `[NAME]` may be left out, `NAME...` repeats; ``--`` is none.

    `forms` are the usages in full, where they have more than the arguments. Raises UsageError for an action
    that is not there, and for too many or too few arguments.
    """
    if not words:
        raise UsageError(f"usage: {command} {usage}")
    action, *rest = words
    if action not in actions:
        meant = next(
            (known for known in actions if any({action, known} <= alike for alike in _ALIKE)), action
        )
        hint = did_you_mean(meant, list(actions)) or f": {command} {usage}"
        raise UsageError(f"{command} does not know {action!r}{hint}")
    names = [name for name in actions[action].split() if name != "--"]
    least = sum(not name.startswith("[") for name in names)
    many = bool(names) and names[-1].rstrip("]").endswith("...")
    if len(rest) < least or (len(rest) > len(names) and not many):
        form = next((form for form in forms if form.split()[0] == action), f"{action} {actions[action]}")
        raise UsageError(f"usage: {command} {form}".rstrip())
    return action, rest


def check_options(command: BaseApp, action: str) -> None:
    """Refuse an option of the command line that this action does not have, by `options_of_some`.

    What the environment or a configuration file says is for all calls of a command, whatever the action.
    Raises UsageError, which names the actions that have it.
    """
    name = command.name.replace("-", " ", 1)
    for class_name, setting, _ in settings_of(command.cli_config):
        having = command.options_of_some.get(setting, action).split()
        if action not in having:
            *others, last = having
            listed = f"{', '.join(others)} and {last}" if others else last
            option = _flag(command, setting) or command.option(setting, class_name)
            raise UsageError(f"{option} is an option of {name} {listed}, and {action} does not have it")


def _flag(command: BaseApp, setting: str) -> str | None:
    """Return the option without a value that sets this; None if there is none."""
    flags = command.flatten_flags()[0].items()
    return next(
        (f"--{flag}" for flag, (sets, _) in flags if any(setting in each for each in sets.values())), None
    )
