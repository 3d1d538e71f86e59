"""The side of the HTTP server that faces strangers: connections, their number, their pace, their frames."""
