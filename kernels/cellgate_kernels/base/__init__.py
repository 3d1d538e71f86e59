"""The foundation of all rooms of the kernels: errors, tasks, threads, fair turns, trees of files."""
