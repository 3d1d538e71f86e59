"""One cell, from the request to its end: sent, watched, interrupted, its result put together."""
