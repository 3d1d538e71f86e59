"""``cellgate completion``: a script for the user's shell, made from the commands and options that there are.

What can follow a word is read from each command's usage line and its options' metavars and values, so a new
command needs nothing here. Names of sessions and of their files are asked for when the user presses Tab: by
``completion sessions`` and ``completion files SESSION``, which are silent about everything that goes wrong.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from shlex import quote
from typing import Any, cast

from traitlets import Enum
from traitlets.utils.importstring import import_item

from cellgate.cli.base import BaseApp, CommandApp, UsageError
from cellgate_kernels.errors import CellgateError

_PATIENCE = 2.0  # seconds that a Tab may take to ask the gateway
_MOST = 500

_LOOK = """\
_cellgate_kind() {
  case "$1" in
@KINDS@
  esac
}
_cellgate_options() {
  case "$1" in
@OPTIONS@
  esac
}
_cellgate_look() {
  # Sets kind, what may stand at the cursor, and session, the one that was named before.
  local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]} command= each= i n=0
  for ((i = 1; i < COMP_CWORD; i++)); do
    each=${COMP_WORDS[i]}
    if [[ $each == -* ]]; then
      if [[ -n $(_cellgate_kind "${command%% *} $each") ]]; then ((i++)); fi
    elif [[ -z $command ]]; then command=$each
    else
      if [[ $(_cellgate_kind "$command $n") == session ]]; then session=$each; fi
      if [[ $n == 0 && -n $(_cellgate_kind "$command $each 0") ]]; then command="$command $each"
      else ((n++)); fi
    fi
  done
  if [[ -z $command ]]; then kind="words: @COMMANDS@"
  elif [[ $last == -* ]]; then kind=$(_cellgate_kind "${command%% *} $last"); fi
  if [[ -z $kind && $word == -* ]]; then kind="words: $(_cellgate_options "${command%% *}")"; fi
  if [[ -z $kind ]]; then kind=$(_cellgate_kind "$command $n"); fi
}
_cellgate_names() {
  case "$kind" in
    words:*) printf '%s\\n' ${kind#words:} ;;
    session) cellgate completion sessions 2>/dev/null ;;
    path) cellgate completion files "$session" 2>/dev/null ;;
  esac
}
"""
_BASH = """\
# bash completion of cellgate. Use it:  source <(cellgate completion bash)
@LOOK@
_cellgate() {
  local word=${COMP_WORDS[COMP_CWORD]} kind= session= each=
  _cellgate_look
  COMPREPLY=()
  case "$kind" in
    # Not compgen -W: that would run what is in the name of a file.
    words:*|session|path) while IFS= read -r each; do
        if [[ $each == "$word"* ]]; then COMPREPLY+=("$each"); fi
      done < <(_cellgate_names) ;;
    dir) local IFS=$'\\n'; COMPREPLY=($(compgen -d -- "$word")) ;;
    file) local IFS=$'\\n'; COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}
complete -o filenames -F _cellgate cellgate
"""
_ZSH = """\
# zsh completion of cellgate. Use it behind compinit:  source <(cellgate completion zsh)
@LOOK@
_cellgate() {
  local kind= session= each=
  local -a COMP_WORDS names
  local -i COMP_CWORD=CURRENT-1
  COMP_WORDS=("${words[@]}")
  emulate ksh -c _cellgate_look
  case "$kind" in
    words:*|session|path) names=("${(@f)$(emulate ksh -c _cellgate_names)}")
      if [[ -n $names ]]; then compadd -a names; fi ;;
    dir) _files -/ ;;
    file) _files ;;
  esac
}
compdef _cellgate cellgate
"""
_FISH = """\
# fish completion of cellgate. Use it:  cellgate completion fish | source
function _cellgate_words
    set -l words (commandline -opc)
    set -e words[1]
    string match -v -- '-*' $words
end
function _cellgate_at -a number
    set -l words (_cellgate_words)
    set -l wanted $argv
    set -e wanted[1]
    test (count $words) -eq $number; or return 1
    test (count $wanted) -eq 0; and return 0
    set -l last (count $wanted)
    test "$words[1..$last]" = "$wanted"
end
complete -c cellgate -f
"""


@dataclass(frozen=True, slots=True)
class Command:
    """What can follow one command. A kind is ``words:...``, ``session``, ``path``, ``file``, ``dir`` or none.

    `options`: each with the kind of its value, None for a flag. `forms`: the kinds of its arguments, by the
    action that is its first word, or by "" where it has none.
    """

    name: str
    help: str
    options: Mapping[str, str | None]
    forms: Mapping[str, list[str]]


def commands(subcommands: Mapping[str, Any]) -> list[Command]:
    """All commands of the program, from their classes."""
    return [_command(name, import_item(path), text) for name, (path, text) in subcommands.items()]


def _command(name: str, app: type[BaseApp], text: str) -> Command:
    options: dict[str, str | None] = {"--help": None, "--help-all": None}
    for names, target in app.aliases.items():
        trait = app.class_traits()[target.split(".")[1]]
        values = (
            " ".join(value for value in trait.values or () if isinstance(value, str))
            if isinstance(trait, Enum)
            else ""
        )
        metavar = trait.metadata.get("metavar", "")
        kind = f"words: {values}" if values else "session" if trait.name == "session" else _kind(metavar)
        options |= dict.fromkeys(_dashed(names), kind)
    for names in app.flags:
        options |= dict.fromkeys(_dashed(names), None)
    return Command(name, text, options, _forms(app))


def _dashed(names: str | tuple[str, ...]) -> list[str]:
    words = (names,) if isinstance(names, str) else names
    return [("-" if len(word) == 1 else "--") + word for word in words]


def _kind_of_value(trait: Any) -> str:
    if isinstance(trait, Enum):
        return "words: " + " ".join(value for value in trait.values or () if isinstance(value, str))
    return "session" if trait.name == "session" else _kind(trait.metadata.get("metavar", ""))


def _forms(app: type[BaseApp]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for form in app.forms or (app.usage.replace("[options]", ""),):
        words = form.split()
        if words and re.fullmatch(r"[a-z|]+", words[0]):
            found |= {action: [_kind(word) for word in words[1:]] for action in words[0].split("|")}
        elif words:
            found[""] = [_kind(word) for word in words]
    return found


def _kind(word: str) -> str:
    """What a placeholder of a usage line stands for."""
    if "FILE" in word or "MOUNT" in word:
        return "file"
    return {"SESSION": "session", "PATH": "path", "[PATH]": "path", "DIR": "dir"}.get(word, "none")


def script(shell: str, subcommands: Mapping[str, Any]) -> str:
    """The script for bash, zsh or fish."""
    known = commands(subcommands)
    if shell == "fish":
        return _FISH + "".join(f"{line}\n" for line in _fish(known))
    kinds = [f"    {quote(key)}) echo {quote(kind)} ;;" for each in known for key, kind in _keys(each)]
    options = [f"    {each.name}) echo {quote(' '.join(each.options))} ;;" for each in known]
    look = _LOOK.replace("@KINDS@", "\n".join(kinds)).replace("@OPTIONS@", "\n".join(options))
    look = look.replace("@COMMANDS@", " ".join([*subcommands, "--help", "--version"]))
    return (_ZSH if shell == "zsh" else _BASH).replace("@LOOK@\n", look)


def _keys(command: Command) -> Iterator[tuple[str, str]]:
    """What `_cellgate_kind` answers: for an option that has a value, and for the n-th argument."""
    for option, kind in command.options.items():
        if kind is not None:
            yield f"{command.name} {option}", kind
    if actions := [action for action in command.forms if action]:
        yield f"{command.name} 0", f"words: {' '.join(actions)}"
    for action, kinds in command.forms.items():
        for number, kind in enumerate(kinds or ["none"] * bool(action)):
            yield " ".join(filter(None, (command.name, action, str(number)))), kind


def _fish(known: list[Command]) -> Iterator[str]:
    for command in known:
        yield f"complete -c cellgate -n '_cellgate_at 0' -a {command.name} -d {quote(command.help)}"
        seen = f"-n '__fish_seen_subcommand_from {command.name}'"
        for option, kind in command.options.items():
            name = f"-s {option[1:]}" if len(option) == 2 else f"-l {option[2:]}"
            value = "" if kind is None else f" -r {_fish_values(kind)}"
            yield f"complete -c cellgate {seen} {name}{value}"
        if actions := [action for action in command.forms if action]:
            yield f"complete -c cellgate -n '_cellgate_at 1 {command.name}' -a '{' '.join(actions)}'"
        for action, kinds in command.forms.items():
            words = " ".join(filter(None, (command.name, action)))
            for number, kind in enumerate(kinds):
                at = len(words.split()) + number
                yield f"complete -c cellgate -n '_cellgate_at {at} {words}' {_fish_values(kind)}"


def _fish_values(kind: str) -> str:
    if kind.startswith("words:"):
        return f"-f -a '{kind.removeprefix('words:').strip()}'"
    return {
        "session": "-f -a '(cellgate completion sessions 2>/dev/null)'",
        "path": "-f -a '(cellgate completion files (_cellgate_words)[3] 2>/dev/null)'",
        "dir": "-f -a '(__fish_complete_directories)'",
        "file": "-F",
    }.get(kind, "-f")


class CompletionApp(CommandApp):
    """``cellgate completion``."""

    name = "cellgate-completion"
    usage = "bash|zsh|fish [options]"
    description = """
        Prints a script that teaches the shell to complete cellgate's commands and options, the names of your
        sessions and of the files in them. Names are asked of the gateway, for at most two seconds.
    """
    examples = """
        source <(cellgate completion bash)             put it into ~/.bashrc
        source <(cellgate completion zsh)              put it into ~/.zshrc, behind compinit
        cellgate completion fish | source              put it into ~/.config/fish/config.fish
    """

    async def run_command(self) -> int:
        """Prints a script, or names for one."""
        match self.extra_args:
            case ["bash" | "zsh" | "fish" as shell]:
                subcommands = cast("BaseApp", self.parent).subcommands
                self.print(script(shell, subcommands).rstrip("\n"))
            case ["sessions"]:
                await self._names(self._sessions())
            case ["files", session]:
                await self._names(self._files(session))
            case _:
                raise UsageError(self._short_usage())
        return 0

    async def _names(self, names: Any) -> None:
        """Prints what comes in time."""
        with suppress(CellgateError, TimeoutError):
            async with asyncio.timeout(_PATIENCE), aclosing(names):
                count = 0
                async for name in names:
                    if name.isprintable() and (count := count + 1) <= _MOST:
                        self.print(name)

    async def _sessions(self) -> Any:
        async for model in self.gateway().sessions():
            yield model.session

    async def _files(self, session: str) -> Any:
        async for file in self.gateway().session(session).files.list():
            yield file.path
