"""Programs beside a session's kernel: requests, outputs, and ends."""
