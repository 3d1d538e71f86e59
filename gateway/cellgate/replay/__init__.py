"""Replay: run a notebook's cells again in a fresh kernel, and say cell by cell what is not as it was."""
