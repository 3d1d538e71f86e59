"""Heavy work on what user code made, in processes of its own."""
