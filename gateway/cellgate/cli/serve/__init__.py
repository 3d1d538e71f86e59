"""The commands that set up, check and run a gateway on this machine."""
