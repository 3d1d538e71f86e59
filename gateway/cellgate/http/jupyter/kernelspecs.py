"""/api/kernelspecs and /kernelspecs/{name}/{file}: the available kernels, in Jupyter's form.

It reads the catalog. A kernel's isolation and environment variables are not shown to clients.
"""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Any

from cellgate.errors import NotFound
from cellgate.http.jupyter.base import JupyterHandler
from cellgate.http.operation import requires
from cellgate_kernels.base.errors import KernelspecNotFound

RESOURCES = {
    "logo-32x32.png": "logo-32x32",
    "logo-64x64.png": "logo-64x64",
    "logo-svg.svg": "logo-svg",
    "kernel.js": "kernel.js",
    "kernel.css": "kernel.css",
}


class KernelspecsBase(JupyterHandler):
    """Shared by the handlers of kernelspecs."""

    def model(self, name: str) -> dict[str, Any]:
        """Jupyter's model of a kernelspec. Raises NotFound."""
        spec = self.services.kernels.catalog.get_kernel_spec(name)
        folder = Path(spec.resource_dir)
        return {
            "name": name,
            "spec": {
                "argv": spec.argv,
                "env": {},
                "display_name": spec.display_name,
                "language": spec.language,
                "interrupt_mode": spec.interrupt_mode,
                "metadata": {
                    key: value for key, value in spec.metadata.items() if key != "kernel_provisioner"
                },
            },
            "resources": {
                key: f"{self.services.front.base_url}/kernelspecs/{name}/{file}"
                for file, key in RESOURCES.items()
                if (folder / file).is_file()
            },
        }

    def known(self, name: str) -> str:
        """Return the catalog's name for it. Raises NotFound."""
        try:
            self.services.kernels.catalog.refresh()
            return self.services.kernels.catalog.resolve(name)
        except KernelspecNotFound as error:
            raise NotFound(error.message) from error


class KernelspecsHandler(KernelspecsBase):
    """All kernelspecs."""

    @requires()
    async def get(self) -> None:
        """Answer with the name of the default, and all models by name."""
        self.services.kernels.catalog.refresh()
        names = self.services.kernels.catalog.find_kernel_specs()
        default = self.services.sessions.manager.settings.default_kernel
        self.answer({"default": default, "kernelspecs": {name: self.model(name) for name in names}})


class KernelspecHandler(KernelspecsBase):
    """One kernelspec."""

    @requires()
    async def get(self, name: str) -> None:
        """Answer the kernelspec's model."""
        self.answer(self.model(self.known(name)))


class KernelspecResourceHandler(KernelspecsBase):
    """A logo, or a script or style sheet for front ends."""

    @requires()
    async def get(self, name: str, file: str) -> None:
        """Send the file's bytes, if its name is one that Jupyter knows."""
        folder = Path(self.services.kernels.catalog.get_kernel_spec(self.known(name)).resource_dir)
        path = folder / file
        if file not in RESOURCES or not path.is_file():
            raise NotFound("This kernelspec has no such file")
        self.set_header("Content-Type", mimetypes.guess_type(file)[0] or "application/octet-stream")
        self.finish(await self.services.sessions.files.lane.run(path.read_bytes))
