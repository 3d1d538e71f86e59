"""``cellgate setup``: creates the environment that kernels run in, and reports which isolation works here.

``cellgate_kernels.specs`` does the work and ``cellgate_kernels.backends`` checks the isolation; this
shows it. It needs no running gateway, and may be called again: what exists and is correct is kept.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from traitlets import Enum, Unicode

from cellgate.cli.base import BaseApp, UsageError, absolute, expanded
from cellgate_kernels.backends.landlock import LandlockProvisioner
from cellgate_kernels.backends.sandbox import SandboxProvisioner
from cellgate_kernels.base.errors import BackendUnavailable, in_words, near_file
from cellgate_kernels.base.prefix import own_prefix
from cellgate_kernels.specs.added_environments import AddedEnvironments
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.specs.environments import ListedEnvironment, chosen_requirements, environment_of
from cellgate_kernels.specs.install import create_environment, install_kernelspecs, is_up_to_date


class SetupApp(BaseApp):
    """``cellgate setup``."""

    name = "cellgate-setup"
    usage = "[options]"
    description = """
        Makes the environment that kernels run in, apart from the gateway's own: "standard" has kernels of
        Python, bash and JavaScript, and what analysts expect, from pandas to plotly and DuckDB; "minimal" has
        kernels of Python and bash, numpy, pandas and matplotlib. Then checks whether kernels can be isolated.

        You can call it again: what exists is kept, and so is the choice. It needs the network, about a minute
        and 1.5 GB (minimal: a fifth of that). The packages come from the index that pip, or uv, is configured
        to use.
    """
    examples = """
        cellgate setup
        cellgate setup --environment minimal
        cellgate setup --requirements my-requirements.txt
    """

    prefix = Unicode(
        help="Where to install, in its folder share/cellgate; default: the gateway's own prefix, or, if that "
        "is in a cache, a folder of the user's data."
    ).tag(config=True, metavar="DIR")
    kernel_environment = Enum(
        [*map(str, ListedEnvironment), ""],
        "",
        help="The packages: standard or minimal; default: those of before, or standard.",
    ).tag(config=True, metavar="NAME")
    requirements = Unicode(
        help="A list of packages of your own, instead of Cellgate's, which have hashes."
    ).tag(config=True, metavar="FILE")

    aliases = {  # noqa: RUF012
        "prefix": "SetupApp.prefix",
        "environment": "SetupApp.kernel_environment",
        "requirements": "SetupApp.requirements",
        **BaseApp.aliases,
    }

    def start(self) -> NoReturn:
        """Run the setup and exit with its code."""
        if self.extra_args:
            raise UsageError(f"unexpected argument {self.extra_args[0]!r}")
        prefix = absolute(self.prefix or str(own_prefix()))
        set_up(prefix, self._wanted(prefix))
        raise SystemExit(0)

    def _wanted(self, prefix: Path) -> Path:
        """Return the list of packages that was asked for, or that the environment was made from before."""
        if self.kernel_environment and self.requirements:
            raise UsageError("--environment, or --requirements: not both")
        if self.kernel_environment:
            return ListedEnvironment(self.kernel_environment).lock
        if self.requirements:
            own = expanded(self.requirements)
            if not own.is_file():
                raise UsageError(f"--requirements: there is no file {own}{near_file(own)}")
            return own
        return _chosen(prefix)


def _chosen(prefix: Path) -> Path:
    """Return the list of packages that the environment was made from before, or the usual one."""
    try:
        before = chosen_requirements(prefix)
    except OSError as error:
        raise BackendUnavailable(f"The environment's choice can't be read: {in_words(error)}") from error
    if before is not None and not before.is_file():
        raise UsageError(
            f"the environment in {prefix} was made from {before}, which is not there any more: name a"
            " list with --requirements, or --environment standard"
        )
    return before or ListedEnvironment.STANDARD.lock


def set_up_first(tell: Callable[[str], None] | None = None) -> None:
    """Create environment and kernelspecs unless there are kernelspecs. `tell`: see `set_up`.

    In a folder that several copies of one version share, as by ``uvx``, those of another copy are renewed.
    Raises as `set_up`, and UsageError if the list of packages is gone that was chosen before.
    """
    catalog, prefix = KernelspecCatalog(), own_prefix()
    is_shared = prefix != Path(sys.prefix)
    # Without those that `cellgate environment` has added: none of them is the one that sessions get.
    has_own = bool(catalog.find_kernel_specs().keys() - catalog.environments().keys())
    if catalog.unusable or (has_own and not is_shared):
        return
    requirements = _chosen(prefix)
    if not (has_own and is_up_to_date(prefix, requirements)):
        set_up(prefix, requirements, tell)


def set_up(prefix: Path, requirements: Path, tell: Callable[[str], None] | None = None) -> None:
    """Create environment and kernelspecs under `prefix`, and report on the isolation.

    `tell`: takes each line of the report; without it, they are printed, with the progress of each step.
    Raises BackendUnavailable, with the end of uv's output, if the environment can't be created.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False, quiet=tell is not None)
    say = console.print if tell is None else tell
    chosen = environment_of(requirements)
    with console.status("") as status:

        def step(text: str) -> None:
            say(f"{text} ...")
            status.update(text)

        environment = create_environment(prefix, step, status.update, requirements=requirements)
        step("writing the kernelspecs and matplotlib's list of fonts")
        try:
            specs = install_kernelspecs(environment, prefix)
        except OSError as error:
            raise BackendUnavailable(f"The kernelspecs can't be written: {in_words(error)}") from error
        AddedEnvironments(prefix, step, status.update).renew_start_up_files()
    say(f"kernel environment  {environment}")
    say(f"packages            {chosen or requirements}")
    for spec in specs:
        say(f"kernelspec          {spec}")
    say(f"isolation           {asyncio.run(_isolation())}")


async def _isolation() -> str:
    """Return what isolates kernels here without containers, and what would make that more."""
    try:
        await SandboxProvisioner.check()
    except BackendUnavailable as error:
        why = error.message
    else:
        return "sandbox: bubblewrap works"
    try:
        await LandlockProvisioner.check()
    except BackendUnavailable:
        return f"none yet: {why}"
    return f"landlock, which is less than a sandbox. {why}"
