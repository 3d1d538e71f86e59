"""Jupyter kernels as a library: launch them in isolation, talk to them, keep warm ones ready.

It knows no HTTP, no tenants and no record; those live in ``gateway``, which imports this package
and never the other way round.
"""
