"""Sessions: who has which, what state each is in, its queue, its kernel, how it survives a crash."""
