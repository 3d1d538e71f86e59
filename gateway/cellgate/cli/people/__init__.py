"""The commands about users, their tokens and their secrets."""
