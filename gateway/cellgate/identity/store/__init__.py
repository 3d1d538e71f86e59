"""Users, tokens and secrets, as they are kept."""
