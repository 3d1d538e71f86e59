"""The OpenAPI 3.1 document of the gateway, generated from the route table, the operations and the structs.

Nothing is repeated here: paths are from the table (``routes``), parameters and answers from the methods'
declarations (``operation``), schemas from the structs (``wire``), statuses and reasons from the errors. Pure.
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

from cellgate.errors import status_of_kind
from cellgate.http.base import BaseHandler
from cellgate.http.operation import FORM, JSON, NDJSON, SSE, Answer, Operation, operation_of
from cellgate.http.queries import TOKEN, schema_of
from cellgate.wire.answers import Accepted, KeepAlive
from cellgate.wire.base import Value
from cellgate.wire.events import EVENTS, Event
from cellgate.wire.models import SESSION_KEY, Command
from cellgate.wire.problems import Problem, StreamProblem
from cellgate_kernels.errors import CellgateError

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
    "process": ("The process's id.", {"type": "string", "minLength": 1}),
    "port": ("The port's number.", {"type": "integer", "minimum": 1, "maximum": 65535}),
    "index": ("The number of the output, from 0.", {"type": "integer", "minimum": 0}),
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
"""


def build_document(table: Table, version: str, base_url: str = "") -> dict[str, Any]:
    """The whole document. `base_url`: the path below which the gateway serves; empty for the root."""
    table = list(table)
    schemas = _schemas(table)
    paths: dict[str, Any] = {}
    for path, handler in table:
        if described := dict(_path_item(path, handler)):
            paths[path] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cellgate", "version": version, "description": _DESCRIPTION.strip()},
        "servers": [{"url": base_url or "/"}],
        "security": [{"bearer": []}, {"query": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
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
        if declared is not None:
            yield method, _operation(path, handler, method, declared)


def _operation(path: str, handler: type[BaseHandler], method: str, declared: Operation) -> Schema:
    described: Schema = {
        "operationId": method + handler.__name__.removesuffix("Handler"),
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
    return described


def _parameters(path: str, declared: Operation) -> Iterator[Schema]:
    for name in _NAMED.findall(path):
        description, schema = _PARTS[name]
        yield {"name": name, "in": "path", "required": True, "description": description, "schema": schema}
    for name, schema in schema_of(declared.query).items():
        described = {key: value for key, value in schema.items() if key != "description"}
        parameter: Schema = {"name": name, "in": "query", "schema": _without_null(described)}
        yield _described(parameter, schema.get("description"))
    for name, description in declared.headers.items():
        yield {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def _described(parameter: Schema, description: str | None) -> Schema:
    return parameter if description is None else {**parameter, "description": description}


def _without_null(schema: Schema) -> Schema:
    """The schema without null: a parameter is left out instead."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        schema = {**{key: value for key, value in schema.items() if key != "anyOf"}, **kinds[0]}
    if "enum" in schema:
        schema = {**schema, "enum": [word for word in schema["enum"] if word is not None]}
    return {key: value for key, value in schema.items() if (key, value) != ("default", None)}


def _is_required(body: Mapping[str, Any]) -> bool:
    kind = body.get(JSON)
    return kind is not None and any(each.required for each in msgspec.structs.fields(kind))


def _responses(declared: Operation) -> Schema:
    answers = {str(answer.status): _answer(answer) for answer in declared.answers}
    for status, reasons in sorted(_reasons(declared.all_errors).items()):
        refusal = _refusal(status, reasons)
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
    if answer.content:
        described["content"] = {kind: _media(kind, body) for kind, body in answer.content.items()}
    return described


def _media(media_type: str, body: Any) -> Schema:
    if media_type == FORM:
        return {"schema": {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}}}}
    if body is None:
        return {}
    if media_type in {NDJSON, SSE}:
        # OpenAPI 3.1 can't describe a stream of values.
        schemas = ", ".join(f"`{kind.__name__}`" for kind in (body, KeepAlive, StreamProblem))
        return {"schema": {"type": "string", "description": f"JSON, one per line or event: {schemas}"}}
    return {"schema": {"$ref": _REF.format(name=body.__name__)}}


def _reasons(errors: Iterable[type[CellgateError]]) -> dict[int, list[str]]:
    """The reasons of these errors, by status."""
    found: dict[int, set[str]] = defaultdict(set)
    for kind in errors:
        found[status_of_kind(kind)].add(kind.reason)
    return {int(status): sorted(reasons) for status, reasons in found.items()}


def _refusal(status: int, reasons: list[str]) -> Schema:
    named = {"type": "object", "properties": {"reason": {"enum": reasons}}}
    schema = {"allOf": [{"$ref": _REF.format(name=Problem.__name__)}, named]}
    listed = ", ".join(f"`{reason}`" for reason in reasons)
    described: Schema = {
        "description": f"{HTTPStatus(status).phrase}: {listed}",
        "content": {PROBLEM: {"schema": schema}},
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
    ordered = sorted(kinds, key=lambda kind: str(kind.__name__))
    schemas: Schema = msgspec.json.schema_components(ordered, ref_template=_REF)[1]
    for kind in _all_structs(ordered):
        if issubclass(kind, Value):
            _is_always_sent(schemas[kind.__name__], kind)
    return dict(sorted(schemas.items()))


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


def _all_structs(kinds: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """These structs and all structs in their fields, each once."""
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
    """A type and all its type arguments, recursively."""
    yield kind
    for part in get_args(kind):
        yield from _flat(part)
