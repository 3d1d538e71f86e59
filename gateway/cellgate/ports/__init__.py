"""Ports on which programs listen inside sessions: connections, permissions, and the rules for HTTP."""
