"""A session's record as a notebook or a bundle, made from its rows one cell at a time."""
