"""Packages of sessions: the operator's policy, and how wheels are fetched, cached and given to kernels."""
