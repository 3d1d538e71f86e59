"""The isolation of a kernel's processes: seccomp filters, namespaces, mounts, users."""
