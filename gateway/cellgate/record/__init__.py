"""The durable record: what happened in every session, in order, chained by hashes, and its notebook."""
