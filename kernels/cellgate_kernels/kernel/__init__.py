"""One kernel of a session: its start, cells, branches, checkpoints, questions and sleep."""
