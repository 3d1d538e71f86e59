"""The subcommands of ``cellgate``, one module each; ``gateway.cli`` imports one only when it is called."""
