"""Quotas: each user's limits, and the present use."""
