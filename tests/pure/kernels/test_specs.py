"""The catalog of kernelspecs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from cellgate_kernels.base.errors import BackendUnavailable, InvalidInput, KernelspecNotFound
from cellgate_kernels.specs.catalog import KernelspecCatalog, data_folder
from cellgate_kernels.specs.install import install_kernelspec
from cellgate_kernels.specs.named_environment import METADATA, NamedEnvironment

OLD, NEW = "a" * 64, "b" * 64


def write_spec(folder: Path, name: str, **fields: Any) -> None:
    spec = {"argv": ["/bin/false"], "display_name": name, "language": "python"} | fields
    (folder / name).mkdir(parents=True)
    (folder / name / "kernel.json").write_text(json.dumps(spec))


def catalog_of(folder: Path, **traits: Any) -> KernelspecCatalog:
    return KernelspecCatalog(kernel_dirs=[str(folder)], **traits)


def test_only_its_own_folder_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_spec(tmp_path / "jupyter" / "kernels", "foreign")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    write_spec(tmp_path / "own", "python3")
    assert list(catalog_of(tmp_path / "own").get_all_specs()) == ["python3"]


@pytest.mark.parametrize("backend", ["sandbox", "process"])
def test_the_backend_replaces_the_provisioner_and_keeps_its_settings(tmp_path: Path, backend: str) -> None:
    stanza = {"provisioner_name": "local-provisioner", "config": {"readable": ["/environment"]}}
    write_spec(tmp_path, "python3", metadata={"kernel_provisioner": stanza, "other": 1})
    metadata = catalog_of(tmp_path, backend=backend).get_kernel_spec("python3").metadata
    assert metadata == {
        "kernel_provisioner": stanza | {"provisioner_name": f"cellgate-{backend}"},
        "other": 1,
    }


def test_a_kernelspec_without_provisioner_gets_one(tmp_path: Path) -> None:
    write_spec(tmp_path, "bash")
    provisioner = catalog_of(tmp_path).get_kernel_spec("bash").metadata["kernel_provisioner"]
    assert provisioner == {"provisioner_name": "cellgate-sandbox", "config": {}}


def test_python_is_another_name_of_python3_unless_it_is_taken(tmp_path: Path) -> None:
    write_spec(tmp_path, "python3")
    catalog = catalog_of(tmp_path)
    assert catalog.resolve("Python") == "python3"
    assert catalog.get_kernel_spec("python").display_name == "python3"
    write_spec(tmp_path, "python")
    catalog.reload()
    assert catalog.resolve("python") == "python"


@pytest.fixture
def several(tmp_path: Path) -> KernelspecCatalog:
    """Kernels of two languages, and two of Python."""
    for name, language in (("analytics", "python"), ("python3", "python"), ("deno", "TypeScript")):
        write_spec(tmp_path, name, language=language)
    return catalog_of(tmp_path)


def test_a_kernelspec_is_chosen_by_name_by_language_or_by_both(several: KernelspecCatalog) -> None:
    assert several.choose(None, None, "python3") == "python3"
    assert several.choose("Analytics", None, "python3") == "analytics"
    assert several.choose(None, "PY", "python3") == "python3"
    assert several.choose(None, "python", "deno") == "analytics", "the first by name"
    assert several.choose(None, "js", "python3") == several.choose(None, "typescript", "python3") == "deno"
    assert several.choose("analytics", "python3", "python3") == "analytics"
    with pytest.raises(InvalidInput, match="'deno' is not one of language 'python'"):
        several.choose("deno", "python", "python3")
    with pytest.raises(InvalidInput, match="the languages are python, bash, sh, javascript"):
        several.choose(None, "cobol", "python3")
    with pytest.raises(KernelspecNotFound, match=r"no kernel of bash here. Available: analytics \(python\)"):
        several.choose(None, "sh", "python3")


@pytest.mark.parametrize(
    "name", ["julia", "", "..", "../python3", "python3/", "a\nb", "\ud800", "x" * 10_000]
)
def test_an_unknown_name_is_refused_with_those_there_are(tmp_path: Path, name: str) -> None:
    write_spec(tmp_path, "python3")
    with pytest.raises(KernelspecNotFound, match="Available: python3") as caught:
        catalog_of(tmp_path).get_kernel_spec(name)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 400


def test_an_empty_catalog_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KernelspecNotFound, match="cellgate setup"):
        catalog_of(tmp_path / "missing").get_kernel_spec("python3")


def test_folders_are_read_once_and_on_reload(tmp_path: Path) -> None:
    write_spec(tmp_path, "python3")
    catalog = catalog_of(tmp_path)
    shutil.rmtree(tmp_path / "python3")
    assert catalog.get_kernel_spec("python3") is catalog.get_kernel_spec("python3")
    catalog.reload()
    with pytest.raises(KernelspecNotFound):
        catalog.get_kernel_spec("python3")


@pytest.mark.parametrize("content", ["{", "[]", '{"argv": 3}', '{"metadata": 3}'])
def test_a_broken_kernelspec_is_left_out(tmp_path: Path, content: str) -> None:
    write_spec(tmp_path, "python3")
    write_spec(tmp_path, "broken")
    (tmp_path / "broken" / "kernel.json").write_text(content)
    assert list(catalog_of(tmp_path).find_kernel_specs()) == ["python3"]


def write_environment(folder: Path, name: str, digest: str, **fields: Any) -> None:
    """As a command does: the file is another one each time."""
    shutil.rmtree(folder / name, ignore_errors=True)
    write_spec(folder, name, metadata={METADATA: {"name": name, "digest": digest}}, **fields)


def test_environments_are_seen_as_they_come_change_and_go(tmp_path: Path) -> None:
    write_spec(tmp_path, "python3")
    write_environment(tmp_path, "geo", OLD)
    catalog = catalog_of(tmp_path)
    assert catalog.environments() == {"geo": NamedEnvironment("geo", OLD)}
    usual = catalog.get_kernel_spec("python3")
    write_environment(tmp_path, "art", OLD)
    write_environment(tmp_path, "geo", NEW)
    shutil.rmtree(tmp_path / "python3")
    write_spec(tmp_path, "other")
    assert list(catalog.environments()) == ["geo"]
    catalog.refresh()
    assert catalog.environments() == {
        "art": NamedEnvironment("art", OLD),
        "geo": NamedEnvironment("geo", NEW),
    }
    # All others are as they were at the start.
    assert sorted(catalog.find_kernel_specs()) == ["art", "geo", "python3"]
    assert catalog.get_kernel_spec("python3") is usual
    shutil.rmtree(tmp_path / "geo")
    catalog.refresh()
    assert sorted(catalog.find_kernel_specs()) == ["art", "python3"]
    with pytest.raises(KernelspecNotFound, match="Available: art, python3"):
        catalog.resolve("geo")
    # A session that has it goes on.
    assert catalog.environment_of("geo") == NamedEnvironment("geo", NEW)
    write_environment(tmp_path, "geo", OLD)
    catalog.refresh()
    assert catalog.environment_of("geo") == NamedEnvironment("geo", OLD)
    assert catalog.resolve("geo") == "geo"


def test_a_folder_that_is_away_for_a_moment_takes_no_environment(tmp_path: Path) -> None:
    write_environment(tmp_path / "kernels", "geo", OLD)
    catalog = catalog_of(tmp_path / "kernels")
    (tmp_path / "kernels").rename(tmp_path / "away")
    catalog.refresh()
    assert catalog.resolve("geo") == "geo"


def test_an_environment_is_chosen_by_its_name_alone(tmp_path: Path) -> None:
    write_spec(tmp_path, "python3")
    write_spec(tmp_path, "bash", language="bash")
    write_environment(tmp_path, "geo", OLD)
    catalog = catalog_of(tmp_path)
    for kernel, language in ((None, None), ("python3", None), (None, "py"), ("GEO", "python")):
        assert catalog.choose_environment("Geo", kernel, language) == "geo"
    assert catalog.choose(None, "python", "bash") == "python3"
    with pytest.raises(KernelspecNotFound, match=r'no environment "python3". Available: geo'):
        catalog.choose_environment("python3", None, None)
    with pytest.raises(InvalidInput, match="'geo' has a kernel of Python, not 'bash'; leave `kernel` out"):
        catalog.choose_environment("geo", "bash", None)
    with pytest.raises(InvalidInput, match="leave `language` out"):
        catalog.choose_environment("geo", None, "bash")
    shutil.rmtree(tmp_path / "geo")
    catalog.refresh()
    with pytest.raises(KernelspecNotFound, match="none; the operator adds them by `cellgate environment"):
        catalog.choose_environment("geo", None, None)
    with pytest.raises(InvalidInput, match="kernels in containers have the packages of their image"):
        KernelspecCatalog(backend="docker").choose_environment("geo", None, None)


def test_a_copy_of_an_environment_s_kernelspec_is_none(tmp_path: Path) -> None:
    write_environment(tmp_path, "geo", OLD)
    shutil.copytree(tmp_path / "geo", tmp_path / "copy")
    assert list(catalog_of(tmp_path).find_kernel_specs()) == ["geo"]


def test_an_environment_that_does_not_work_is_no_kernelspec(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/false")
    with pytest.raises(BackendUnavailable, match="does not work"):
        install_kernelspec(tmp_path, tmp_path)
    assert not (data_folder(tmp_path) / "kernels").exists()


def test_the_default_folder_is_below_the_gateways_own_prefix() -> None:
    assert KernelspecCatalog().kernel_dirs == [str(Path(sys.prefix) / "share" / "cellgate" / "kernels")]
