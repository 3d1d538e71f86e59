"""A kernel's four channels: ZMTP over Unix sockets, reception in order, an adopted kernel's spool."""
