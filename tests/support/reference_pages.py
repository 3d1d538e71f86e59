"""Pages of the reference that are made from the code: events, the commands' help, every setting of a gateway.

``make reference`` writes them; ``tests/pure/test_docs.py`` fails when they are out of date. Defaults that
depend on the machine, such as the data folder, are not in them.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from traitlets import List, TraitType
from traitlets.utils.importstring import import_item

from cellgate.cli.main import CellgateApp
from cellgate.cli.serve.serve import ServeApp
from cellgate.wire.reference import reference as events
from cellgate_kernels.engine.profile import sandboxes_profile
from tests.support import stubs

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PROFILE = Path(__file__).parents[2] / "deploy" / "seccomp.json"
WIDTH = "100"

COMMANDS = """\
# Commands

<!-- Made from the code by `make reference`. -->

Options come from the command line, from the environment variable beside each option, or from a configuration
file: see [Operate a gateway](../how-to/operate-a-gateway.md#configure-it).

## Exit codes

| code | most commands | `run`, `exec` | `replay` | `verify` |
|---|---|---|---|---|
| 0 | done | all cells succeeded | all cells give the same | valid |
| 1 | it failed | a cell failed, or a file was not brought back | something differs | not valid |
| 2 | wrong usage, no gateway, or refused | the same | the same | wrong usage, or a file that cannot be read |
| 3 | | | nothing certainly differs, but some is not judged; or nothing was compared | the file has no seal |
| 130 | Ctrl-C | Ctrl-C | Ctrl-C | Ctrl-C |

`run` of a Python script that leaves by `sys.exit()` exits as the script does: with 0, with its number, or
with 1 for a text.

`process run` and `process watch` exit as the program did: with its own code, or with 128 and the number of
the signal that ended it.
"""

SETTINGS = """\
# Settings

<!-- Made from the code by `make reference`. -->

All settings of `cellgate serve`, in alphabetical order.

| where | how a setting is given |
|---|---|
| command line | its option, or `--ServeApp.NAME=VALUE` |
| environment | `CELLGATE_` and its name, or its option's, in capitals: `CELLGATE_POOL_SIZE` |
| configuration file | `c.ServeApp.NAME = VALUE` |

In a variable, commas separate the values of a list, and a switch is `true` or `false`.
Sizes are bytes, or a number with a unit such as `512m` or `1.5g`. [Limits](limits.md) explains the limits of
sessions, clients and the disk.

| setting | option | default | meaning |
|---|---|---|---|
"""


def help_of(app: Any) -> str:
    """What ``--help`` prints."""
    printed = io.StringIO()
    with redirect_stdout(printed), mock.patch.dict(os.environ, COLUMNS=WIDTH):
        app.print_help()
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def commands() -> str:
    """The page of all commands."""
    apps = {"cellgate": CellgateApp()}
    for name, (path, _) in CellgateApp.subcommands.items():
        apps[f"cellgate {name}"] = import_item(path)()
    return COMMANDS + "".join(f"\n## {name}\n\n```text\n{help_of(app)}\n```\n" for name, app in apps.items())


def settings() -> str:
    """The page of all settings of ``cellgate serve``."""
    return SETTINGS + "".join(f"| {' | '.join(row)} |\n" for row in _rows())


def _rows() -> Iterator[tuple[str, str, str, str]]:
    options = {target.partition(".")[2]: f"`--{option}`" for option, target in ServeApp.aliases.items()}
    for option, (config, _) in ServeApp.flags.items():
        for trait in config["ServeApp"]:
            options[trait] = f"`--{option}`"
    for name, trait in ServeApp.class_traits(config=True).items():
        if trait.this_class.__module__.startswith("cellgate."):  # not of traitlets' own Application
            yield f"`{name}`", options.get(name, ""), _default(name, trait), " ".join(str(trait.help).split())


def _default(name: str, trait: TraitType[Any, Any]) -> str:
    value = trait.default_value
    if isinstance(trait, List) or name == "data_dir" or value in ("", None):
        return ""
    return f"`{value:.15g}`" if isinstance(value, float) else f"`{value}`"


PAGES = {"events.md": events, "commands.md": commands, "settings.md": settings}


def profile() -> str:
    """The seccomp profile of a container in which a gateway makes sandboxes."""
    return json.dumps(json.loads(sandboxes_profile()), indent=1) + "\n"


def main() -> None:
    """Writes the pages, the profile, and the stubs of the client's blocking facades."""
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page())
    PROFILE.write_text(profile())
    stubs.write()


if __name__ == "__main__":
    main()
