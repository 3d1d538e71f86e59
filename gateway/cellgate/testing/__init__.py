"""Contracts of the gateway's seams, as tests for whoever writes another implementation.

They need pytest and pytest-asyncio, and nothing of the gateway imports them.
docs/how-to/test-with-fakes.md shows how to use them.
"""

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("The contracts are run by pytest: pip install pytest pytest-asyncio") from error

pytest.register_assert_rewrite("cellgate.testing.record_store", "cellgate.testing.user_store")
