"""HTTP handlers, one resource a file. They translate between the wire and ``sessions.registry``, no more."""
