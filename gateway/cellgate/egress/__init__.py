"""A session's way to named hosts: its policy, and the forward proxy that enforces it."""
