"""The Jupyter channels of a session: its WebSocket clients, what they ask and what they are told."""
