"""Requests that one gateway of a cluster hands on to another, which has their session."""
