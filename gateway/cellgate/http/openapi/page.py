"""The OpenAPI document as HTML: every operation, example, parameter, answer and schema on one page.

Pure: the document in, HTML out. It begins with a cell to copy, and follows the order of the tasks of
``examples``. There is no script: the index and the browser's search suffice. Only parts that nobody searches
for are folded in: the schemas of an operation's parameters and answers.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from cellgate.http.openapi.examples import Example, Task, load_examples
from cellgate.http.operation import FORM, JSON
from cellgate.pages.html_frame import document

Values = Mapping[str, Any]

ORIGIN = "http://gateway.invalid"
"""Stands in the page for the address that its reader has used."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5a6474; --line: #dfe4ea; --paper: #fff;
  --ground: #f6f7f9; --link: #0b5cad; --code: #f0f2f6; --get: #0a6b4a; --post: #0b5cad; --put: #8a5a00;
  --delete: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9fa9b8; --line: #323a46;
  --paper: #1a1f27; --ground: #12161c; --link: #86baff; --code: #232a34; --get: #6fd3a8; --post: #86baff;
  --put: #e5b567; --delete: #ff9a92; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.55 system-ui, sans-serif;
  overflow-wrap: anywhere; }
main { max-width: 52rem; margin: 0 auto; padding: 2rem 1rem 5rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .5rem; }
h1 small { font-size: .9rem; font-weight: 400; color: var(--soft); }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 2.8rem 0 .3rem; }
h3 { font-size: 1.05rem; line-height: 1.35; margin: 0 0 .2rem; }
h4 { font-size: .85rem; color: var(--soft); font-weight: 600; margin: .9rem 0 .25rem; }
p { margin: .35rem 0; } a { color: var(--link); } .soft { color: var(--soft); }
code, pre { font: .875em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
p code, td code { background: var(--code); border-radius: 4px; padding: .05em .3em; }
pre { background: var(--code); border-radius: 6px; padding: .7rem .8rem; margin: .35rem 0;
  white-space: pre-wrap; max-height: 24rem; overflow-y: auto; }
pre.lines { white-space: pre; overflow-x: auto; }
pre.copy { user-select: all; -webkit-user-select: all; border-left: 3px solid var(--link); }
.verb { font: 700 .8rem ui-monospace, monospace; margin-right: .5rem; }
.GET, .HEAD { color: var(--get); } .POST { color: var(--post); } .PUT { color: var(--put); }
.DELETE { color: var(--delete); }
.where { margin: 0 0 .4rem; }
nav { columns: 15rem; column-gap: 1.5rem; } nav div { break-inside: avoid; }
nav ul { list-style: none; padding: 0; margin: 0 0 1rem; } nav li { padding: .1rem 0; }
nav h4 { margin: 0 0 .1rem; } nav { margin-top: .8rem; }
article { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1rem;
  margin: .8rem 0; }
details { margin: .5rem 0 0; border-top: 1px solid var(--line); padding-top: .4rem; }
summary { cursor: pointer; color: var(--soft); }
dl { margin: .2rem 0; } dt { margin: .5rem 0 0; } dd { margin: 0 0 0 1rem; color: var(--soft); }
dd p { margin: 0; }
.schemas article { padding: .7rem 1rem; }
@media (max-width: 30rem) { main { padding: 1.2rem .75rem 4rem; } h1 { font-size: 1.5rem; }
  article { padding: .75rem .75rem; } dd { margin-left: .5rem; } }
@media print { pre { max-height: none; } article { break-inside: avoid; } }
"""
_CODE = re.compile(r"`([^`]+)`")
_NAMED = re.compile(r"\{(\w+)\}")
_BEARER = '-H "Authorization: Bearer $TOKEN"'
_FIRST = {"code": "print(6 * 7)"}
_WIDTH = 60
_WHAT = (
    "Code cells over HTTP: run them in sessions that keep their variables, follow them, and export what was"
    " done as a notebook."
)
_OPTIONAL = ' <span class="soft">may be left out</span>'


def reference_page(described: Values) -> str:
    """Return the page of our OpenAPI document, with `ORIGIN` for the gateway's own address."""
    info = described["info"]
    base = str(described["servers"][0]["url"]).rstrip("/")
    tasks = load_examples().tasks
    found = {each["operationId"]: (method, path, each) for method, path, each in _operations(described)}
    body = [
        f"<body><main><h1>{_text(info['title'])} <small>{_text(info['version'])}</small></h1>",
        f"<p>{_WHAT}</p>",
        *_beginning(base),
        *_index(tasks, found),
        *(f"<p>{_text(part)}</p>" for part in info["description"].split("\n\n")[1:]),
        '<p>For programs the same is at <a href="openapi.json">openapi.json</a>.</p>',
        *(part for number, task in enumerate(tasks) for part in _section(number, task, found)),
        '<div class="schemas"><h2 id="schemas">Objects</h2>',
        *(_schema(name, schema) for name, schema in described["components"]["schemas"].items()),
        "</div></main></body>",
    ]
    return document(f"{info['title']}: HTTP interface", _STYLE, "\n".join(body))


def command_of(method: str, path: str, operation: Values) -> str:
    """Return the example of an operation as a line for a shell, in which `URL` and `TOKEN` are set."""
    examples = load_examples()
    example = examples.of(operation["operationId"])
    if example.command:
        return example.command
    path = _NAMED.sub(lambda named: quote(str(examples.part(example, named[1]))), path)
    query = f"?{urlencode(example.query)}" if example.query else ""
    words = ["curl -s" + _as(method, operation, example), f'"$URL{path}{query}"' if query else f"$URL{path}"]
    if operation.get("security") != []:
        words.append(_BEARER)
    if example.body is not None:
        words.append(f"-d {shlex.quote(json.dumps(example.body))}")
    return " ".join([*words, *([example.options] if example.options else [])])


def _as(method: str, operation: Values, example: Example) -> str:
    """Return curl's option for a method that is not its default."""
    if method == "HEAD":
        return "I"
    sends = example.body is not None or FORM in operation.get("requestBody", {}).get("content", {})
    implied = "POST" if sends else "PUT" if example.options.startswith("-T ") else "GET"
    return "" if method == implied else f" -X {method}"


def _operations(described: Values) -> Iterator[tuple[str, str, Values]]:
    """Yield methods, paths and operations."""
    for path, item in described["paths"].items():
        for method, each in item.items():
            yield method.upper(), path, each


def _beginning(base: str) -> Iterator[str]:
    yield '<h2 id="begin">Run a cell</h2>'
    yield (
        "<p>Every request has a token, <code>Authorization: Bearer TOKEN</code>: the one that"
        " <code>cellgate serve</code> was given or printed, or a user's, by"
        " <code>cellgate token create</code>. Put yours in place of <code>YOUR-TOKEN</code>; a click on a box"
        " marks all of it.</p>"
    )
    yield f'<pre class="copy">export TOKEN=YOUR-TOKEN URL={ORIGIN}{escape(base)}</pre>'
    ask = f"curl -s $URL/v1/sessions/hello/execute {_BEARER} -d {shlex.quote(json.dumps(_FIRST))}"
    yield f'<pre class="copy">{escape(ask)}</pre>'
    yield (
        "<p>The answer has the cell's outputs, and in <code>text</code> what a person would see:"
        " <code>42</code>. The session <code>hello</code> was made by its first cell; the next one finds its"
        " variables. The same in Python, after <code>pip install</code> of the client:</p>"
    )
    lines = (
        "from cellgate import Gateway\n\n"
        f'with Gateway.sync("{ORIGIN}{base}", "YOUR-TOKEN") as gateway:\n'
        '    print(gateway.session("hello").run("print(6 * 7)").text)'
    )
    yield f'<pre class="copy lines">{escape(lines)}</pre>'


def _index(tasks: Sequence[Task], found: Mapping[str, tuple[str, str, Values]]) -> Iterator[str]:
    yield '<h2 id="tasks">By task</h2><nav>'
    for number, task in enumerate(tasks):
        yield f'<div><h4><a href="#task-{number}">{_text(task.title)}</a></h4><ul>'
        for name in task.operations:
            if name in found:
                yield f'<li><a href="#{name}">{_text(found[name][2]["summary"])}</a></li>'
        yield "</ul></div>"
    yield '<div><h4><a href="#schemas">Objects</a></h4></div></nav>'


def _section(number: int, task: Task, found: Mapping[str, tuple[str, str, Values]]) -> Iterator[str]:
    yield f'<h2 id="task-{number}">{_text(task.title)}</h2><p class="soft">{_text(task.text)}</p>'
    for name in task.operations:
        if name in found:
            yield from _article(*found[name])


def _article(method: str, path: str, each: Values) -> Iterator[str]:
    yield f'<article id="{each["operationId"]}"><h3>{_text(each["summary"])}</h3>'
    yield f'<p class="where"><span class="verb {method}">{method}</span><code>{escape(path)}</code></p>'
    if "description" in each:
        yield f"<p>{_text(each['description'])}</p>"
    yield f'<pre class="copy">{escape(command_of(method, path, each))}</pre>'
    yield from _example_answer(each)
    yield from _parameters(each.get("parameters", ()))
    if "requestBody" in each:
        yield f"<details><summary>Body</summary>{_content(each['requestBody'])}</details>"
    yield f"<details><summary>Answers: {', '.join(each['responses'])}</summary><dl>"
    for status, answer in each["responses"].items():
        shown = f"<p>{_text(answer['description'])}</p>{_content(answer)}"
        yield f"<dt><code>{status}</code></dt><dd>{shown}</dd>"
    yield "</dl></details></article>"


def _example_answer(each: Values) -> Iterator[str]:
    for status, answer in each["responses"].items():
        for media_type, content in answer.get("content", {}).items():
            if "example" in content:
                more = "" if media_type == JSON else ", in part"
                shown = escape(_laid_out(content["example"]))
                yield f"<h4>Answer {status}{more}</h4><pre>{shown}</pre>"
                return


def _laid_out(value: Any, indent: int = 0) -> str:
    """Return JSON in which every part that is short enough is on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (Mapping, list)) or indent + len(line) <= _WIDTH:
        return line
    inner = " " * (indent + 2)
    if isinstance(value, list):
        parts = [f"{inner}{_laid_out(each, indent + 2)}" for each in value]
        return "\n".join(["[", ",\n".join(parts), " " * indent + "]"])
    parts = [f"{inner}{json.dumps(name)}: {_laid_out(each, indent + 2)}" for name, each in value.items()]
    return "\n".join(["{", ",\n".join(parts), " " * indent + "}"])


def _parameters(parameters: Iterable[Values]) -> Iterator[str]:
    shown = [each for each in parameters if each["in"] != "path"]
    if not shown:
        return
    yield f"<details><summary>Parameters: {', '.join(each['name'] for each in shown)}</summary><dl>"
    for each in shown:
        where = f' <span class="soft">{each["in"]},</span>'
        yield f"<dt><code>{_text(each['name'])}</code>{where} {_type(each['schema'])}</dt>"
        yield f"<dd>{_text(each.get('description', ''))}</dd>"
    yield "</dl></details>"


def _content(holder: Values) -> str:
    lines = []
    for media_type, content in holder.get("content", {}).items():
        schema = content.get("schema")
        if media_type == "application/problem+json":
            continue  # the same schema everywhere; the reasons are in the description
        kind = "" if schema is None else f": {_type(schema)}"
        more = _text(schema["description"]) if schema and "description" in schema else ""
        lines.append(f"<p><code>{_text(media_type)}</code>{kind} {more}</p>")
    return "".join(lines)


def _schema(name: str, schema: Values) -> str:
    required = schema.get("required", ())
    rows = [
        f"<dt><code>{_text(field)}</code> {_type(kind)}{'' if field in required else _OPTIONAL}</dt>"
        f"<dd>{_text(kind.get('description', ''))}</dd>"
        for field, kind in schema.get("properties", {}).items()
    ]
    head = f'<article id="schema-{name}"><h3>{_text(name)}</h3><p>{_text(schema.get("description", ""))}</p>'
    words = f"<p>{_type(schema)}</p>" if "enum" in schema else ""
    return f"{head}{words}<dl>{''.join(rows)}</dl></article>"


def _type(schema: Values) -> str:
    """Return a schema's type in a few words."""
    if "$ref" in schema:
        return _link(str(schema["$ref"]).rpartition("/")[2])
    for kinds in ("anyOf", "allOf"):
        if kinds in schema:
            return " or ".join(_type(each) for each in schema[kinds])
    if words := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(f"<code>{_text('null' if word is None else str(word))}</code>" for word in words)
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    if schema.get("format") == "binary":
        return "bytes"
    least, most = schema.get("minimum"), schema.get("maximum")
    limits = f" from {least} to {most}" if least is not None and most is not None else ""
    return _text(str(schema.get("type", "anything"))) + limits


def _link(name: str) -> str:
    return f'<a href="#schema-{escape(name)}"><code>{escape(name)}</code></a>'


def _text(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))
