"""Contracts of the gateway's seams, as tests for whoever writes another implementation.

They need pytest and pytest-asyncio, and nothing of the gateway imports them.
docs/how-to/test-with-fakes.md shows how to use them.
"""

import pytest

pytest.register_assert_rewrite("cellgate.testing.record_store", "cellgate.testing.user_store")
