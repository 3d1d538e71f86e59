"""HTTP handlers, one resource a file. They translate between the wire and ``gateway.manager``, no more."""
