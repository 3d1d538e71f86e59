"""Files of sessions' workspaces: looked at, brought in and taken out from outside the kernels."""
