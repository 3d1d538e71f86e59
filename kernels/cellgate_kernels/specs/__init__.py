"""Kernelspecs: `catalog` reads Cellgate's kernelspecs, `install` makes them and their environment."""
