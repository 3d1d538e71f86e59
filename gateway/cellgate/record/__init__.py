"""The durable record: every session's events, in order, chained by hashes, and its notebook."""
