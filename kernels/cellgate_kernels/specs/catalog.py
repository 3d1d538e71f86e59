"""The kernelspecs that Cellgate offers: only its own folder's, not all that Jupyter finds.

A kernelspec from elsewhere would start a kernel without isolation. Kernelspecs for containers come with this
package; ``install`` makes the others. All are read once; `reload` reads them again, and `refresh` those that
are environments which an operator adds, renews or removes while the gateway serves. The catalog also adds the
isolation backend and the operator's settings for it; jupyter_client finds the backend by its entry point.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from packaging.utils import canonicalize_name
from traitlets import Bool, Dict, Enum, List, TraitError, Unicode, default, observe

from cellgate_kernels.base.errors import InvalidInput, KernelspecNotFound, in_brief, in_words
from cellgate_kernels.base.prefix import own_prefix
from cellgate_kernels.specs.languages import Language, parse_language
from cellgate_kernels.specs.manifest import Manifest, manifest_path, read_manifest
from cellgate_kernels.specs.named_environment import LISTED, NamedEnvironment, named_environment


def data_folder(prefix: Path) -> Path:
    """Return Cellgate's data folder below a prefix; Jupyter programs can use it as JUPYTER_PATH."""
    return prefix / "share" / "cellgate"


CONTAINER_KERNELSPECS = Path(__file__).parent / "container"
USUAL = "python3"
"""The kernelspec of Python in the environment that ``cellgate setup`` makes."""
KERNEL_PACKAGES = {"python3": "ipykernel", "bash": "bash_kernel", "deno": "deno"}
"""The package of each kernelspec's kernel. An environment may lack a package, as `minimal` does."""


class KernelspecCatalog(KernelSpecManager):
    """Kernelspecs by name, each with the provisioner of `backend`."""

    backend = Enum(
        ["sandbox", "landlock", "process", "docker"],
        "sandbox",
        help="The isolation backend that kernels run under.",
    ).tag(config=True)
    provisioner_config = Dict(help="The provisioner's configuration; a kernelspec's own comes before it.")
    ensure_native_kernel = Bool(False, help="Never offer the interpreter that runs the gateway.")
    kernel_dirs: List[str] = List(Unicode(), help="Folders of kernelspecs; the first that has a name wins.")

    def __init__(self, **kwargs: Any) -> None:
        self._removed: dict[str, KernelSpec] = {}
        self._seen: object = None
        super().__init__(**kwargs)
        self.reload()

    @default("kernel_dirs")
    def _default_kernel_dirs(self) -> list[str]:
        if self.backend == "docker":
            return [str(CONTAINER_KERNELSPECS)]
        return [str(data_folder(own_prefix()) / "kernels")]

    @observe("backend", "kernel_dirs")
    def _changed(self, change: object) -> None:
        self.reload()

    def reload(self) -> None:
        """Read the folders again. An unusable kernelspec is logged, kept in `unusable`, and left out."""
        self._seen = self._state()
        self._specs: dict[str, KernelSpec] = {}
        self._manifests: dict[str, Manifest] = {}
        self.unusable: dict[str, str] = {}
        """The reason why a kernelspec is left out, by its folder."""
        for name, folder in self._folders().items():
            if (spec := self._usable(folder)) is not None:
                self._offer(name, spec)

    def refresh(self) -> None:
        """Read the environments again that were added, renewed or removed since; costs a few system calls.

        All other kernelspecs stay as they are. One that is removed is offered no more, but stays for the
        sessions that have it: `get_kernel_spec` finds it.
        """
        state = self._state()
        if state is None or state == self._seen:
            return
        self._seen = state
        found = self._folders()
        for name in self.environments().keys() - found.keys():
            self._removed[name] = self._specs.pop(name)
            self._manifests.pop(name, None)
        for name, folder in found.items():
            known = self._specs.get(name)
            if known is not None and named_environment(known.metadata) is None:
                continue
            spec = self._usable(folder)
            if spec is not None and named_environment(spec.metadata) is not None:
                self._removed.pop(name, None)
                self._offer(name, spec)

    def _state(self) -> object:
        """Return what differs once a kernelspec is written or removed; None if that can't be known."""
        if self.backend == "docker":
            return None
        try:
            return [_written(folder) for folder in self.kernel_dirs]
        except OSError:
            return None

    def _usable(self, folder: str) -> KernelSpec | None:
        """Return a folder's kernelspec; None if it can't be used."""
        try:
            return self._read(folder)
        except (OSError, ValueError, TypeError, TraitError) as error:
            self._leave_out(folder, error)
            return None

    def _offer(self, name: str, spec: KernelSpec) -> None:
        self._specs[name] = spec
        self._manifests.pop(name, None)
        if self.backend != "docker":
            self._look_for_manifest(name, spec)

    def _folders(self) -> dict[str, str]:
        try:
            return super().find_kernel_specs()
        except OSError as error:
            self._leave_out(str(error.filename), error)
            return {}

    def _leave_out(self, folder: str, error: Exception) -> None:
        why = in_brief(error)
        self.unusable[folder] = why
        self.log.error("The kernelspec in %s can't be used: %s", folder, why)

    def _read(self, folder: str) -> KernelSpec:
        """Return a folder's kernelspec, if it is ours. Raises OSError, ValueError, TypeError, TraitError."""
        spec = KernelSpec.from_resource_dir(folder)
        if not spec.argv:
            raise ValueError("its argv names no program")
        named = named_environment(spec.metadata)
        if named is not None and named.name != Path(folder).name:
            raise ValueError(f"it is a copy of that of the environment {named.name!r}")
        own = spec.metadata.get("kernel_provisioner", {})
        config = own.get("config", {}) if isinstance(own, dict) else None
        if not isinstance(config, dict):
            raise ValueError("its metadata has a kernel_provisioner without a config of settings")
        config = {**self.provisioner_config, **config}
        provisioner = {"provisioner_name": f"cellgate-{self.backend}", "config": config}
        spec.metadata = spec.metadata | {"kernel_provisioner": provisioner}
        return spec

    def _look_for_manifest(self, name: str, spec: KernelSpec) -> None:
        path = manifest_path(spec)
        try:
            manifest = None if path is None else read_manifest(Path(path))
        except (OSError, ValueError) as error:
            self.log.warning("The manifest %s can't be read: %s", path, in_words(error))
            return
        if manifest is not None:
            self._manifests[name] = manifest

    def in_images(self) -> dict[tuple[str, str], list[str]]:
        """Return the names of kernelspecs by image, and path in it, where their manifest would be."""
        found: dict[tuple[str, str], list[str]] = {}
        for name, spec in self._specs.items():
            image = _image_of(spec)
            if (path := manifest_path(spec)) is not None and image is not None:
                found.setdefault((image, str(path)), []).append(name)
        return found

    def add_manifest(self, name: str, manifest: Manifest) -> None:
        """Keep the manifest of a kernelspec whose environment is in an image.

        Kernelspecs of Cellgate whose kernels that image lacks are left out from now on.
        """
        self._manifests[name] = manifest
        image = _image_of(self._specs[name])
        packages = {canonicalize_name(package) for package in manifest.packages}
        for other, spec in tuple(self._specs.items()):
            ours = Path(spec.resource_dir).parent == CONTAINER_KERNELSPECS and _image_of(spec) == image
            # A manifest may come without a list of packages.
            if packages and ours and canonicalize_name(KERNEL_PACKAGES[other]) not in packages:
                self.log.info("The image %s has no kernel for the kernelspec %s", image, other)
                del self._specs[other]

    def manifests(self) -> dict[str, Manifest]:
        """Return the manifests of Python kernelspecs' environments, by kernelspec."""
        return dict(self._manifests)

    def find_kernel_specs(self) -> dict[str, str]:
        """Return resource folders by name, as of the last reload."""
        return {name: spec.resource_dir for name, spec in self._specs.items()}

    def environments(self) -> dict[str, NamedEnvironment]:
        """Return the environments that were added, by name, in its order."""
        found = {name: self.environment_of(name) for name in sorted(self._specs)}
        return {name: named for name, named in found.items() if named is not None}

    def environment_of(self, name: str) -> NamedEnvironment | None:
        """Return the environment that a kernelspec is; None if it was not added as one.

        Raises KernelspecNotFound.
        """
        return named_environment(self.get_kernel_spec(name).metadata)

    def resolve(self, name: str) -> str:
        """Return the catalog's name of a kernelspec: case does not matter, and ``python`` is ``python3``.

        Raises KernelspecNotFound, listing the available names.
        """
        wanted = name.lower()
        if wanted not in self._specs and wanted == "python":
            wanted = "python3"
        if wanted not in self._specs:
            names = ", ".join(sorted(self._specs)) or "none; run `cellgate setup`"
            raise KernelspecNotFound(f"There is no kernelspec {json.dumps(name[:40])}. Available: {names}")
        return wanted

    def choose_environment(self, name: str, kernel: str | None, language: str | None) -> str:
        """Return the kernelspec of an environment, which `kernel` and `language` may not contradict.

        The one that Cellgate has a list for is found by that list's name, too, if it is here. Raises
        KernelspecNotFound, listing the environments; InvalidInput.
        """
        wanted = name.lower()
        usual = self._manifests.get(USUAL)
        if wanted in LISTED and usual is not None and usual.environment == wanted:
            wanted = USUAL
        elif self.backend == "docker":
            raise InvalidInput(
                "environment: kernels in containers have the packages of their image; environments are for"
                " kernels in a sandbox"
            )
        elif wanted not in (known := self.environments()):
            names = ", ".join(known) or "none; the operator adds them by `cellgate environment add`"
            raise KernelspecNotFound(f"There is no environment {json.dumps(name[:40])}. Available: {names}")
        if kernel is not None and kernel.lower() not in {"python", USUAL, wanted}:
            raise InvalidInput(
                f"environment {name!r} has a kernel of Python, not {kernel[:40]!r}; leave `kernel` out"
            )
        if language is not None and parse_language(language) is not Language.PYTHON:
            raise InvalidInput(f"environment {name!r} has a kernel of Python; leave `language` out")
        return wanted

    def choose(self, kernel: str | None, language: str | None, preferred: str) -> str:
        """Return the kernelspec requested by name, by language or by both; `preferred` if by neither.

        A language alone also gives `preferred` if it has that language. Raises KernelspecNotFound;
        InvalidInput for a language that is unknown, or that is not the named kernelspec's.
        """
        if language is None:
            return self.resolve(preferred if kernel is None else kernel)
        wanted = parse_language(language).kernel_language
        added = self.environments()  # chosen only where there is no other
        others = sorted(self._specs, key=lambda name: (name in added, name))
        names = [self.resolve(kernel)] if kernel is not None else [preferred.lower(), *others]
        for name in names:
            if name in self._specs and self._specs[name].language.lower() == wanted:
                return name
        if kernel is not None:
            raise InvalidInput(f"kernel {kernel!r} is not one of language {language!r}; give one of the two")
        offered = ", ".join(sorted(f"{name} ({spec.language})" for name, spec in self._specs.items()))
        raise KernelspecNotFound(f"There is no kernel of {wanted} here. Available: {offered or 'none'}")

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return the kernelspec of this name, shared by all callers; it may have been removed by now.

        Raises KernelspecNotFound.
        """
        if kernel_name in self._removed and kernel_name not in self._specs:
            return self._removed[kernel_name]
        return self._specs[self.resolve(kernel_name)]


def _written(folder: str) -> dict[str, tuple[int, int]]:
    """Return the inode of each kernelspec of a folder, which another version has not, and its time."""
    found = {}
    for name in os.listdir(folder):  # noqa: PTH208 - each request for a session asks
        with suppress(FileNotFoundError, NotADirectoryError):
            written = os.stat(f"{folder}/{name}/kernel.json")  # noqa: PTH116
            found[name] = (written.st_ino, written.st_mtime_ns)
    return found


def _image_of(spec: KernelSpec) -> str | None:
    image = spec.metadata["kernel_provisioner"]["config"].get("image")
    return image if isinstance(image, str) else None
