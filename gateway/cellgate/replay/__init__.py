"""Replay: run a notebook's cells again in a fresh kernel, and report cell by cell what is different."""
