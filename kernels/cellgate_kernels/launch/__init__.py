"""What each backend starts with: the provisioner's contract, child processes, folders and names."""
