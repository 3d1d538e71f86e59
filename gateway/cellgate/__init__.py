"""The server: HTTP, principals, sessions and their record, on top of ``kernels``."""
