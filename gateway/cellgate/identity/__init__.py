"""The senders of requests: users, tokens, sign-ins, and their stored data."""
