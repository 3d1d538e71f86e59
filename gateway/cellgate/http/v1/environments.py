"""/v1/environments: the environments that the operator has added, for sessions to name.

It reads the catalog, which sees by itself what commands add and remove
(``cellgate_kernels.specs.added_environments``).
"""

from __future__ import annotations

import json

from cellgate.errors import NotFound, StorageError
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, Answer, operation
from cellgate.wire.base import Query
from cellgate.wire.environments import AddedEnvironment, EnvironmentList, LockedEnvironment
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.specs.added_environments import lock_of


class EnvironmentsHandler(BaseHandler):
    """All environments."""

    @operation(
        "list_environments",
        "List environments",
        Answer(200, "The environments that sessions can name.", {JSON: EnvironmentList}),
        query=Query,
    )
    async def get(self) -> None:
        catalog = self.services.kernels.catalog
        catalog.refresh()
        manifests = catalog.manifests()
        found = []
        for name, named in catalog.environments().items():
            manifest = manifests.get(name)
            found.append(
                AddedEnvironment(
                    name=name,
                    digest=named.digest,
                    python="" if manifest is None else manifest.python,
                    packages=0 if manifest is None else len(manifest.packages),
                )
            )
        self.answer(EnvironmentList(environments=found))


class EnvironmentHandler(BaseHandler):
    """One environment."""

    @operation(
        "get_environment",
        "Get an environment and its lock",
        Answer(200, "The environment.", {JSON: LockedEnvironment}),
        errors=(NotFound, StorageError),
        query=Query,
    )
    async def get(self, name: str) -> None:
        catalog = self.services.kernels.catalog
        catalog.refresh()
        named = catalog.environments().get(name)
        if named is None:
            raise NotFound(
                f"There is no environment {json.dumps(name[:40])}; GET /v1/environments lists them"
            )
        manifest = catalog.manifests().get(name)
        spec = catalog.get_kernel_spec(name)
        try:
            lock = await self.services.sessions.files.lane.run(lock_of, spec)
        except (OSError, ValueError) as error:
            raise StorageError(f"The lock of {name} can't be read: {in_words(error)}") from error
        self.answer(
            LockedEnvironment(
                name=name,
                digest=named.digest,
                python="" if manifest is None else manifest.python,
                packages=0 if manifest is None else len(manifest.packages),
                lock=lock,
            )
        )
