"""What doors share whose clients make sandboxes: keys, paths, contexts, cells, files, pauses and ends.

A sandbox is a session. Nothing here knows the wire of any door: those are in ``e2b`` and ``opensandbox``.
"""
