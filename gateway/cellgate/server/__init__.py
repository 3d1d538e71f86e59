"""The server as a whole: settings, the one place that builds its parts, its log."""
