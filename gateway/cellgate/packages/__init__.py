"""Packages of sessions: what may be installed, how wheels are fetched, cached and given to kernels."""
