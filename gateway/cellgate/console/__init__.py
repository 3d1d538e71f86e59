"""The console in the browser: its files, and its sign-ins."""
