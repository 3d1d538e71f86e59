"""Checks of exported notebooks, of bundles and of whole data folders."""
