"""The commands about the record: exports, checks, replays, backups."""
