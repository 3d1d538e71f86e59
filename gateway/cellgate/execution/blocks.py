"""Turns blocks of code as language models write them, in a list or in fences of a Markdown text, into cells.

Pure: before anything runs, it decides which cell each block becomes in a kernel of a given language, and to
which file it is saved. ``http.v1.blocks`` runs the cells. A first line ``# filename: NAME`` and exit code 124
have their meaning in AutoGen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cellgate.execution.checks import check_text
from cellgate.execution.markdown import fence_language, fences
from cellgate.files.tree import Parts, parse_path
from cellgate.wire.answers import Result
from cellgate.wire.models import MAX_CODE_BYTES, BlockBody, BlocksBody
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.specs.languages import LANGUAGE_NAMES, Language, find_language

MOST_BLOCKS = 64
FAILED = 1
TIMED_OUT = 124

# Programs from the kernel's own environment. The sandbox limits what they may do, so Deno need not ask.
# Colours are turned off because IPython and bash_kernel make programs believe that they run in a terminal.
_DENO = "env -u FORCE_COLOR NO_COLOR=1 deno run --quiet --allow-all --ext={} -"
_PROGRAMS = {
    Language.PYTHON: "python3 -",
    Language.JAVASCRIPT: _DENO.format("js"),
    Language.TYPESCRIPT: _DENO.format("ts"),
}
_MAGICS = {
    Language.BASH: "%%bash",
    Language.JAVASCRIPT: f"%%script {_PROGRAMS[Language.JAVASCRIPT]}",
    Language.TYPESCRIPT: f"%%script {_PROGRAMS[Language.TYPESCRIPT]}",
}

_EXIT_STATUS = {
    # For a cell magic in a Python kernel (subprocess.CalledProcessError), and for a bash kernel.
    "CalledProcessError": re.compile(r"returned non-zero exit status (\d{1,3})\.\Z"),
    "ExitStatus": re.compile(r"\A(\d{1,3})\Z"),
}
_NEVER = re.compile(r"(?!)")
_SIGNAL = re.compile(r"died with <Signals\.\w+: (\d{1,2})>\.\Z")
"""Python's message about the signal that ended a program; in a shell the exit code is 128 plus its number."""
_FILENAME = re.compile(r"(?:#|//)[ \t]*+filename:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Block:
    """A block that can run; its code is first saved to `file`, if any."""

    language: Language
    code: str
    file: Parts | None

    def cell(self, kernel_language: str) -> str:
        """Return the cell that runs the block in a kernel of this language. Raises InvalidInput."""
        return cell_of(self.language, self.code, kernel_language)


def cell_of(language: Language, code: str, kernel_language: str) -> str:
    """Return code as a cell for a kernel of `kernel_language`; a separate program runs another language.

    The cell does not depend on Cellgate, so the notebook also runs in plain Jupyter. Raises InvalidInput,
    naming the languages that such a kernel runs.
    """
    if language.kernel_language == kernel_language:
        return code
    if kernel_language == Language.PYTHON:
        return f"{_MAGICS[language]}\n{code}"
    if kernel_language == Language.BASH:
        return _here_document(_PROGRAMS[language], code)
    others = {Language.TYPESCRIPT.value: "javascript and typescript"}.get(kernel_language, kernel_language)
    raise InvalidInput(f"A kernel of {kernel_language} can't run a block in {language}, only in {others}")


def _here_document(program: str, code: str) -> str:
    lines = set(code.splitlines())
    end = "END"
    while end in lines:
        end += "_"
    return f"{program} <<'{end}'\n{code.removesuffix(chr(10))}\n{end}"


def check_blocks(body: BlocksBody) -> list[Block]:
    """Return the blocks to run. Raises InvalidInput, naming the invalid block; then none of them may run."""
    if (body.markdown is None) == (body.blocks is None):
        raise InvalidInput("Give either markdown or blocks")
    given = list(_of_markdown(body.markdown) if body.markdown is not None else body.blocks or ())
    if not given:
        raise InvalidInput("There is no block to run; in Markdown, fences say their language: ```python")
    if len(given) > MOST_BLOCKS:
        raise InvalidInput(f"There are {len(given)} blocks; at most {MOST_BLOCKS} are taken at once")
    return [_check(number, block) for number, block in enumerate(given, 1)]


def _of_markdown(text: str) -> Iterator[BlockBody]:
    """Yield the fences that name a language; others are text, such as the output of a program."""
    for fence in fences(check_text(text, "markdown", MAX_CODE_BYTES)):
        if language := fence_language(fence.info):
            yield BlockBody(language, fence.content)


def _check(number: int, block: BlockBody) -> Block:
    if block.language.lower() == "pip":
        code = check_text(block.code, f"code of block {number}", MAX_CODE_BYTES)
        return Block(Language.PYTHON, "\n".join(map(_pip_line, code.splitlines())), None)
    if (language := find_language(block.language)) is None:
        raise InvalidInput(
            f"Block {number} is in {block.language[:40]!r}; the languages are {LANGUAGE_NAMES}, and pip"
        )
    code = check_text(block.code, f"code of block {number}", MAX_CODE_BYTES)
    name = _filename(code)
    try:
        return Block(language, code, parse_path(name) if name else None)
    except InvalidInput as error:
        raise InvalidInput(f"The filename of block {number}: {error.message}") from error


def _filename(code: str) -> str | None:
    """Return the file name in the first line, if there is one."""
    start = _FILENAME.match(code)
    if start is None:
        return None
    end = code.find("\n")
    name = code[start.end() : len(code) if end < 0 else end].removesuffix("\r").strip(" \t")
    return None if "\r" in name or name[-1:].isspace() else name


def _pip_line(line: str) -> str:
    """Return a line of a pip block, a pip command or just requirements, as a magic."""
    line = re.sub(r"^\s*pip3?\s+", "", line).strip()
    if not line or line.startswith("#"):
        return line
    return f"%pip {line}" if re.match(r"(?:un)?install\s", line) else f"%pip install {line}"


def exit_code(result: Result) -> int:
    """Return the exit code of a block: its program's, or the one that AutoGen's executors return."""
    if result.status == "error" and result.error is not None:
        found = _EXIT_STATUS.get(result.error.ename, _NEVER).search(result.error.evalue)
        if found is not None and 0 < int(found[1]) < 256:
            return int(found[1])
        ended = _SIGNAL.search(result.error.evalue) if result.error.ename == "CalledProcessError" else None
        if ended is not None:
            return 128 + int(ended[1])
    return {"ok": 0, "timeout": TIMED_OUT}.get(result.status, FAILED)
