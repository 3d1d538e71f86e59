"""The entry point of the ``cellgate`` command: chooses the subcommand, and turns errors into exit codes.

It does no work itself and imports a subcommand only when it is called, so that ``--help`` is quick.
Exit codes: 0 done; 1 it failed (a cell of ``run``, the start of ``serve``); 2 wrong usage, or no gateway to
talk to; 3 undecided (``replay``, ``verify``); 130 interrupted by Ctrl-C. The process's environment is read
here, and passed on.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator, Sequence
from types import MappingProxyType

from traitlets.config import Config
from traitlets.utils.importstring import import_item

from cellgate.cli.base import COMPLETING, BaseApp, UsageError, did_you_mean
from cellgate.cli.extras import OF_THE_SERVER, SERVER, missing
from cellgate.cli.terminal.escaping import printed, printed_line
from cellgate_kernels.base.errors import CellgateError, InvalidInput, in_brief

OPTION_GROUPS = (
    "CommandApp",
    "IdentityOptions",
    "KernelOption",
    "OwnerOption",
    "ListOptions",
    "PackageOptions",
    "PrincipalsApp",
    "SessionOptions",
    "TimeoutOption",
)
"""Classes of settings that commands share; named here, because to look takes importing all commands."""


class CellgateApp(BaseApp):
    """``cellgate`` itself."""

    name = "cellgate"
    usage = "COMMAND [options]"
    description = """
        Runs code cells in isolated Jupyter kernels and keeps every session as a notebook.
    """
    examples = """
        cellgate setup                       make the kernel environment, once
        cellgate image build                 make the image of kernels in containers, once
        cellgate serve                       start the gateway on http://127.0.0.1:8888
        cellgate run analysis.ipynb -o out.ipynb
                                             run a notebook's cells through the gateway
        cellgate run README.md               run the Python blocks of a Markdown file
        cellgate exec 'print(6 * 7)'         run one piece of code
        cellgate console my-session          a prompt for a session
        cellgate open                        the same and more, in your browser
        cellgate files put my-session data.csv
                                             copy a file into a session
        cellgate sessions                    list sessions, running and ended
        cellgate session watch my-session    see what happens in a session as it happens
        cellgate process run my-session -- ls -l
                                             run a program beside a session's cells
        cellgate export my-session -o my-session.ipynb
                                             write a session's record as a notebook
        cellgate replay my-session.ipynb     run it again and compare
    """
    carried = MappingProxyType({"c": "cellgate exec CODE runs code", "v": "did you mean --version?"})
    aliases = {}  # noqa: RUF012 - options belong to the commands
    subcommands = {  # noqa: RUF012
        "serve": ("cellgate.cli.serve.serve.ServeApp", "Start the gateway."),
        "setup": ("cellgate.cli.serve.setup.SetupApp", "Make the environment that kernels run in."),
        "node": ("cellgate.cli.serve.node.NodeApp", "List, drain and remove the gateways of a cluster."),
        "doctor": ("cellgate.cli.serve.doctor.DoctorApp", "Say what of this machine works for a gateway."),
        "image": ("cellgate.cli.serve.image.ImageApp", "Build or check the image of kernels in containers."),
        "run": ("cellgate.cli.run.run.RunApp", "Run a notebook, script or Markdown file, cell by cell."),
        "exec": ("cellgate.cli.run.exec.ExecApp", "Run one piece of code."),
        "console": ("cellgate.cli.run.console.ConsoleApp", "A prompt for a session."),
        "open": ("cellgate.cli.run.open.OpenApp", "Open the console in your browser."),
        "files": ("cellgate.cli.run.files.FilesApp", "Put, get, list and remove files of a session."),
        "packages": ("cellgate.cli.run.packages.PackagesApp", "List and change the packages of a session."),
        "process": ("cellgate.cli.run.process.ProcessApp", "Run programs beside a session's cells."),
        "mcp": ("cellgate.cli.run.mcp.McpApp", "Serve sessions as tools for language models."),
        "tools": ("cellgate.cli.run.tools.ToolsApp", "Print the tools for language models' APIs."),
        "export": ("cellgate.cli.record.export.ExportApp", "Write a session's record as a notebook."),
        "replay": ("cellgate.cli.record.replay.ReplayApp", "Run a notebook again and say what differs."),
        "sessions": ("cellgate.cli.run.sessions.SessionsApp", "List sessions."),
        "session": ("cellgate.cli.run.session.SessionApp", "Look at, stop, end and watch sessions."),
        "user": ("cellgate.cli.people.user.UserApp", "Add, list, change, disable and remove users."),
        "token": ("cellgate.cli.people.token.TokenApp", "Create, list and revoke tokens of users."),
        "secret": ("cellgate.cli.people.secret.SecretApp", "Set, list and remove secrets for cells."),
        "verify": ("cellgate.cli.record.verify.VerifyApp", "Check an export or a record."),
        "record": (
            "cellgate.cli.record.record.RecordApp",
            "Measure, compact, back up and restore the record; signing key.",
        ),
        "completion": ("cellgate.cli.completion.CompletionApp", "Print a completion script for your shell."),
    }

    def initialize(self, argv: list[str] | None = None) -> None:
        """Read the command line and create the subcommand it names."""
        words = sys.argv[1:] if argv is None else argv
        if COMPLETING in self.environment:
            from traitlets.config.argcomplete_config import get_argcomplete_cwords  # noqa: PLC0415

            # For completion the shell passes no arguments: the line is in the environment.
            words = (get_argcomplete_cwords() or [])[1:]
        word = next(iter(words[1:] if words[:1] == ["help"] else words), "")
        if word and not word.startswith("-") and word not in self.subcommands:
            hint = did_you_mean(word, [*self.subcommands, "--version"]) or "; see cellgate --help"
            raise UsageError(f"there is no command {word!r}{hint}")
        super().initialize(list(words))

    def hint_for_unknown_option(self, argv: Sequence[str]) -> str:
        """Say that an option is one of ``serve``: the words behind an image's name replace that command."""
        name = next(iter(argv), "").partition("=")[0].lstrip("-")
        if missing(SERVER):
            return ""
        serve = import_item(self.subcommands["serve"][0])
        return f"; did you mean cellgate serve --{name}?" if name in {*serve.aliases, *serve.flags} else ""

    def initialize_subcommand(self, subc: str, argv: list[str] | None = None) -> None:
        """Create the subcommand as a plain child: traitlets would keep one instance per process."""
        if subc in OF_THE_SERVER and (absent := missing(SERVER)):
            raise UsageError(
                f"cellgate {subc} needs the server ({', '.join(absent)} missing here):"
                " pip install 'cellgate[server]'"
            )
        self.subapp = import_item(self.subcommands[subc][0])(parent=self)
        self.subapp.initialize(argv)

    def classes_of_settings(self) -> frozenset[str]:
        commands = (path.rpartition(".")[2] for path, _ in self.subcommands.values())
        return frozenset((*commands, *OPTION_GROUPS))

    def _check_loaded(self, config: Config) -> None:
        """Do nothing: `_check_command_line` refuses any setting before the command."""

    def _check_command_line(self) -> None:
        if self.cli_config or self.extra_args:
            raise UsageError("the command comes first, then its options; see cellgate --help")

    def start(self) -> None:
        """Start the subcommand; without one, show the help and exit with 2."""
        if self.subapp is None:
            self.print_help()
            self.exit(2)
        else:
            self.subapp.start()

    def emit_commands(self) -> Generator[str, None, None]:
        yield "\nCommands (see cellgate COMMAND --help)"
        for name, (_, text) in self.subcommands.items():
            yield f"  {name.ljust(11)} {text}"
        yield "  --version   Show the version."


def main(argv: list[str] | None = None) -> int:
    """Run ``cellgate`` with `argv` (default: the process's arguments); return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a cell's text may not fit the terminal's encoding
    try:
        app = CellgateApp(environment=os.environ)
        app.initialize(argv)
        app.start()
    except InvalidInput as error:
        return _fail(error.message, 2)
    except CellgateError as error:
        return _fail(error.message, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has left, as `head` does. Python's flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        # A file or folder that the machine refuses, such as one in a folder that this user may not search.
        # Whatever can say more about it does so at its own place; an error without a file is a fault of ours.
        if error.filename is None:
            raise
        return _fail(f"{printed_line(str(error.filename))}: {in_brief(error)}", 1)
    return 0


def _fail(message: str, code: int) -> int:
    # A gateway's refusal may have words of others in it, such as the name of a file.
    sys.stderr.write(f"cellgate: {printed(message)}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
