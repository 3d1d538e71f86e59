"""The HTTP interface: routes, access, what handlers share; ``v1`` and ``jupyter`` have the resources."""
