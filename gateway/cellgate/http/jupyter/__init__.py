"""Jupyter's own REST interface and its kernels' WebSockets, one file per resource."""
