"""The record in a data folder: SQLite's file, the redo log before it, their readers and their repair."""
