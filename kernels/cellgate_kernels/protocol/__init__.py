"""The Jupyter messaging protocol and WebSocket frames as pure code: messages, limits, executions, outputs."""
