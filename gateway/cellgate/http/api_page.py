"""The OpenAPI document as HTML: every operation, parameter, answer and schema on one page.

Pure: the document in, HTML out. There is no script: the index at the top and the browser's search suffice,
and for the latter nothing is collapsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from cellgate.record.html_frame import document

Values = Mapping[str, Any]

_STYLE = """
:root { --ink: #1d2430; --soft: #5c6675; --line: #dde2e9; --paper: #fff; --ground: #f5f6f8; --link: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b4; --line: #343c48;
  --paper: #1b2028; --ground: #12161c; --link: #7fb6ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; } h4 { font-size: .9rem; margin: .8rem 0 .2rem; }
p { margin: .3rem 0; } a { color: var(--link); } .soft { color: var(--soft); }
code { font: .9em ui-monospace, monospace; }
.verb { display: inline-block; min-width: 4.2rem; font-weight: 700; }
ul.index { columns: 22rem; padding-left: 1rem; margin: .3rem 0; overflow-wrap: anywhere; }
article { background: var(--paper); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem;
  margin: .7rem 0; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
td { vertical-align: top; padding: .2rem .8rem .2rem 0; border-top: 1px solid var(--line); }
td:first-child { white-space: nowrap; }
"""
_CODE = re.compile(r"`([^`]+)`")


def reference_page(described: Values) -> str:
    """The page of our OpenAPI document."""
    info = described["info"]
    body = [
        f"<body><main><h1>{_text(info['title'])} {_text(info['version'])}</h1>",
        *(f"<p>{_text(part)}</p>" for part in info["description"].split("\n\n")),
        '<p>For programs the same is at <a href="openapi.json">openapi.json</a>.</p>',
        *_index(described),
        *(part for tag, found in _by_tag(described).items() for part in _section(tag, found)),
        "<h2>Schemas</h2>",
        *(_schema(name, schema) for name, schema in described["components"]["schemas"].items()),
        "</main></body>",
    ]
    return document(f"{info['title']}: HTTP interface", _STYLE, "\n".join(body))


def _by_tag(described: Values) -> dict[str, list[tuple[str, str, Values]]]:
    """Methods, paths and operations, grouped by tag."""
    found: dict[str, list[tuple[str, str, Values]]] = {}
    for path, item in described["paths"].items():
        for method, each in item.items():
            found.setdefault(each["tags"][0], []).append((method.upper(), path, each))
    return found


def _index(described: Values) -> Iterator[str]:
    yield '<h2>Operations</h2><ul class="index">'
    for found in _by_tag(described).values():
        for method, path, each in found:
            yield f'<li><a href="#{each["operationId"]}"><code>{method} {escape(path)}</code></a></li>'
    yield '</ul><h2>Names of schemas</h2><ul class="index">'
    for name in described["components"]["schemas"]:
        yield f"<li>{_link(name)}</li>"
    yield "</ul>"


def _section(tag: str, found: list[tuple[str, str, Values]]) -> Iterator[str]:
    yield f"<h2>{_text(tag.replace('_', ' ').capitalize())}</h2>"
    for method, path, each in found:
        yield f'<article id="{each["operationId"]}"><h3><span class="verb">{method}</span>'
        yield f"<code>{escape(path)}</code></h3><p>{_text(each['summary'])}."
        yield f"{' ' + _text(each['description']) if 'description' in each else ''}</p>"
        yield from _parameters(each.get("parameters", ()))
        if "requestBody" in each:
            yield f"<h4>Body</h4>{_content(each['requestBody'])}"
        yield "<h4>Answers</h4><table>"
        for status, answer in each["responses"].items():
            described = f"<p>{_text(answer['description'])}</p>{_content(answer)}"
            yield f"<tr><td><code>{status}</code></td><td>{described}</td></tr>"
        yield "</table></article>"


def _parameters(parameters: list[Values]) -> Iterator[str]:
    if not parameters:
        return
    yield "<h4>Parameters</h4><table>"
    for each in parameters:
        where = f' <span class="soft">{each["in"]}</span>'
        yield f"<tr><td><code>{_text(each['name'])}</code>{where}</td><td>{_type(each['schema'])}</td>"
        yield f"<td>{_text(each.get('description', ''))}</td></tr>"
    yield "</table>"


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
        f"<tr><td><code>{_text(field)}</code>{'' if field in required else _OPTIONAL}</td>"
        f"<td>{_type(kind)}</td><td>{_text(kind.get('description', ''))}</td></tr>"
        for field, kind in schema.get("properties", {}).items()
    ]
    head = f'<article id="schema-{name}"><h3>{_text(name)}</h3><p>{_text(schema.get("description", ""))}</p>'
    words = f"<p>{_type(schema)}</p>" if "enum" in schema else ""
    return f"{head}{words}<table>{''.join(rows)}</table></article>"


_OPTIONAL = ' <span class="soft">may be left out</span>'


def _type(schema: Values) -> str:
    """A schema's type in a few words."""
    if "$ref" in schema:
        return _link(str(schema["$ref"]).rpartition("/")[2])
    for kinds in ("anyOf", "allOf"):
        if kinds in schema:
            return " or ".join(_type(each) for each in schema[kinds])
    if words := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(f"<code>{_text(_word(word))}</code>" for word in words)
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    if schema.get("format") == "binary":
        return "bytes"
    least, most = schema.get("minimum"), schema.get("maximum")
    limits = f" from {least} to {most}" if least is not None and most is not None else ""
    return _text(str(schema.get("type", "anything"))) + limits


def _word(word: object) -> str:
    return "null" if word is None else str(word)


def _link(name: str) -> str:
    return f'<a href="#schema-{escape(name)}"><code>{escape(name)}</code></a>'


def _text(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))
