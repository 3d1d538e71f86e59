"""Where the record is kept: ``sqlite`` is the only store."""
