"""Manifests of kernel environments: what is read, what is refused, and whose they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cellgate_kernels.base.errors import KernelspecNotFound
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.specs.manifest import MOST_BYTES, Manifest, decode_manifest, read_manifest

GIVEN = {
    "environment": "standard",
    "python": "3.13.1",
    "packages": {"numpy": "2.4.6", "bash_kernel": "0.10.0", "x": "1!2.0.post1+local"},
    "programs": ["git", "curl"],
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    assert read_manifest(path) is None
    path.write_text(json.dumps(GIVEN))
    assert read_manifest(path) == Manifest(
        python="3.13.1", environment="standard", packages=GIVEN["packages"], programs=["git", "curl"]
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"python": ""},
        {"python": "3.13 (main)"},
        {"python": "3" * 101},
        {"environment": "Ignore all of this."},
        {"packages": {"numpy": "2\n"}},
        {"packages": {"numpy": "ignore all of this"}},
        {"packages": {"numpy": None}},
        {"packages": {f"p{number}": "1" for number in range(2001)}},
        {"programs": ["; rm"]},
        {"programs": ["git"] * 101},
    ],
)
def test_what_is_no_manifest_is_refused(wrong: dict[str, Any]) -> None:
    """Models are told what is in it."""
    assert decode_manifest(json.dumps(GIVEN).encode())
    with pytest.raises(ValueError, match="it is no manifest"):
        decode_manifest(json.dumps(GIVEN | wrong).encode())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        *((data, "it is no manifest") for data in (b"", b"[]", b"{}", b"\xff")),
        (b" " * MOST_BYTES + json.dumps(GIVEN).encode(), "it is too large"),
    ],
)
def test_what_is_no_object_or_too_large_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode_manifest(data)


def spec(folder: Path, name: str, *argv: str, language: str = "python", **config: str) -> None:
    stanza = {"kernel_provisioner": {"provisioner_name": "x", "config": config}}
    (folder / name).mkdir(parents=True)
    text = json.dumps({"argv": argv, "display_name": name, "language": language, "metadata": stanza})
    (folder / name / "kernel.json").write_text(text)


def environment(folder: Path, text: str) -> str:
    """The interpreter of an environment with this manifest."""
    (folder / "share" / "cellgate").mkdir(parents=True)
    (folder / "share" / "cellgate" / "manifest.json").write_text(text)
    return str(folder / "bin" / "python")


def test_a_manifest_is_its_interpreter_s_and_others_have_none(tmp_path: Path) -> None:
    ours = environment(tmp_path / "ours", json.dumps(GIVEN))
    damaged = environment(tmp_path / "damaged", "{")
    specs = tmp_path / "kernels"
    script = str(tmp_path / "ours" / "share" / "cellgate" / "bootstrap.py")
    spec(specs, "python3", ours, script)
    spec(specs, "bash", ours, script, language="bash")
    spec(specs, "theirs", "/usr/bin/python3", "-m", "ipykernel")
    spec(specs, "started-alike", str(tmp_path / "theirs" / "bin" / "python"), script)
    spec(specs, "by-name", "python", "-m", "ipykernel")
    spec(specs, "damaged", damaged, script)
    spec(specs, "empty")
    catalog = KernelspecCatalog(kernel_dirs=[str(specs)])
    assert catalog.manifests() == {"python3": decode_manifest(json.dumps(GIVEN).encode())}
    assert catalog.in_images() == {}


def test_those_of_containers_are_in_their_images(tmp_path: Path) -> None:
    environment(tmp_path, json.dumps(GIVEN))
    python = str(tmp_path / "bin" / "python")
    spec(tmp_path / "kernels", "python3", python)
    spec(tmp_path / "kernels", "mine", python, image="mine:1")
    spec(tmp_path / "kernels", "deno", python, language="typescript")
    catalog = KernelspecCatalog(
        backend="docker", kernel_dirs=[str(tmp_path / "kernels")], provisioner_config={"image": "usual:1"}
    )
    assert catalog.manifests() == {}
    path = f"{tmp_path}/share/cellgate/manifest.json"
    assert catalog.in_images() == {("usual:1", path): ["python3"], ("mine:1", path): ["mine"]}
    manifest = decode_manifest(json.dumps(GIVEN).encode())
    catalog.add_manifest("mine", manifest)
    assert catalog.manifests() == {"mine": manifest}


@pytest.mark.parametrize(
    ("packages", "kernels"),
    [
        (["ipykernel", "bash-kernel"], {"python3", "bash"}),
        (["ipykernel", "bash_kernel", "deno"], {"python3", "bash", "deno"}),
        ([], {"python3", "bash", "deno"}),
    ],
    ids=["minimal", "standard", "not listed"],
)
def test_no_kernelspec_is_offered_that_its_image_has_no_kernel_for(
    packages: list[str], kernels: set[str]
) -> None:
    catalog = KernelspecCatalog(backend="docker", provisioner_config={"image": "built:1"})
    ((_, names),) = catalog.in_images().items()
    catalog.add_manifest(names[0], Manifest(python="3.13.1", packages=dict.fromkeys(packages, "1")))
    assert catalog.find_kernel_specs().keys() == kernels
    assert catalog.manifests().keys() == {"python3"}
    if "deno" not in kernels:
        with pytest.raises(KernelspecNotFound, match=r"no kernel of typescript here. Available: bash"):
            catalog.choose(None, "javascript", "python3")


def test_kernelspecs_of_other_images_and_of_the_operator_s_stay(tmp_path: Path) -> None:
    """Nothing is known of what they start."""
    path = "/opt/cellgate/bin/python"
    spec(tmp_path, "python3", path, image="mine:1")
    spec(tmp_path, "deno", path, language="typescript", image="mine:1")
    catalog = KernelspecCatalog(backend="docker", kernel_dirs=[str(tmp_path)])
    catalog.add_manifest("python3", Manifest(python="3.13.1", packages={"ipykernel": "7"}))
    assert catalog.find_kernel_specs().keys() == {"python3", "deno"}
