"""Doors: the wires of other systems, whose clients work with an address and a token of this gateway.

A module or a package for each system, which maps its requests to sessions, executions and files, and its
answers back. No door knows another, and none has rules of its own for what a user may do: tokens, quotas,
ceilings, the record and the audit trail are those of the gateway's own interface. They are closed unless the
operator opens them.
"""
