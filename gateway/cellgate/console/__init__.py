"""The console in the browser: its files, and who is signed in to it."""
