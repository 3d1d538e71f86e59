"""The operator's hook: a program that sees each cell before it runs, and may refuse it."""
