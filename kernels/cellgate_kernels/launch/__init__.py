"""The common base of all backends: the provisioner's contract, child processes, folders and names."""
