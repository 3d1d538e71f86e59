"""The subcommands of ``cellgate``, one module each; ``main`` imports one only when it is called."""
