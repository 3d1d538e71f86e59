"""HTTP handlers, one resource a file. They only translate between the wire and ``sessions.registry``."""
