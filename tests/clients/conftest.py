"""A gateway and its kernels, as Jupyter's clients see them."""

from tests.support.jupyter import jupyter, kernel, start_kernel

__all__ = ["jupyter", "kernel", "start_kernel"]
