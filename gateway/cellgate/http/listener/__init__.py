"""The side of the HTTP server that faces untrusted clients: connections, their number, pace and frames."""
