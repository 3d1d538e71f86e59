"""What all rooms of the kernels stand on: errors, tasks, threads, fair turns, trees of files."""
