"""``cellgate setup``: creates the environment that kernels run in, and reports which isolation works here.

``cellgate_kernels.specs`` does the work and ``cellgate_kernels.provisioners`` checks the isolation; this
shows it. It needs no running gateway, and may be called again: what exists and is correct is kept.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from traitlets import Unicode

from cellgate.cli.base import BaseApp, UsageError
from cellgate_kernels.errors import BackendUnavailable
from cellgate_kernels.provisioners.sandbox import SandboxProvisioner
from cellgate_kernels.specs.install import REQUIREMENTS, create_environment, install_kernelspecs


class SetupApp(BaseApp):
    """``cellgate setup``."""

    name = "cellgate-setup"
    usage = "[options]"
    description = """
        Makes the environment that kernels run in, apart from the gateway's own: kernels of Python, bash and
        JavaScript, numpy, pandas, matplotlib and more. Then checks whether kernels can be isolated here.

        You can call it again: what exists is kept. It needs the network, half a minute and about 1 GB. The
        packages come from the index that pip, or uv, is configured to use.
    """
    examples = """
        cellgate setup
        cellgate setup --requirements my-requirements.txt
    """

    prefix = Unicode(
        help="Where to install, in its folder share/cellgate; default: the gateway's own prefix."
    ).tag(config=True, metavar="DIR")
    requirements = Unicode(
        help="The packages of the kernel environment; default: Cellgate's own list, with hashes."
    ).tag(config=True, metavar="FILE")

    aliases = {  # noqa: RUF012
        "prefix": "SetupApp.prefix",
        "requirements": "SetupApp.requirements",
        **BaseApp.aliases,
    }

    def start(self) -> NoReturn:
        """Runs the setup and exits with its code."""
        if self.extra_args:
            raise UsageError(f"unexpected argument {self.extra_args[0]!r}")
        requirements = Path(self.requirements).expanduser() if self.requirements else REQUIREMENTS
        if not requirements.is_file():
            raise UsageError(f"--requirements: there is no file {requirements}")
        raise SystemExit(set_up(Path(self.prefix or sys.prefix).expanduser(), requirements))


def set_up(prefix: Path, requirements: Path) -> int:
    """Creates environment and kernelspecs under `prefix`, then reports on the isolation; returns 0.

    Raises BackendUnavailable, with the end of uv's output, if the environment can't be created.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    with console.status("") as status:

        def step(text: str) -> None:
            console.print(f"{text} ...")
            status.update(text)

        environment = create_environment(prefix, step, status.update, requirements=requirements)
        step("writing the kernelspecs and matplotlib's list of fonts")
        try:
            specs = install_kernelspecs(environment, prefix)
        except OSError as error:
            raise BackendUnavailable(f"The kernelspecs can't be written: {error}") from error
    console.print(f"kernel environment  {environment}")
    for spec in specs:
        console.print(f"kernelspec          {spec}")
    try:
        asyncio.run(SandboxProvisioner.check())
    except BackendUnavailable as error:
        console.print(f"isolation           none yet: {error.message}")
    else:
        console.print("isolation           sandbox: bubblewrap works")
    return 0
