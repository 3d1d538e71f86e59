"""Cellgate for language models and frameworks of agents that have no wire of their own.

Each module is a thin layer over the Python client and knows nothing else of the gateway. A framework's own
module imports it, and says what to install where it is missing.
"""
