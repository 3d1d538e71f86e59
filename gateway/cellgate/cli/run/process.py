"""``cellgate process``: programs beside a session's cells: run, start, list, watch, signal and end them.

Each action is one or a few calls of the client; ``program_run`` follows a program and passes on to it what
the user types and presses.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from traitlets import Bool, List, Unicode

from cellgate.cli.actions import check_options, choose_action, forms_of
from cellgate.cli.base import UsageError, switches
from cellgate.cli.run.owner import OwnerOption
from cellgate.cli.run.program_run import Feed, ProgramRun, piped_stdin, show_events
from cellgate.cli.setting_checks import Duration
from cellgate.cli.terminal.escaping import printed_line
from cellgate.cli.terminal.tables import as_json, make_table, print_table
from cellgate.client import Gateway, ProcessModel


class ProcessApp(OwnerOption):
    """``cellgate process``."""

    name = "cellgate-process"
    usage = "run|start|ls|watch|signal|end SESSION [...] [options] [-- PROGRAM...]"
    actions = {  # noqa: RUF012
        "run": "SESSION -- PROGRAM...",
        "start": "SESSION -- PROGRAM...",
        "ls": "SESSION",
        "watch": "SESSION PROCESS",
        "signal": "SESSION PROCESS SIGNAL",
        "end": "SESSION PROCESS...",
    }
    forms = forms_of(actions)
    description = """
        Programs that run beside a session's cells, in the same sandbox and with the same files. They end
        with the session's kernel at the latest. Put -- before the PROGRAM, so that its options are not taken
        for ours. No shell is used: for one, run sh -c '...'.

        run starts a program, shows what it writes as it comes, and waits for its end. What is piped into run
        is the program's input; on a terminal it gets none without --stdin. Ctrl-C sends it SIGINT (SIGTERM
        and SIGHUP are passed on too), a second one ends it. Output is text: bytes that are not UTF-8 are
        replaced. A missing session is created, and stays.

        start does not wait: it prints the process's id. ls lists those that run, and the last that ended.
        watch shows all that one has written so far, and then what it writes, until it ends; Ctrl-C leaves
        it running. end sends SIGTERM, and SIGKILL five seconds later.

        Exit code of run and watch: the program's own, or 128 and the number of the signal that ended it.
    """
    examples = """
        cellgate process run my-session -- ls -l
        cellgate process run my-session --cwd data --env LANG=C -- sh -c 'sort *.csv | head'
        echo hello | cellgate process run my-session -- tr a-z A-Z
        cellgate process run my-session --json -- python --version
                                                  its output and exit code as JSON, when it has ended
        cellgate process start my-session -- python -m http.server 8000
        cellgate process ls my-session
        cellgate process watch my-session p-0123456789ab
        cellgate process signal my-session p-0123456789ab INT
        cellgate process end my-session p-0123456789ab
    """

    options_of_some = MappingProxyType(
        {
            "cwd": "run start",
            "env": "run start",
            "timeout": "run start",
            "stdin": "run start",
            "json": "run start ls watch",
        }
    )

    cwd = Unicode(help="The folder of the workspace to run in; default: the workspace itself.").tag(
        config=True, metavar="FOLDER"
    )
    env = List(
        Unicode(), help="A variable for the program, besides the kernel's own; NAME alone passes on yours."
    ).tag(config=True, metavar="NAME=VALUE")
    timeout = Duration(
        None, allow_none=True, help="Seconds that the program may run; default: as long as its session."
    ).tag(config=True, metavar="SECONDS")
    stdin = Bool(
        False, help="Pass on what you type on a terminal; with start: the input comes later, from a client."
    ).tag(config=True)
    json = Bool(
        False, help="Print JSON: run and start the process, watch each event on a line of its own."
    ).tag(config=True)

    aliases = {  # noqa: RUF012
        "cwd": "ProcessApp.cwd",
        "env": "ProcessApp.env",
        "timeout": "ProcessApp.timeout",
        **OwnerOption.aliases,
    }
    flags = switches("ProcessApp", stdin=stdin, json=json)

    def hint_for_unknown_option(self, argv: Sequence[str]) -> str:
        if argv[:1] and argv[0] in {"run", "start"} and "--" not in argv:
            return "; put -- before the program, so that its options are its own"
        return ""

    async def run_command(self) -> int:
        action, (session, *words) = choose_action(
            "cellgate process", self.usage, self.actions, self.extra_args
        )
        check_options(self, action)
        gateway = self.gateway()
        match action:
            case "run":
                return await self._run(gateway, session, words)
            case "start":
                started = await self._start(gateway, session, words, stdin=self.stdin)
                self.print(as_json(started) if self.json else started.process)
            case "ls":
                self._show(session, await gateway.processes(session))
            case "watch":
                return await self._watch(gateway, session, words[0])
            case "signal":
                await gateway.signal_program(session, words[0], _signal(words[1]))
            case _:
                for process in words:
                    await gateway.end_program(session, process)
        return 0

    async def _start(
        self, gateway: Gateway, session: str, argv: Sequence[str], *, stdin: bool
    ) -> ProcessModel:
        return await gateway.start_program(
            session, argv, env=self._variables(), cwd=self.cwd or None, stdin=stdin, timeout=self.timeout
        )

    async def _run(self, gateway: Gateway, session: str, argv: Sequence[str]) -> int:
        source = piped_stdin(asked=self.stdin)
        started = await self._start(gateway, session, argv, stdin=source is not None)
        run = ProgramRun(gateway, started)
        feed = None if source is None else Feed(gateway, started, source)
        code = await run.to_its_end(feed, shown=not self.json)
        if self.json:
            self.print(as_json(await gateway.process(session, started.process)))
        return code

    async def _watch(self, gateway: Gateway, session: str, process: str) -> int:
        return await show_events(gateway.follow_program(session, process), json=self.json)

    def _variables(self) -> Mapping[str, str]:
        """Return the variables of `--env`. Raises UsageError for one that is not set here."""
        found = {}
        for word in self.env:
            name, equals, value = word.partition("=")
            if not equals and name not in self.environment:
                raise UsageError(f"--env {name}: you have no such variable; give it as {name}=VALUE")
            found[name] = value if equals else self.environment[name]
        return found

    def _show(self, session: str, processes: Sequence[ProcessModel]) -> None:
        if self.json:
            self.print(as_json(processes))
        elif processes:
            table = make_table("PROCESS", "STATE", "STARTED (UTC)", "PROGRAM")
            for model in processes:
                started = model.started_at[:19].replace("T", " ")
                table.add_row(model.process, _state(model), started, printed_line(shlex.join(model.argv)))
            print_table(table)
        else:
            self.print(f"No programs run in {session}.")


def _state(model: ProcessModel) -> str:
    """Return whether it runs, or else how it ended."""
    if model.exit_code is not None:
        return f"exited {model.exit_code}"
    return model.signal or model.cause or model.state


def _signal(name: str) -> str:
    """INT and SIGINT are the same."""
    return name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
