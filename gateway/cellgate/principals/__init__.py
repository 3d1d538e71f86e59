"""Who uses the gateway: principals, their tokens and what each may do."""
