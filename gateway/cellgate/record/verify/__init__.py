"""Checks of exported notebooks and of bundles."""
