"""The Jupyter channels of a session: its WebSocket clients, their requests and what they are sent."""
