"""The gateway's half of conversations with a sandbox's first process: programs and ports beside a kernel."""
