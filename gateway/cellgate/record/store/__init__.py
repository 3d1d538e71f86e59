"""Where the record is kept: ``interface`` is what others know of it, ``sqlite`` and ``memory`` keep rows."""
