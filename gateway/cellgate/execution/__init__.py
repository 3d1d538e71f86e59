"""One cell, from its request to its end: sending, deadline, interrupts, and its result."""
