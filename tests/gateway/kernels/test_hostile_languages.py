"""Attacks from kernels of other languages than Python."""

from __future__ import annotations

import os
import re
from contextlib import closing
from pathlib import Path

import pytest

from cellgate_kernels.testing.backend import StartKernel
from tests.gateway.kernels.test_kernel_languages import Language, language
from tests.support.hostile import server_at_a_fixed_port

__all__ = ["language"]  # fixtures


@pytest.fixture
def backend(sandbox: None) -> str:
    """The one of this machine; containers have a module of their own."""
    return "sandbox"


async def test_no_attack_succeeds(
    start_kernel: StartKernel,
    language: Language,
    backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = "hunter2-of-the-gateway"
    (tmp_path / "secret").write_text(secret)
    monkeypatch.setenv("CELLGATE_TOKEN", secret)
    kernel = await start_kernel(kernel_name=language.kernelspec)
    with closing(server_at_a_fixed_port()) as server:
        code = language.attacks
        for word, value in {
            "SECRET_FILE": tmp_path / "secret",
            "OTHER_FOLDER": tmp_path,
            "PORT": server.getsockname()[1],
            "HOST_PID": os.getpid(),
        }.items():
            code = code.replace(word, str(value))
        said = await kernel.print(code)
    assert said.endswith("attacked\n")
    assert "HOME=" in said
    assert secret not in said
    attempts = re.findall(r'attack\("?(.+?)"?,|attack "(.+?)"', language.attacks)
    names = ["".join(found).strip('"') for found in attempts]
    assert [line for line in said.splitlines() if any(line.startswith(name) for name in names)] == []
    assert len(names) > 8
