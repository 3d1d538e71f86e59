"""Gateways that share a record in PostgreSQL: which of them are alive, and which one has each session."""
