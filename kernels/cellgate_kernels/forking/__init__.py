"""Kernels that are forked: the fork server, its zygotes, and containers that several sessions share."""
