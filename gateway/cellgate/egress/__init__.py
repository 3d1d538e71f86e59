"""A session's way to named hosts: what it may reach, and the forward proxy that takes it there."""
