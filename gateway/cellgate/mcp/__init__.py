"""Tools for language models by the Model Context Protocol: a client of the HTTP interface like any other."""
