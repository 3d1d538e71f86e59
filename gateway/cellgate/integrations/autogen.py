"""AutoGen (autogen-core 0.7): its code executor on a session of Cellgate. Variables stay between blocks.

    async with CellgateCodeExecutor(url, token) as executor:
        agent = CodeExecutorAgent("runs_code", code_executor=executor)

Blocks are what `execute-blocks` takes: python, bash, javascript, typescript and pip, and a first line
``# filename: NAME``, which saves the block under that name first.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, Unpack

from cellgate.client import BlocksResult, Gateway, NotFound, RequestRefused, Session
from cellgate.integrations.local_files import is_below
from cellgate.wire.models import SessionKeywords

try:
    from autogen_core import CancellationToken, Component
    from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
    from pydantic import BaseModel
except ImportError as error:
    raise ImportError(
        "cellgate.integrations.autogen needs autogen-core: pip install 'cellgate[autogen]'"
    ) from error

TOKEN_VARIABLE = "CELLGATE_TOKEN"  # noqa: S105 - a name
"""Where an executor that is loaded from a component's config has its token from: the config has none."""
_ALIASES = {"shell": "bash", "py": "python"}


class CellgateCodeExecutorConfig(BaseModel):
    """What an executor is made of, as AutoGen stores it; the token is not."""

    url: str
    session: str | None = None
    timeout: float | None = None
    output_dir: str | None = None


@dataclass
class CellgateCodeResult(CodeResult):  # type: ignore[misc]  # has no type without autogen-core
    """What came of blocks. `output_files`: what they showed and wrote, if there is a folder for it."""

    output_files: list[Path] = field(default_factory=list)


class CellgateCodeExecutor(CodeExecutor, Component[CellgateCodeExecutorConfig]):  # type: ignore[misc]
    """Runs blocks in a session of the gateway at `url`: one of this name, which stays, or one of its own.

    `timeout`: seconds for each block. `output_dir`: the local folder to which pictures and files that blocks
    make are saved. Other options are the session's; see `Gateway.session`.
    """

    component_provider_override = "cellgate.integrations.autogen.CellgateCodeExecutor"
    component_config_schema = CellgateCodeExecutorConfig

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        session: str | None = None,
        timeout: float | None = None,
        output_dir: Path | str | None = None,
        **options: Unpack[SessionKeywords],
    ) -> None:
        self._url = url
        self._gateway = Gateway(url, token)
        self._name = session
        self._timeout = timeout
        self._output_dir = None if output_dir is None else Path(output_dir)
        self._options = options
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The session, to put files into it for example: ``await executor.session.files.put(...)``."""
        if self._session is None:
            self._session = self._gateway.session(self._name, **self._options)
        return self._session

    async def execute_code_blocks(
        self, code_blocks: Sequence[CodeBlock], cancellation_token: CancellationToken
    ) -> CellgateCodeResult:
        """Run blocks until one fails. Cancelling the token interrupts the block that runs.

        A block that can't be run, such as one in a language that there is not, is a result, too.
        """
        blocks = [(_ALIASES.get(each.language.lower(), each.language), each.code) for each in code_blocks]
        running = asyncio.ensure_future(
            self.session.run_blocks(blocks, timeout=self._timeout, on_disconnect="interrupt")
        )
        cancellation_token.link_future(running)
        try:
            done = await running
        except RequestRefused as error:
            return CellgateCodeResult(1, error.message)
        output = done.output
        if done.problem is not None:
            output += f"\n[cellgate: the next block did not run: {done.problem.detail}]"
        return CellgateCodeResult(done.exit_code, output, await self._saved(done))

    async def start(self) -> None:
        """Make the session; without this, the first block does."""
        await self.session.opened()

    async def stop(self) -> None:
        """End the session, or leave one that has a name."""
        if self._session is not None:
            await self._session.__aexit__(None, None, None)
            self._session = None

    async def restart(self) -> None:
        """Give the session a fresh kernel: variables are lost, files stay."""
        if self._session is not None:
            await self._session.opened()
            await self._session.restart()

    async def _saved(self, done: BlocksResult) -> list[Path]:
        if self._output_dir is None:
            return []
        folder = self._output_dir
        saved = []
        for block in done.blocks:
            for number, picture in enumerate(block.images, 1):
                kind = picture.type.partition("/")[2].partition("+")[0]
                path = folder / f"{block.execution}-{number}.{kind}"
                await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
                await asyncio.to_thread(picture.save, path)
                saved.append(path)
            for file in block.files:
                path = folder / file.path
                if is_below(path, folder):
                    await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
                    # Not there any more: a later block has removed it.
                    with suppress(NotFound):
                        await self.session.files.save(file.path, path)
                        saved.append(path)
        return list(dict.fromkeys(saved))

    def _to_config(self) -> CellgateCodeExecutorConfig:
        return CellgateCodeExecutorConfig(
            url=self._url,
            session=self._name,
            timeout=self._timeout,
            output_dir=None if self._output_dir is None else str(self._output_dir),
        )

    @classmethod
    def _from_config(cls, config: CellgateCodeExecutorConfig) -> Self:
        return cls(
            config.url,
            os.environ.get(TOKEN_VARIABLE),
            session=config.session,
            timeout=config.timeout,
            output_dir=config.output_dir,
        )
