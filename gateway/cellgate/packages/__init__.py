"""Packages of sessions: what may be installed, how wheels are got, kept and given to kernels."""
