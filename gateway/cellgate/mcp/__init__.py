"""Tools for language models over the Model Context Protocol: a client of the HTTP API like any other."""
