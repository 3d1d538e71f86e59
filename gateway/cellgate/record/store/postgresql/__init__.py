"""The record in PostgreSQL: a store for gateways whose operators run a database server anyway."""
