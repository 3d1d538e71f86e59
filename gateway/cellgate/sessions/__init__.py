"""Sessions: their owners, states, queues and kernels, and how they survive a crash."""
