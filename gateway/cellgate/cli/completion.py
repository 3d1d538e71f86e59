"""``cellgate completion``: a script that makes the user's shell ask for completions.

The script is argcomplete's: at each Tab it runs the command that is being typed, with the line in the
environment. ``completion_values`` provides the answer.
"""

from __future__ import annotations

from cellgate.cli.base import CommandApp, UsageError


class CompletionApp(CommandApp):
    """``cellgate completion``."""

    name = "cellgate-completion"
    usage = "bash|zsh|fish [options]"
    description = """
        Prints a script that teaches the shell to complete cellgate's commands, options and their values, and
        the names of files here.
    """
    examples = """
        source <(cellgate completion bash)             put it into ~/.bashrc
        source <(cellgate completion zsh)              put it into ~/.zshrc, after compinit
        cellgate completion fish | source              put it into ~/.config/fish/config.fish
    """

    async def run_command(self) -> int:
        from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - keeps --help quick

        match self.extra_args:
            case ["bash" | "zsh" | "fish" as shell]:
                self.print(shellcode(["cellgate"], use_defaults=False, shell=shell).strip("\n"))
            case _:
                raise UsageError(f"usage: {self._short_usage()}")
        return 0
