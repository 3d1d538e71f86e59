"""Cellgate's benchmarks: real servers, real kernels, and figures that are ratios within one run.

``python -m benchmarks`` measures them all; ``docs/reference/benchmarks.md`` says what each one means.
Nothing here is a test: a slow machine makes a figure miss its target, never the test suite fail. It is not
part of the distribution, and most of it uses the gateway only by its command line, its wire and its process.
"""
