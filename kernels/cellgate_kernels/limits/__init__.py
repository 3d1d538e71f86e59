"""What a kernel may use and has used: control groups, memory, disk."""
