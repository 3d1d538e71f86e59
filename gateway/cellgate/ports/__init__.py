"""Ports that programs listen on inside sessions: connections, who may open them, what passes."""
