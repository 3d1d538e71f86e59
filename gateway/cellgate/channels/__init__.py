"""The Jupyter channels of a session: its WebSocket clients, their requests and the messages to them."""
