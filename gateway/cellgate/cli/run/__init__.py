"""The commands that use a gateway: cells, sessions, files, programs."""
