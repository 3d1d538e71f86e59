"""smolagents: code agents whose code runs in a session of Cellgate. Needs smolagents 1.26 (``executor=``).

    with CodeAgent(tools=[], model=model, executor=CellgateExecutor(Gateway(url, token).session())) as agent:
        agent.run("...")

smolagents sends its tools and variables as code, and has the final answer raised as an error, whose text
holds it. That text is never cut here. It is read as JSON only: unpickling it would run in the agent's own
process whatever the sandbox holds back.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import PIL.Image

from cellgate.client import Result, Session
from cellgate.client.blocking import Asynchronous, behind
from cellgate.client.images import ENCODED, images_in
from cellgate.execution.answer_size import shorten
from cellgate.integrations.tools import AnySession
from cellgate_kernels.codec.telling import tell

try:
    from smolagents.local_python_executor import CodeOutput
    from smolagents.monitoring import AgentLogger, LogLevel
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.utils import AgentError
except ImportError as error:
    raise ImportError(
        "cellgate.integrations.smolagents needs smolagents: pip install 'cellgate[smolagents]'"
    ) from error

_MOST_LOGS = 50_000
"""Characters of what a cell printed; as many as smolagents keeps of code that it runs itself."""
_MISSING = """\
import importlib.metadata, importlib.util
print("\\n".join(
    name for name in {names}
    if importlib.util.find_spec(name.partition(".")[0]) is None
    and name.lower() not in {{str(each.name).lower() for each in importlib.metadata.distributions()}}
))"""


class _Cells(Asynchronous):
    """What the executor asks of its session, for a blocking facade."""

    def __init__(self, session: AnySession) -> None:
        self._session: Session = behind(session)

    async def run(self, code: str) -> Result:
        return await self._session.run(code, max_text=0)

    async def install(self, names: Sequence[str]) -> None:
        await self._session.install(*names)

    async def end(self) -> None:
        await self._session.__aexit__(None, None, None)


class CellgateExecutor(RemotePythonExecutor):  # type: ignore[misc]  # has no type without smolagents
    """Runs an agent's code in the session, which `cleanup` ends, unless it is to be kept.

    `additional_imports`: packages that the code needs; those that are not there are installed, if the
    gateway's operator allows them.
    """

    def __init__(
        self,
        session: AnySession,
        *,
        additional_imports: Sequence[str] = (),
        logger: AgentLogger | None = None,
    ) -> None:
        self._cells = _Cells.sync(session)
        self._over = False
        super().__init__(list(additional_imports), logger or AgentLogger(LogLevel.ERROR))
        try:
            self.installed_packages = self.install_packages(list(additional_imports))
        except BaseException:
            self.cleanup()
            raise

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run a cell. Raises AgentError, with what a model should know, for one that fails."""
        result: Result = self._cells.run(code)
        logs = shorten(result.stdout + result.stderr, _MOST_LOGS, f"the execution {result.execution}")
        found = result.error
        if found is not None and found.ename == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(self._deserialize_final_answer(found.evalue), logs, is_final_answer=True)
        if not result.ok:
            cause = f"[{result.status}" + (f", {result.cause}]" if result.cause else "]")
            told = shorten(result.text, _MOST_LOGS, f"the execution {result.execution}")
            raise AgentError("\n".join(filter(None, (result.loss, told, cause))), self.logger)
        return CodeOutput(_value(result), logs, is_final_answer=False)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Install those of the packages that neither can be imported nor are installed under this name."""
        if additional_imports:
            code = _MISSING.format(names=json.dumps(additional_imports))
            if missing := self._cells.run(code).check().stdout.split():
                self._cells.install(missing)
        return additional_imports

    def cleanup(self) -> None:
        """End the session, unless it is to be kept. smolagents calls it at the end of a ``with`` block."""
        if self._over:
            return
        self._over = True
        try:
            self._cells.end()
        finally:
            self._cells.close()


def _value(result: Result) -> Any:
    """Return the value of the cell's last expression: a picture or a notebook's text; None without one."""
    shown = [each for each in result.outputs if each.get("output_type") == "execute_result"]
    if not shown:
        return None
    for picture in images_in(shown):
        if picture.type in ENCODED:
            return PIL.Image.open(io.BytesIO(picture.data))
    return tell(shown[-1].get("data", {}))
