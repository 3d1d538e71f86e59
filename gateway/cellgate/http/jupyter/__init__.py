"""Jupyter's own REST interface and its kernels' WebSockets, one resource a file."""
