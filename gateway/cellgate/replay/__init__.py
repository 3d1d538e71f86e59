"""Replay: run a notebook's cells again in a fresh kernel, and report the differences cell by cell."""
