"""Kernel environments and their kernelspecs, as they are made and installed."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from unittest.mock import ANY

import pytest

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.specs.catalog import data_folder
from cellgate_kernels.specs.install import create_environment, install_kernelspec, install_kernelspecs
from cellgate_kernels.specs.manifest import MANIFEST, Manifest, read_manifest

NOTHING = "# No package, and because of --hash= no pip either: it takes seconds.\n"


def test_an_installed_kernelspec_names_what_its_kernel_needs(kernel_prefix: Path, tmp_path: Path) -> None:
    installed = json.loads((kernel_prefix / "kernels" / "python3" / "kernel.json").read_text())
    environment = Path(installed["argv"][0]).parents[1]
    with (data_folder(environment) / "bootstrap.py").open() as start_up:
        folder = install_kernelspec(environment, tmp_path, name="mine")
        # A kernel that was reading it still reads the whole.
        assert os.fstat(start_up.fileno()).st_nlink == 0
    assert folder == data_folder(tmp_path) / "kernels" / "mine"
    spec = json.loads((folder / "kernel.json").read_text())
    assert spec["interrupt_mode"] == "message"
    assert all(Path(word).is_file() for word in spec["argv"][:2])
    readable = spec["metadata"]["kernel_provisioner"]["config"]["readable"]
    interpreter = Path(spec["argv"][0]).resolve()
    assert any(interpreter.is_relative_to(path) for path in [*readable, "/usr"])
    assert list((data_folder(environment) / "matplotlib").glob("fontlist-*.json"))
    # Another kernelspec for it does not change its name.
    manifest = read_manifest(data_folder(environment) / MANIFEST)
    assert manifest is not None
    assert manifest.environment == "standard"
    assert "ipykernel" in manifest.packages


def test_languages_without_a_kernel_in_the_environment_have_no_kernelspec(
    kernel_prefix: Path, tmp_path: Path
) -> None:
    installed = json.loads((kernel_prefix / "kernels" / "python3" / "kernel.json").read_text())
    environment = Path(installed["argv"][0]).parents[1]
    assert [folder.name for folder in install_kernelspecs(environment, tmp_path)] == [
        "python3",
        "bash",
        "deno",
    ]
    spec = json.loads((data_folder(tmp_path) / "kernels" / "deno" / "kernel.json").read_text())
    assert Path(spec["argv"][1]).is_file()
    assert set(spec["metadata"]["kernel_provisioner"]["config"]) == {"readable", "reserved"}
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(NOTHING)
    bare = create_environment(tmp_path, lambda _: None, requirements=requirements)
    assert read_manifest(data_folder(bare) / MANIFEST) == Manifest(
        python=platform.python_version(), environment="own", programs=ANY
    )
    assert install_kernelspecs(bare, tmp_path) == []
    assert list((data_folder(tmp_path) / "kernels").iterdir()) == []


def test_an_environment_is_made_once_and_anew_when_it_was_not_finished(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(NOTHING)
    said: list[str] = []
    environment = create_environment(tmp_path, said.append, requirements=requirements)
    assert (environment / "bin" / "python").exists()
    assert said
    made = len(said)
    leftover = environment / "leftover"
    leftover.touch()
    assert create_environment(tmp_path, said.append, requirements=requirements) == environment
    assert len(said) == made
    assert leftover.exists()
    requirements.write_text(f"{NOTHING}./not-there-at-all\n")
    with pytest.raises(BackendUnavailable, match="not-there-at-all"):
        create_environment(tmp_path, said.append, requirements=requirements)
    assert not leftover.exists()
    assert not list(environment.glob("*.sha256")), "a half-made environment passes for a finished one"
    assert "not-there-at-all" in (data_folder(tmp_path) / "setup.log").read_text()


def test_a_set_up_removes_what_an_earlier_one_put_there_and_leaves_the_rest(
    kernel_prefix: Path, tmp_path: Path
) -> None:
    installed = json.loads((kernel_prefix / "kernels" / "python3" / "kernel.json").read_text())
    python = Path(installed["argv"][0])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(python)
    shared = data_folder(tmp_path)
    (shared / "__pycache__").mkdir(parents=True)
    # Of a version before there was a list.
    former = shared / "stills_vega.js"
    own = shared / "own.js"
    for path in (former, own):
        path.touch()
    install_kernelspec(tmp_path, tmp_path, name="bash", like="bash")
    assert own.exists()
    assert not former.exists()
    assert (shared / "drawing" / "stills_vega.js").exists()
    listed = shared / "start-up-files.txt"
    names = listed.read_text().split("\n")
    assert {"bootstrap.py", "drawing/stills_vega.js"} <= set(names)
    # Of a version after that; a kernel without a sandbox can have written the rest.
    outside = tmp_path / "outside.py"
    later = [
        shared / "later.py",
        shared / "__pycache__" / "later.cpython-311.pyc",
        shared / "drawing" / "later.js",
    ]
    for path in (outside, *later):
        path.touch()
    listed.write_text(
        "\n".join(["later.py", "drawing/later.js", "../../outside.py", str(outside), "", "own", *names])
    )
    install_kernelspec(tmp_path, tmp_path, name="bash", like="bash")
    assert [path for path in later if path.exists()] == []
    assert outside.exists()
    assert own.exists()
    assert listed.read_text().split("\n") == names
    assert all((shared / name).is_file() for name in names)
