"""Programs beside a session's kernel: requests, what they write, and how they end."""
