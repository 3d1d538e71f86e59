"""One cell, from the request to its end: it is sent, watched, interrupted, and its result is built."""
