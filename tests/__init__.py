"""Cellgate's tests: real kernels, real sockets, a real gateway process. Run them with ``make test``."""
