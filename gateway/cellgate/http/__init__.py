"""The HTTP interface: routes, access, shared parts of handlers; ``v1`` and ``jupyter`` hold the resources."""
