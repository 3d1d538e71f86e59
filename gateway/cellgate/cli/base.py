"""The base of every ``cellgate`` command: its settings, its help, its connection to the gateway.

`BaseApp` is for all commands, including `serve`; `CommandApp` is for those that are clients of a running
gateway. Settings come, in order of precedence, from the command line, from the environment (``CELLGATE_PORT``
for ``--port``; ``CELLGATE__RunApp__timeout`` for any trait), and from one configuration file.
``main`` passes the environment in; nothing here reads the process's. It starts no server and knows no HTTP:
that is ``client``, imported only when a client is made.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import msgspec
import platformdirs
from traitlets import Any as AnyTrait
from traitlets import Bool, Enum, List, TraitError, TraitType, Unicode, default
from traitlets.config import Application, Config
from traitlets.config.loader import (
    ArgumentError,
    DeferredConfigList,
    DeferredConfigString,
    JSONFileConfigLoader,
    KVArgParseConfigLoader,
    PyFileConfigLoader,
)

from cellgate.cli.extras import available
from cellgate.cli.setting_checks import settings_of, unfit
from cellgate.cli.terminal.escaping import printed
from cellgate.wire.found_gateway import RUNNING_BYTES, RUNNING_FILE, FoundGateway
from cellgate_kernels.base.errors import InvalidInput, in_brief, in_words, near_file, nearest
from cellgate_kernels.base.regular import read_regular

if TYPE_CHECKING:
    from cellgate.client import Gateway, GatewayError
    from cellgate.client.transport import Trust

PREFIX = "CELLGATE"
COMPLETING = "_ARGCOMPLETE"
"""The variable by which a shell asks for completions; see ``completion_values``."""
_VERY_MUCH = 0.7
"""How like an option a mistyped one has to be (difflib's ratio): two swapped letters of five are 0.8."""
_MOST_OF_A_LETTER = 2
_CONFIG_NAMES = ("cellgate_config.py", "cellgate_config.json")


class UsageError(InvalidInput):
    """The command line, the environment or a configuration file can't be used. Exit code 2."""


def variable(alias: str) -> str:
    """Return the environment variable for an option: ``CELLGATE_DATA_DIR`` for ``data-dir``."""
    return f"{PREFIX}_{alias.upper().replace('-', '_')}"


def environment_config(
    environment: Mapping[str, str], aliases: Mapping[str, str], *, lists: Container[str] = ()
) -> Config:
    """Return the settings that `environment` holds; an empty variable counts as absent.

    `aliases` maps options to ``Class.trait``; `lists` names the traits that are lists, whose values a
    variable separates with commas. ``CELLGATE__Class__trait`` sets any trait, but an option's own variable
    takes precedence. traitlets' `load_config_environ` is not used: it reads the process's environment and
    fails on a variable such as ``CELLGATE_URL``, which has no double underscore.
    """
    found = {
        name.removeprefix(f"{PREFIX}__").replace("__", "."): value
        for name, value in environment.items()
        if name.startswith(f"{PREFIX}__") and name.count("__") == 2
    }
    for alias, target in aliases.items():
        if alias[1:] and (value := environment.get(variable(alias), "")):
            found[target] = value
    config = Config()
    for target, value in found.items():
        if value:
            class_name, trait = target.split(".")
            config[class_name][trait] = (
                DeferredConfigList(value.split(",")) if target in lists else DeferredConfigString(value)
            )
    return config


def read_config_file(path: Path) -> Config:
    """Return the settings in a ``.py`` or ``.json`` file, as Jupyter writes them. Raises UsageError."""
    loaders = {".py": PyFileConfigLoader, ".json": JSONFileConfigLoader}
    if path.suffix not in loaders:
        raise UsageError(f"the configuration file {path} must end in .py or .json")
    if not path.is_file():
        raise UsageError(f"there is no configuration file {path}{near_file(path)}")
    try:
        config = Config(loaders[path.suffix](path.name, path=str(path.parent)).load_config())
    except Exception as error:  # the file is a program: it may raise anything
        raise UsageError(
            f"the configuration file {path} fails: {type(error).__name__}: {in_words(error)}"
        ) from error
    for name, section in config.items():
        if isinstance(section, Config):
            continue
        if name[:1].isupper():
            raise UsageError(f"{name} in {path} must hold settings, such as {name}.NAME, not {section!r}")
        raise UsageError(f"{name} in {path} must be of a command, such as ServeApp.{name}")
    return config


class _LogLevel(Enum[Any]):
    """A log level by its name, in upper or lower case."""

    def from_string(self, s: str) -> Any:
        return s.upper() if s.upper() in (self.values or ()) else super().from_string(s)


class _StrictLoader(KVArgParseConfigLoader):
    """Reports a wrong option as one error, where traitlets prints a usage page or only warns.

    `check` gets the loaded settings before they are applied. `hint` says what may help about an option that
    there is none of, `elsewhere` what is known of it from other programs. `teach` is set only for completion,
    and tells the parser what may be completed.
    """

    check: Callable[[Config], None]
    teach: Callable[[argparse.ArgumentParser], None] | None = None
    hint: Callable[[Sequence[str]], str]
    elsewhere: Callable[[str, Sequence[str]], str]

    def load_config(self, *arguments: Any, **options: Any) -> Config:
        """Return the settings of the command line. Raises ArgumentError, and whatever `check` raises."""
        try:
            config = super().load_config(*arguments, **options)
        except ArgumentError as error:
            # All settings are Class.trait; for anything else traitlets' message is about its loader.
            loading = re.match(r"Error loading argument ([^=]+)=", str(error))
            if loading is not None and re.fullmatch(r"[A-Z]\w*\.\w+", loading[1]) is None:
                raise ArgumentError(f"there is no setting --{loading[1]}") from error
            twice = re.search(r"\b(\w{1,100}+\.\w{1,100}+)=", str(error))
            if twice is None or " only accepts one value" not in str(error):
                raise
            names = [f"--{alias}" for alias, target in self.aliases.items() if target == twice[1]]
            raise ArgumentError(f"{(names or [f'--{twice[1]}'])[-1]} may be given only once") from error
        self.check(config)
        return config

    def _create_parser(self) -> None:
        super()._create_parser()
        self.parser.error = self._refuse  # type: ignore[method-assign]

    def _argcomplete(self, classes: Any, subcommands: Any) -> None:
        """Print the completions and end the process, if the shell asked for them; traitlets' hook."""
        if self.teach is not None:
            self.teach(self.parser)
            # One-letter names are accepted with two dashes too, but that is not worth completing.
            short = [f"--{name}" for name in (*self.aliases, *self.flags) if len(name) == 1]
            self._argcomplete_kwargs = {"always_complete_options": False, "exclude": short}
            super()._argcomplete([] if subcommands else classes, available(subcommands or {}))

    def _refuse(self, message: str) -> NoReturn:
        known = ["-" * min(2, len(name)) + name for name in (*self.aliases, *self.flags)]
        option = (re.findall(r"(?:^argument |unrecognized arguments: )(--?[^\s:/=]+)", message) or [""])[0]
        if option and "." not in option and option not in known:
            known_elsewhere = self.elsewhere(option, self.argv)
            hint = known_elsewhere or _near_option(option, known) + self.hint(self.argv)
            raise ArgumentError(f"there is no option {option}{hint}")
        for alias, target in self.aliases.items():
            # The loader names the trait; the user knows the option.
            message = message.replace(f"--{target}:", f"--{alias}:" if len(alias) > 1 else f"--{target}:")
        message = re.sub(r": ignored explicit argument .*", " takes no value", message)
        message = re.sub(r"^unrecognized arguments: (.*)", r"unexpected argument '\1'", message)
        raise ArgumentError(
            message.replace(": expected one argument", " needs a value").removeprefix("argument ")
        )

    def _handle_unrecognized_alias(self, arg: str) -> None:
        # Traitlets takes one dash for two.
        typed = f"-{arg}" if any(word.partition("=")[0] == f"-{arg}" for word in self.argv) else f"--{arg}"
        self._refuse(f"unrecognized arguments: {typed}")


def _near_option(option: str, known: Sequence[str]) -> str:
    """Suggest options that begin like a mistyped one or are very like it; two for one letter."""
    word = option.lstrip("-")
    names = [name.lstrip("-") for name in known if name.startswith("--")]
    begin = [name for name in names if name.startswith(word)]
    if len(word) == 1:
        meant = begin if len(begin) <= _MOST_OF_A_LETTER else []
    else:
        near = begin[0] if len(begin) == 1 else nearest(word, names, alike=_VERY_MUCH)
        meant = [near] if near else []
    return f"; did you mean {' or '.join(f'--{name}' for name in meant)}?" if meant else ""


def did_you_mean(word: str, known: list[str]) -> str:
    """Return a suggestion to append to an error, or nothing if no known word is close."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""


def switches(class_name: str, **settings: Bool[Any, Any]) -> dict[str, tuple[dict[str, Any], str]]:
    """Make options without a value that turn these settings of a class on, with their help."""
    return {
        name.replace("_", "-"): ({class_name: {name: True}}, str(trait.help))
        for name, trait in settings.items()
    }


def expanded(name: str) -> Path:
    """Return a user's path with ``~`` resolved. Raises UsageError for a home that is not known."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{name}: this home folder is not known; give the whole path") from error


def absolute(name: str) -> Path:
    """Return the same as an absolute path. A setting that is a path is made one, once, at the start."""
    return expanded(name).absolute()


def users_folder() -> Path | None:
    """Return the data folder that this user's commands take if none is named; None for one without a home."""
    try:
        return platformdirs.user_data_path("cellgate")
    except RuntimeError:
        return None


class BaseApp(Application):
    """A command of ``cellgate``. `usage` and `examples` are shown by ``--help``."""

    usage: ClassVar[str] = "[options]"
    forms: ClassVar[tuple[str, ...]] = ()  # the usages in full, where `usage` abbreviates them
    each_by_variable: ClassVar[bool] = False
    """Whether each setting has a variable, ``CELLGATE_POOL_SIZE`` for `pool_size`; else options alone."""
    carried: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What is said of an option, without its dashes, that users know from other programs."""
    removed: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Settings that there were, each with what is in its place."""
    options_of_some: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The settings that only some of a command's actions have, each with these actions: ``actions``."""
    environment = AnyTrait(help="The environment variables that settings may come from.")

    data_dir = Unicode(help="The folder of the gateway's data; default: your data folder.").tag(
        config=True, metavar="DIR", not_empty=True
    )
    config_file = Unicode(
        help="A configuration file, .py or .json; default: cellgate_config.py or .json in your "
        "configuration folder."
    ).tag(config=True, metavar="FILE")
    log_level = _LogLevel(
        (0, 10, 20, 30, 40, 50, "DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"),
        default_value="WARN",
        help="How much is logged: debug, info, warn, error or critical.",
    ).tag(config=True, metavar="LEVEL")

    aliases = {  # noqa: RUF012 - traitlets declares it an instance's variable
        "data-dir": "BaseApp.data_dir",
        "config": "BaseApp.config_file",
        "log-level": "BaseApp.log_level",
    }
    flags = {}  # noqa: RUF012

    @default("environment")
    def _environment(self) -> Mapping[str, str]:
        return self.parent.environment if isinstance(self.parent, BaseApp) else {}

    @default("data_dir")
    def _data_dir(self) -> str:
        folder = users_folder()
        if folder is None:
            raise UsageError("your home folder is not known: set HOME, or give --data-dir DIR")
        return str(folder)

    @default("version")
    def _version(self) -> str:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow, rarely used

        try:
            return version("cellgate")
        except PackageNotFoundError:
            return "0 (not installed)"

    @property
    def data_path(self) -> Path:
        """`data_dir` as an absolute path, with ``~`` resolved: programs that we start have other folders."""
        return absolute(self.data_dir)

    def _running_gateway(self) -> FoundGateway | None:
        path = self.data_path / RUNNING_FILE
        try:
            return msgspec.json.decode(read_regular(path, RUNNING_BYTES), type=FoundGateway)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            why = in_brief(error)
            raise UsageError(f"{path} can't be read ({why}); give --url and --token") from error

    def initialize(self, argv: list[str] | None = None) -> None:
        """Read all settings; exit after ``--help``. Raises UsageError, which says what is wrong."""
        try:
            # traitlets' decorator around this method would log the error and exit with 1.
            inspect.unwrap(Application.parse_command_line)(self, argv)
            if self.subapp is None:
                self._check_command_line()
                self._load_settings()
        except (TraitError, ArgumentError) as error:
            raise UsageError(" ".join(str(error).split())) from error

    def _load_settings(self) -> None:
        lists = {
            f"{cls.__name__}.{name}"
            for cls in self._classes_inc_parents()
            for name, trait in cls.class_traits(config=True).items()
            if isinstance(trait, List)
        }
        environment = environment_config(self.environment, self._setting_names(), lists=lists)
        self._check_fit(environment, self._variable_of)
        environment.merge(self.cli_config)
        self.update_config(environment)
        config = self._file_config()
        config.merge(environment)
        self.update_config(config)

    def _setting_names(self) -> dict[str, str]:
        """Return settings by the names whose variables set them; an option's own is the last, and counts."""
        traits = self.traits(config=True).items() if self.each_by_variable else ()
        # Not those of traitlets' own Application, such as the form of a line of the log.
        ours = [name for name, trait in traits if trait.this_class.__module__.startswith("cellgate.")]
        return {name: f"{type(self).__name__}.{name}" for name in ours} | self.flatten_flags()[1]

    def _file_config(self) -> Config:
        if self.config_file:
            path = expanded(self.config_file)
        else:
            try:
                folder = platformdirs.user_config_path("cellgate")
            except RuntimeError:  # there is no home
                return Config()
            found = [folder / name for name in _CONFIG_NAMES if (folder / name).is_file()]
            if not found:
                return Config()
            path = found[0]
        config = read_config_file(path)
        self._check_fit(config, lambda class_name, name: f"{class_name}.{name} in {path}")
        return config

    def hint_for_unknown_option(self, argv: Sequence[str]) -> str:
        """Return the words to append to the error about an unknown option in `argv`."""
        return ""

    def told_of_others_option(self, option: str, argv: Sequence[str]) -> str:
        """Return the words to append about an option of other programs or of former versions; else empty."""
        name = option.lstrip("-")
        setting = name.replace("-", "_")
        if setting in self.traits(config=True) and name not in self.aliases:
            return f"; there is a setting: --{type(self).__name__}.{setting}=VALUE"
        return self._replaced(name) or (f"; {self.carried[name]}" if name in self.carried else "")

    def _replaced(self, name: str) -> str:
        told = self.removed.get(name.replace("-", "_"))
        return f"; it was removed: {told}" if told else ""

    def _check_command_line(self) -> None:
        """Check the command line; overridden by commands that accept less. Raises UsageError."""

    def _check_loaded(self, config: Config) -> None:
        """Refuse invalid and empty values, and unknown ``--Class.trait``, which traitlets ignores."""
        classes = {cls.__name__: cls for cls in self._classes_inc_parents()}
        for class_name, name, value in settings_of(config):
            cls = classes.get(class_name)
            known = {} if cls is None else cls.class_traits(config=True)
            if name not in known:
                hint = did_you_mean(name, list(known)) if cls else did_you_mean(class_name, list(classes))
                raise UsageError(f"there is no setting --{class_name}.{name}{self._replaced(name) or hint}")
            if known[name].metadata.get("not_empty") and value == "":
                # Most likely an unset variable of the shell; the default would be taken instead.
                raise UsageError(
                    f"{self.option(name, class_name)} is empty: give it a value, or leave it out"
                )
        self._check_fit(config, lambda class_name, name: self.option(name, class_name))

    def _check_fit(self, config: Config, called: Callable[[str, str], str]) -> None:
        """Refuse settings that no command has, unknown ones of this command, and invalid values of its own.

        `called` gives the name by which the user gave a setting.
        """
        known = self.traits(config=True)
        ours = {cls.__name__ for cls in type(self).__mro__}
        others = self.classes_of_settings()
        for class_name, name, value in settings_of(config):
            if class_name not in ours:
                if others and class_name not in others:
                    hint = did_you_mean(class_name, [*ours, *others])
                    raise UsageError(f"{called(class_name, name)}: no command has such settings{hint}")
                continue
            if name not in known:
                hint = self._replaced(name) or did_you_mean(name, list(known))
                raise UsageError(f"{called(class_name, name)}: no such setting{hint}")
            if (problem := unfit(self, name, value)) is not None:
                raise UsageError(f"{called(class_name, name)} {problem}")

    def classes_of_settings(self) -> frozenset[str]:
        """Return names of the classes that other commands have settings of; empty if they are not known."""
        return self.parent.classes_of_settings() if isinstance(self.parent, BaseApp) else frozenset()

    def option(self, name: str, class_name: str = "") -> str:
        """Return the option of the command line for this setting."""
        for alias, target in self.flatten_flags()[1].items():
            if target.partition(".")[2] == name and alias[1:]:
                return f"--{alias}"
        return f"--{class_name or type(self).__name__}.{name}"

    def _variable_of(self, class_name: str, name: str) -> str:
        names = (self.option(name).removeprefix("--"), name)
        given = (variable(each) for each in names if self.environment.get(variable(each)))
        return next(given, f"{PREFIX}__{class_name}__{name}")

    def _create_loader(
        self, argv: list[str] | None, aliases: dict[str, Any], flags: dict[str, Any], classes: Any
    ) -> KVArgParseConfigLoader:
        loader = _StrictLoader(
            argv,
            aliases,
            flags,
            classes=classes,
            log=self.log,
            subcommands=self.subcommands,
            allow_abbrev=False,
        )
        loader.check = self._check_loaded
        loader.hint = self.hint_for_unknown_option
        loader.elsewhere = self.told_of_others_option
        if COMPLETING in self.environment:
            from cellgate.cli.completion_values import forms_of, teach  # noqa: PLC0415 - for completion only

            forms = forms_of(self.usage, self.forms)
            loader.teach = partial(
                teach, traits=self.class_traits(), forms=forms, has_subcommands=bool(self.subcommands)
            )
        return loader

    def emit_help(self, classes: bool = False) -> Generator[str, None, None]:
        """Yield the lines of ``--help``; ``--help-all`` adds traitlets' list of every setting."""
        if classes:
            yield from super().emit_help(classes=True)
            return
        width = min(shutil.get_terminal_size().columns, 100)
        yield from self._usage_lines()
        for paragraph in inspect.cleandoc(str(self.description)).split("\n\n"):
            yield ""
            yield from textwrap.wrap(paragraph, width)
        yield from self.emit_commands()
        if self.aliases:
            yield "\nOptions (each also by the environment variable beside it)"
            yield from self._option_lines(width)
        yield from self.emit_examples()

    def _usage_lines(self) -> Generator[str, None, None]:
        """Yield one line for each form of the command; options stand before the words of a user's program."""
        command = self.name.replace("-", " ", 1)
        if not self.forms:
            yield f"Usage: {command} {self.usage}"
        for number, form in enumerate(self.forms):
            words, separator, program = form.partition(" -- ")
            yield f"{' ' * 6 if number else 'Usage:'} {command} {words} [options]{separator}{program}"

    def emit_examples(self) -> Generator[str, None, None]:
        """Yield the examples, as written in the class."""
        if self.examples:
            yield "\nExamples"
            yield textwrap.indent(inspect.cleandoc(str(self.examples)), "  ")

    def emit_commands(self) -> Generator[str, None, None]:
        """Yield the lines between the description and the options of the root command."""
        yield from ()

    def _option_lines(self, width: int) -> Generator[str, None, None]:
        for names, target in self.aliases.items():
            trait: TraitType[Any, Any] = self.class_traits()[target.split(".")[1]]
            words = _words(names)
            yield self._heading(words, trait.metadata.get("metavar", "VALUE"), variable(max(words, key=len)))
            yield from _wrap_help(f"{trait.help}{_default_text(trait)}", width)
        for names, (_, text) in self.flags.items():
            yield self._heading(_words(names), "", "")
            yield from _wrap_help(text, width)
        yield "  -h, --help · --help-all"
        yield from _wrap_help(
            "Show this; with --help-all, also every setting of the configuration file.", width
        )

    @staticmethod
    def _heading(words: tuple[str, ...], metavar: str, name: str) -> str:
        options = ", ".join(("-" if len(word) == 1 else "--") + word for word in sorted(words, key=len))
        return f"{f'  {options} {metavar}'.ljust(34)} {name}".rstrip()


def _words(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _wrap_help(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _default_text(trait: TraitType[Any, Any]) -> str:
    if isinstance(trait, List):
        return " May be given several times; in the variable, separate values with commas."
    value = trait.default_value
    if isinstance(value, float) and value:
        return f" Default: {value:.15g}."
    shown = isinstance(value, (str, int)) and not isinstance(value, bool) and value not in {"", 0}
    return f" Default: {value}." if shown else ""


class CommandApp(BaseApp):
    """A command that is a client of a running gateway. `run_command` does the work."""

    url = Unicode(
        help="The gateway's address; default: that of the gateway of this data folder, otherwise "
        "http://127.0.0.1:8888."
    ).tag(config=True, metavar="URL", not_empty=True)
    token = Unicode(
        help="The token; default: that of the gateway of this data folder. Other users of the machine can "
        "see the options of a command, but not its environment."
    ).tag(config=True, metavar="TOKEN")

    ca_file = Unicode(
        help="A PEM file with certificates, by which that of an https gateway must be signed; default: those "
        "that the system trusts. The gateway of this data folder is trusted as it is."
    ).tag(config=True, metavar="FILE")

    aliases = {  # noqa: RUF012
        "url": "CommandApp.url",
        "token": "CommandApp.token",
        "ca-file": "CommandApp.ca_file",
        **BaseApp.aliases,
    }

    def start(self) -> NoReturn:
        """Run the command and exit with its code. Raises UsageError if the gateway refuses a request."""
        import asyncio  # noqa: PLC0415 - keeps --help quick

        from cellgate.client import GatewayError  # noqa: PLC0415

        try:
            raise SystemExit(asyncio.run(self.run_command()))
        except GatewayError as error:
            raise UsageError(self._explained(error)) from error

    def _explained(self, error: GatewayError) -> str:
        """Return a refusal with what of this command's settings led to it, and what to do."""
        file = self.data_path / RUNNING_FILE
        found = self._running_gateway() is not None
        elsewhere = "one that serves with another data folder is found by --data-dir DIR or CELLGATE_DATA_DIR"
        if error.reason == "unreachable" and not self.url:
            named = f"{file} names it: it was not stopped in order" if found else f"There is no {file}"
            return f"{error.message} {named}; {elsewhere}."
        if error.reason != "not_authenticated":
            return error.message
        own = self._local_gateway() is not None
        if self.token:
            left = f"; without it, that in {file} is taken" if own else ""
            return f"{error.message}: {self.address()} was sent that of --token or CELLGATE_TOKEN{left}"
        if own:
            return f"{error.message}: {self.address()} was sent that in {file}; give CELLGATE_TOKEN"
        return (
            f"{self.address()} wants a token, and this command has none: set CELLGATE_TOKEN. {file}"
            f" {'is for another address' if found else 'is not there'}; {elsewhere}"
        )

    def pasted(self, *words: str) -> str:
        """Return a command as it can be pasted, for the same gateway as this one."""
        names = ("url", "ca_file", "principal", "data_dir", "config_file")
        given = [name for name in names if any(name in section for section in self.cli_config.values())]
        where = (word for name in given for word in (self.option(name), str(getattr(self, name))))
        return shlex.join(["cellgate", *words, *where])

    async def run_command(self) -> int:
        """Return the command's work; returns its exit code."""
        raise NotImplementedError

    @staticmethod
    def print(text: str) -> None:
        """Write a line of the command's result to stdout."""
        sys.stdout.write(f"{printed(text) if sys.stdout.isatty() else text}\n")
        sys.stdout.flush()  # here, because `main` handles the error of a reader that has left

    def arguments(self, *names: str) -> list[str]:
        """Return the positional arguments, exactly one for each of `names`. Raises UsageError."""
        if len(self.extra_args) < len(names):
            raise UsageError(f"{names[len(self.extra_args)]} is missing: {self._short_usage()}")
        if len(self.extra_args) > len(names):
            raise UsageError(f"unexpected argument {self.extra_args[len(names)]!r}: {self._short_usage()}")
        return list(self.extra_args)

    def _short_usage(self) -> str:
        return f"{self.name.replace('-', ' ', 1)} {self.usage}"

    def address(self) -> str:
        """Return the URL of the gateway of the settings. Raises UsageError."""
        running = self._running_gateway()
        return self.url or (running.url if running else "http://127.0.0.1:8888")

    def trust(self) -> Trust:
        """Which certificates of the gateway of the settings are accepted. Raises UsageError."""
        from cellgate.client.transport import Trust  # noqa: PLC0415

        running = self._local_gateway()
        if running is not None and running.certificate is not None:
            return Trust(certificate=running.certificate)
        return Trust(ca_file=expanded(self.ca_file) if self.ca_file else None)

    def gateway(self) -> Gateway:
        """Return a client of the gateway of the settings. Raises UsageError."""
        return self.gateway_for(None)

    def gateway_for(self, principal: str | None) -> Gateway:
        """Return such a client for the sessions of this principal; None: the token's. Raises UsageError."""
        from cellgate.client import Gateway  # noqa: PLC0415

        running = self._local_gateway()
        token = self.token or (running.token if running is not None else "")
        return Gateway(self.address(), token or None, trust=self.trust(), principal=principal)

    def _local_gateway(self) -> FoundGateway | None:
        """Return the data folder's gateway if the settings name it: its token goes to no other URL."""
        from cellgate.client.transport import without_version  # noqa: PLC0415 - keeps --help quick

        running = self._running_gateway()
        if running is None or without_version(self.address()) != without_version(running.url):
            return None
        return running
