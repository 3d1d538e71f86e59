"""Files in sessions' workspaces: listed, uploaded and downloaded from outside the kernels."""
