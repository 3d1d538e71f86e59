"""The OpenAPI 3.1 document of the gateway, generated from the route table, the operations and the structs.

Nothing is repeated here: paths are from the table (``routes``), parameters and answers from the methods'
declarations (``operation``), schemas from the structs (``wire``), statuses and reasons from the errors,
examples from ``examples``. Pure.

Generators of clients make a class of each schema and a function of each operation, and leave out or misname
other things. So everything that becomes a class has a name here: every JSON answer, every enum, every form. A
value with a single possible word is a `const`.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, get_args

import msgspec
from msgspec import UnsetType

from cellgate.errors import reasons, status_of_kind
from cellgate.http.base import BaseHandler
from cellgate.http.openapi.examples import load_examples
from cellgate.http.operation import BYTES, FORM, JSON, NDJSON, SSE, Answer, Foreign, Operation, operation_of
from cellgate.http.queries import TOKEN, schema_of
from cellgate.wire.answers import Accepted, KeepAlive
from cellgate.wire.base import Body, Value
from cellgate.wire.events import EVENTS, Event
from cellgate.wire.models import ENV_NAME, SESSION_KEY, Command
from cellgate.wire.problems import Problem, StreamProblem
from cellgate_kernels.base.errors import CellgateError

Schema = dict[str, Any]
Table = Iterable[tuple[str, type[BaseHandler]]]
"""Paths in OpenAPI's form, such as `/v1/sessions/{session}`, and their handlers."""

METHODS = ("get", "head", "put", "post", "patch", "delete")
PROBLEM = "application/problem+json"
_REF = "#/components/schemas/{name}"
_NAMED = re.compile(r"\{(\w+)\}")
_PARTS: Mapping[str, tuple[str, Schema]] = {
    "session": ("The session's key.", {"type": "string", "pattern": f"^{SESSION_KEY.pattern}$"}),
    "execution": ("The execution's id.", {"type": "string", "minLength": 1}),
    "checkpoint": ("The checkpoint's name.", {"type": "string", "minLength": 1}),
    "environment": ("The environment's name.", {"type": "string", "minLength": 1, "maxLength": 40}),
    "widget": ("The widget's `comm_id`.", {"type": "string", "minLength": 1, "maxLength": 200}),
    "variable": ("The variable's name.", {"type": "string", "minLength": 1, "maxLength": 200}),
    "process": ("The process's id.", {"type": "string", "minLength": 1}),
    "port": ("The port's number.", {"type": "integer", "minimum": 1, "maximum": 65535}),
    "index": ("The number of the output, from 0.", {"type": "integer", "minimum": 0}),
    "user": ("The user's name; `me` is the sender.", {"type": "string", "minLength": 1}),
    "token": ("The token's id.", {"type": "string", "minLength": 1}),
    "secret": ("The secret's name.", {"type": "string", "pattern": f"^{ENV_NAME.pattern}$"}),
    "path": (
        "The file's path in the workspace; its slashes may stand as they are.",
        {"type": "string", "minLength": 1},
    ),
}
_DESCRIPTION = """
Runs code cells in isolated Jupyter kernels that keep their state, and keeps of every session a record.

Bodies are JSON, and unknown fields are refused; so are unknown query parameters below `/v1`. Errors are
`application/problem+json` with a stable `reason`. Times are RFC 3339 in UTC, durations in seconds unless the
name says `_ms`. Jupyter's own interface below `/api` is not described here.

Where `application/octet-stream` stands beside another media type of bytes, the answer has the other one: it
is there for generators of clients, which know no other for bytes.
"""
_BINARY: Schema = {"type": "string", "format": "binary"}
_NULL: Schema = {"type": "null"}
_FORM = "FilesForm"
_REASON = "Reason"


def build_document(table: Table, version: str, base_url: str = "") -> dict[str, Any]:
    """Return the whole document. `base_url`: the path below which the gateway serves; empty for the root."""
    table = list(table)
    named: Schema = {}
    schemas = _with_names(_schemas(table), named)
    paths: dict[str, Any] = {}
    for path, handler in table:
        if described := dict(_path_item(path, handler)):
            paths[path] = _with_names(described, named)
    if twice := schemas.keys() & named.keys():
        raise ValueError(f"Enums have the names of structs: {', '.join(sorted(twice))}")
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cellgate", "version": version, "description": _DESCRIPTION.strip()},
        "servers": [{"url": base_url or "/"}],
        "security": [{"bearer": []}, {"query": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted((schemas | named).items())),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The gateway's own token, or one of a user's: cellgate token create.",
                },
                "query": {"type": "apiKey", "in": "query", "name": TOKEN},
            },
        },
    }


def _path_item(path: str, handler: type[BaseHandler]) -> Iterator[tuple[str, Any]]:
    for method in METHODS:
        declared = operation_of(handler, method)
        # HEAD of what GET answers is the same operation.
        if declared is not None and not (method == "head" and handler.head is handler.get):
            described = _operation(path, handler, declared)
            if method == "head":
                # A client that expects a body would fail to parse nothing.
                for answer in described["responses"].values():
                    answer.pop("content", None)
            yield method, described


def _operation(path: str, handler: type[BaseHandler], declared: Operation) -> Schema:
    described: Schema = {
        "operationId": declared.name,
        "tags": [handler.__module__.rpartition(".")[2]],
        "summary": declared.summary,
    }
    if declared.description:
        described["description"] = declared.description
    if declared.public:
        described["security"] = []
    if parameters := list(_parameters(path, declared)):
        described["parameters"] = parameters
    if declared.body:
        content = {kind: _media(kind, body) for kind, body in declared.body.items()}
        described["requestBody"] = {"content": content, "required": _is_required(declared.body)}
    described["responses"] = _responses(declared)
    _show(described, declared.name)
    return described


def _show(described: Schema, name: str) -> None:
    """Add the values of an operation's example to the schemas that they exemplify."""
    examples = load_examples()
    example = examples.of(name)
    for each in described.get("parameters", ()):
        if each["in"] == "path":
            each["example"] = examples.part(example, each["name"])
        elif each["in"] == "query" and each["name"] in example.query:
            each["example"] = example.query[each["name"]]
    if example.body is not None:
        described["requestBody"]["content"][JSON]["example"] = example.body
    if example.answer is not None:
        for status, answer in described["responses"].items():
            for media_type, content in answer.get("content", {}).items():
                if status < "300" and _is_json(media_type):
                    content["example"] = example.answer


def _is_json(media_type: str) -> bool:
    return media_type == JSON or media_type.endswith("+json")


def _parameters(path: str, declared: Operation) -> Iterator[Schema]:
    for name in _NAMED.findall(path):
        description, schema = _PARTS[name]
        yield {"name": name, "in": "path", "required": True, "description": description, "schema": schema}
    for name, schema in schema_of(declared.query).items():
        described = {key: value for key, value in schema.items() if key != "description"}
        told = {"description": schema["description"]} if "description" in schema else {}
        yield {"name": name, "in": "query", "schema": _without_null(described), **told}
    for name, description in declared.headers.items():
        yield {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def _without_null(schema: Schema) -> Schema:
    """Return the schema without null: a parameter is left out instead."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != _NULL]
    if len(kinds) == 1:
        schema = {**{key: value for key, value in schema.items() if key != "anyOf"}, **kinds[0]}
    if "enum" in schema:
        schema = {**schema, "enum": [word for word in schema["enum"] if word is not None]}
    return {key: value for key, value in schema.items() if (key, value) != ("default", None)}


def _is_required(body: Mapping[str, Any]) -> bool:
    kind = body.get(JSON)
    return FORM in body or (kind is not None and any(each.required for each in msgspec.structs.fields(kind)))


def _responses(declared: Operation) -> Schema:
    answers = {str(answer.status): _answer(answer) for answer in declared.answers}
    for status, possible in sorted(_reasons(declared.all_errors).items()):
        refusal = _refusal(status, possible)
        known = answers.get(str(status))
        if known is not None:
            refusal["description"] = f"{known['description']} {refusal['description']}"
            refusal["content"] = {**known.get("content", {}), **refusal["content"]}
        answers[str(status)] = refusal
    return answers


def _answer(answer: Answer) -> Schema:
    described: Schema = {"description": answer.description}
    if answer.headers:
        described["headers"] = {
            name: {"description": description, "schema": {"type": "string"}}
            for name, description in answer.headers.items()
        }
    content = {kind: _media(kind, body) for kind, body in answer.content.items()}
    if content and not any(map(_is_widely_known, content)):
        content = {BYTES: {"schema": _BINARY}, **content}
    if content:
        described["content"] = content
    return described


def _is_widely_known(media_type: str) -> bool:
    """Return whether generators can read such an answer; _DESCRIPTION explains the others."""
    return media_type == BYTES or media_type.startswith("text/") or _is_json(media_type)


def _media(media_type: str, body: Any) -> Schema:
    if media_type == FORM:
        return {"schema": {"$ref": _REF.format(name=_FORM)}}
    if isinstance(body, Foreign):
        return {"schema": {"$ref": _REF.format(name=body.name)}}
    if body is None:
        is_text = media_type.startswith("text/") or media_type == NDJSON
        return {"schema": {"type": "string"} if is_text else _BINARY}
    if media_type in {NDJSON, SSE}:
        # OpenAPI 3.1 can't describe a stream of values.
        schemas = ", ".join(f"`{kind.__name__}`" for kind in (body, KeepAlive, StreamProblem))
        return {"schema": {"type": "string", "description": f"JSON, one per line or event: {schemas}"}}
    return {"schema": {"$ref": _REF.format(name=body.__name__)}}


def _reasons(errors: Iterable[type[CellgateError]]) -> dict[int, list[str]]:
    """Return the reasons of these errors, by status."""
    found: dict[int, set[str]] = defaultdict(set)
    for kind in errors:
        found[status_of_kind(kind)].add(kind.reason)
    return {int(status): sorted(reasons) for status, reasons in found.items()}


def _refusal(status: int, possible: list[str]) -> Schema:
    # The reasons are beside the schema, not in it: generators would make a class of each, hundreds of them,
    # one for each status of each operation.
    listed = ", ".join(f"`{reason}`" for reason in possible)
    described: Schema = {
        "description": f"{HTTPStatus(status).phrase}: {listed}",
        "content": {PROBLEM: {"schema": {"$ref": _REF.format(name=Problem.__name__)}}},
        "x-reasons": possible,
    }
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        described["headers"] = {
            "Retry-After": {"description": "Seconds, where waiting helps.", "schema": {"type": "integer"}}
        }
    if status == HTTPStatus.UNAUTHORIZED:
        described["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return described


# ---- schemas ----------------------------------------------------------------------------------------------


def _schemas(table: Table) -> Schema:
    kinds: set[Any] = {Problem, StreamProblem, KeepAlive, Command, Accepted, Event, *EVENTS}
    for _, handler in table:
        for method in METHODS:
            if (declared := operation_of(handler, method)) is not None:
                kinds |= {kind for body in _bodies(declared) for kind in body.values() if kind is not None}
    foreign = {kind for kind in kinds if isinstance(kind, Foreign)}
    kinds -= foreign
    ordered = sorted(kinds, key=lambda kind: str(kind.__name__))
    schemas: Schema = msgspec.json.schema_components(ordered, ref_template=_REF)[1]
    for kind in _all_structs(ordered):
        if issubclass(kind, Value):
            _is_always_sent(schemas[kind.__name__], kind)
        elif issubclass(kind, Body):
            _tells_defaults(schemas[kind.__name__])
    for kind in (Problem, StreamProblem):
        _has_known_reasons(schemas[kind.__name__])
    for each in foreign:
        schemas[each.name] = {
            "title": each.name,
            "description": each.description,
            "type": "object",
            "additionalProperties": True,
        }
    schemas[_REASON] = {"title": _REASON, "type": "string", "enum": list(reasons())}
    schemas[_FORM] = {
        "title": _FORM,
        "description": "Files, each with the path that its filename says.",
        "type": "object",
        "properties": {"file": {"type": "array", "items": _BINARY}},
        "required": ["file"],
    }
    return schemas


def _has_known_reasons(problem: Schema) -> None:
    """Name the known reasons, and allow others, which a newer gateway may have."""
    known = problem["properties"]["reason"]
    del known["type"]
    known["anyOf"] = [{"$ref": _REF.format(name=_REASON)}, {"type": "string"}]


def _with_names(value: Any, named: Schema) -> Any:
    """Return the value with references to its enums, which get into `named` under their titles.

    Objects of any content get `additionalProperties`. A field's title is the name of its enum. Raises
    ValueError if two have one name.
    """
    if isinstance(value, list):
        return [_with_names(each, named) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "object" and not value.keys() & {"properties", "additionalProperties"}:
        # Without this, TypeScript gets an object without properties.
        return {**value, "additionalProperties": True}
    words = _words(value)
    if len(words) == 1:
        return {"type": _type_of(words[0]), "const": words[0], **_without(value, "type", "enum", "title")}
    title = value.get("title")
    if not words or not isinstance(title, str) or title == _REASON:
        return {key: _with_names(each, named) for key, each in _with_its_bounds(value).items()}
    described = {"title": title, "type": _type_of(words[0]), "enum": words}
    if named.setdefault(title, described) != described:
        raise ValueError(f"There are two enums of the name {title}")
    reference = {"$ref": _REF.format(name=title)}
    more = _without(value, "type", "enum", "anyOf", "title")
    if _allows_null(value):
        return {**more, "anyOf": [reference, _NULL]}
    # Generators lose a default beside a reference.
    return {**more, "allOf": [reference]} if more else reference


def _with_its_bounds(schema: Schema) -> Schema:
    """Return the schema with a value's limits moved away from null, for generators of classes."""
    kinds = [kind for kind in _kinds(schema) if kind != _NULL]
    bounds = _without(schema, "anyOf", "title", "description", "default")
    if len(kinds) != 1 or not _allows_null(schema) or not bounds:
        return schema
    return {**_without(schema, *bounds), "anyOf": [{**kinds[0], **bounds}, _NULL]}


def _words(schema: Schema) -> list[Any]:
    """Return the values of an enum, without null; empty if it is none."""
    enums = [each["enum"] for each in (schema, *_kinds(schema)) if isinstance(each.get("enum"), list)]
    return [word for word in enums[0] if word is not None] if len(enums) == 1 else []


def _allows_null(schema: Schema) -> bool:
    return None in schema.get("enum", ()) or _NULL in _kinds(schema)


def _kinds(schema: Schema) -> list[Schema]:
    kinds = schema.get("anyOf")
    return kinds if isinstance(kinds, list) else []


def _type_of(word: str | int) -> str:
    return "string" if isinstance(word, str) else "integer"


def _without(schema: Schema, *names: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in names}


def _bodies(declared: Operation) -> Iterator[Mapping[str, Any]]:
    yield declared.body
    for answer in declared.answers:
        yield answer.content


def _is_always_sent(schema: Schema, kind: type[Value]) -> None:
    """Require all fields except UNSET ones: this gateway sends them; defaults are for other versions."""
    required = []
    for each in msgspec.structs.fields(kind):
        schema["properties"][each.encode_name].pop("default", None)
        if UnsetType not in _flat(each.type):
            required.append(each.encode_name)
    schema["required"] = required


def _tells_defaults(schema: Schema) -> None:
    """State defaults in words: generators require a body's field that has one, or send it unasked."""
    for each in schema["properties"].values():
        default = each.pop("default", None)
        if default not in (None, [], {}):
            told = default if isinstance(default, str) else msgspec.json.encode(default).decode()
            each["description"] = f"{each.get('description', '')} If absent, `{told}`.".lstrip()


def _all_structs(kinds: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """Yield these structs and all structs in their fields, each once."""
    seen: set[Any] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if not inspect.isclass(kind) or not issubclass(kind, msgspec.Struct) or kind in seen:
            continue
        seen.add(kind)
        yield kind
        for each in msgspec.structs.fields(kind):
            waiting += _flat(each.type)


def _flat(kind: Any) -> Iterator[Any]:
    """Yield a type and all its type arguments, recursively."""
    yield kind
    for part in get_args(kind):
        yield from _flat(part)
