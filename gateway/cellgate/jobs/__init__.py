"""Heavy work on the output of user code, in separate processes."""
