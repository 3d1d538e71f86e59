"""Kernelspecs: `catalog` reads those that Cellgate offers, `install` makes them and their environment."""
