"""Stubs of the blocking facades, made from the asynchronous classes: their methods, without ``await``.

A facade has its methods by ``__getattr__``, of which no editor and no type checker knows anything. ``make
reference`` writes the stubs beside the facades; ``tests/pure/client/test_stubs.py`` fails when they are out
of date.
"""

from __future__ import annotations

import ast
import copy
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from cellgate.client.blocking import Owning

GATEWAY = Path(__file__).parents[2] / "gateway" / "cellgate"
OF_ITERATION = frozenset({"AsyncGenerator", "AsyncIterator"})
NOTICE = '"""Made from the asynchronous classes by `make reference`: do not change it here."""'


def facades() -> dict[Path, str]:
    """The content of each stub."""
    client, tools = GATEWAY / "client", GATEWAY / "integrations"
    names = ["Gateway", "Session", "Files", "Users"]
    sources = [client / "api.py", client / "files.py", client / "users.py"]
    found = {client / "sync.pyi": stub(sources, names, names[:1])}
    names = ["SessionTools", "OpenAITools", "AnthropicTools"]
    sources = [tools / "tools.py", tools / "openai.py", tools / "anthropic.py"]
    found[tools / "sync.pyi"] = stub(sources, names, names, others=["Gateway", "Session", "Files", "Users"])
    return found


def write() -> None:
    """Write all stubs."""
    for path, content in facades().items():
        path.write_text(content)


def stub(sources: list[Path], names: list[str], owning: Iterable[str], others: Iterable[str] = ()) -> str:
    """The stub of the facades of these classes, of which some are `owning` a thread.

    `others`: classes of other modules that have facades, too.
    """
    trees = [ast.parse(source.read_text()) for source in sources]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    faces = Faces([*names, *others])
    body: list[ast.stmt] = []
    for name in names:
        bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id in names]
        members = [*_members(classes[name], classes, faces)]
        if name in owning and not bases:
            members.append(_parsed(f'def close(self) -> None:\n    """{Owning.close.__doc__}"""'))
        text = f'"""{name}, with methods that block."""'
        made = _parsed(f"class Sync{name}{f'(Sync{bases[0]})' if bases else ''}:\n    {text}")
        assert isinstance(made, ast.ClassDef)
        made.body += members
        body.append(made)
    used = {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name)}
    modules = dict(zip((_module(source) for source in sources), trees, strict=True))
    imports = [*_imports(modules, used, {f"Sync{name}" for name in names})]
    shown = (ast.unparse(ast.fix_missing_locations(each)) for each in body)
    return _formatted("\n\n".join([NOTICE, "\n".join(imports), *shown]))


class Faces(ast.NodeTransformer):
    """Names the facades of classes in annotations."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Name a class's facade."""
        return ast.Name(f"Sync{node.id}", node.ctx) if node.id in self._names else node

    def blocking(self, method: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef:
        """The method as its facade has it."""
        found = copy.deepcopy(method)
        returned = found.returns
        if isinstance(returned, ast.Subscript) and ast.unparse(returned.value) in OF_ITERATION:
            returned = _expression(f"Generator[{ast.unparse(returned.slice)}]")
        for part in ast.walk(found.args):
            if isinstance(part, ast.arg) and part.annotation is not None:
                part.annotation = self.visit(part.annotation)
        text = ast.get_docstring(found)
        shown = [ast.Expr(ast.Constant(_indented(text)))] if text else []
        return ast.FunctionDef(
            found.name,
            found.args,
            shown or [ast.Expr(ast.Constant(...))],
            [each for each in found.decorator_list if ast.unparse(each) == "property"],
            None if returned is None else self.visit(returned),
        )


def _members(node: ast.ClassDef, classes: dict[str, ast.ClassDef], faces: Faces) -> Iterator[ast.stmt]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            if each.name == "__aenter__":
                yield _parsed("def __enter__(self) -> Self: ...")
            elif each.name == "__aexit__":
                made = faces.blocking(each)
                made.name = "__exit__"
                yield made
            elif not each.name.startswith("_") and each.name != "sync":
                yield faces.blocking(each)
        elif isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
            # A method of another class, whose first argument names the object.
            (target,), (source,) = each.targets, each.value.args
            assert isinstance(target, ast.Name)
            assert isinstance(source, ast.Attribute)
            assert isinstance(source.value, ast.Name)
            (method,) = (
                member
                for member in classes[source.value.id].body
                if isinstance(member, ast.AsyncFunctionDef) and member.name == source.attr
            )
            made = faces.blocking(method)
            made.name = target.id
            made.args.args.insert(1, ast.arg("session", ast.Name("str")))
            yield made


def _module(source: Path) -> str:
    return ".".join(source.relative_to(GATEWAY.parent).with_suffix("").parts)


def _imports(modules: dict[str, ast.Module], used: set[str], own: set[str]) -> Iterator[str]:
    """The imports of names that are used, as the sources have them, or of the sources."""
    known = {"Generator": "from collections.abc import Generator", "Self": "from typing import Self"}
    for name, tree in modules.items():
        parts = [*tree.body]
        for part in tree.body:
            if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING":
                parts += part.body
            if isinstance(part, ast.Assign | ast.AnnAssign):
                targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                known |= {ast.unparse(each): f"from {name} import {ast.unparse(each)}" for each in targets}
        for part in parts:
            if isinstance(part, ast.ImportFrom):
                known |= {
                    alias.asname or alias.name: f"from {part.module} import {ast.unparse(alias)}"
                    for alias in part.names
                }
    for name in sorted(used - own):
        if name in known:
            yield known[name]
        elif name.startswith("Sync"):
            yield f"from cellgate.client.sync import {name}"


def _parsed(text: str) -> ast.stmt:
    (statement,) = ast.parse(text).body
    return statement


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _indented(text: str) -> str:
    """A docstring of a method, with its lines where they stand."""
    first, *lines = text.split("\n")
    if not lines:
        return first
    return "\n".join([first, *(f"        {line}" if line else "" for line in lines), "        "])


def _formatted(text: str) -> str:
    """The text as ruff writes it."""
    for words in (["check", "--select=I,F401", "--fix", "--quiet"], ["format"]):
        done = subprocess.run(
            [Path(sys.executable).with_name("ruff"), *words, "--stdin-filename=sync.pyi", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    write()
