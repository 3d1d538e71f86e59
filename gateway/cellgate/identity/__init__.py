"""Who sends a request: users, tokens, sign-ins, and what is kept of them."""
