"""The server put together: settings, the one place that builds its parts, its log."""
