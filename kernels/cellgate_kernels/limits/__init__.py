"""The limits and the use of a kernel's resources: control groups, memory, disk."""
