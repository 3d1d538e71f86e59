"""The id of a data folder's gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellgate.errors import StorageError
from cellgate.server.kernels import gateway_id


@pytest.mark.parametrize("content", ["", "\n", "a\nb", "0" * 65, "Cellgate", "abc é"])
def test_a_gateways_id_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    """It goes into a header of each answer."""
    path = tmp_path / "instance"
    path.write_text(content)
    with pytest.raises(StorageError, match="is damaged; remove it"):
        gateway_id(path)
    assert path.read_text() == content


def test_a_gateways_id_is_made_once(tmp_path: Path) -> None:
    made = gateway_id(tmp_path / "instance")
    assert len(made) == 32
    assert gateway_id(tmp_path / "instance") == made
