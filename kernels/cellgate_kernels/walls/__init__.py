"""What isolates a kernel's processes: seccomp filters, namespaces, mounts, users."""
