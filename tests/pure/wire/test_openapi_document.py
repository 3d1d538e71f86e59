"""The OpenAPI document: valid, whole, and of one mind with the code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import pytest
from jsonschema import Draft202012Validator
from msgspec import Meta
from openapi_spec_validator import OpenAPIV31SpecValidator
from tornado.web import RequestHandler

from cellgate.errors import status_of_kind
from cellgate.http.base import BaseHandler
from cellgate.http.openapi.document import METHODS, build_document
from cellgate.http.openapi.examples import load_examples
from cellgate.http.openapi.page import command_of, reference_page
from cellgate.http.operation import FORM, JSON, Answer, operation, operation_of
from cellgate.http.routes import TABLE
from cellgate.wire.events import EVENTS

BINARY = {"type": "string", "format": "binary"}


def test_the_document_is_valid() -> None:
    assert list(OpenAPIV31SpecValidator(build_document(TABLE, "1")).iter_errors()) == []


def test_every_method_of_every_path_is_in_the_document() -> None:
    documented = build_document(TABLE, "1")["paths"]
    unimplemented = RequestHandler._unimplemented_method
    found = {
        (path, method)
        for path, handler in TABLE
        for method in METHODS
        if getattr(handler, method) is not unimplemented
        and not (method == "head" and handler.head is handler.get)
    }
    assert ("/v1/sessions/{session}/files/{path}", "put") in found
    assert {(path, method) for path, item in documented.items() for method in item} == found


def test_every_operation_has_a_name_of_its_own_and_says_what_it_answers() -> None:
    operations = [each for item in build_document(TABLE, "1")["paths"].values() for each in item.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)
    for each in operations:
        assert each["summary"]
        assert any(status < "400" for status in each["responses"]), each["operationId"]


def test_names_of_operations_are_a_verb_and_a_noun() -> None:
    verbs = (
        "answer|branch|cancel|change|complete|create|delete|end|explore|follow|get|head|inspect|interrupt|list|make"
        "|move|open|put|replay|restart|restore|run|signal|undo|upload|verify|write"
    )
    for name, _ in operations():
        assert re.fullmatch(rf"({verbs})(_[a-z]+)+", name), name
    assert {"run_cell", "put_file", "get_file", "create_session"} <= {name for name, _ in operations()}


def test_every_body_in_json_has_a_named_schema_and_every_other_says_whether_it_is_text_or_bytes() -> None:
    named = build_document(TABLE, "1")["components"]["schemas"]
    for name, described in operations():
        answers = described["responses"].values()
        for holder in (described.get("requestBody", {}), *answers):
            for media_type, content in holder.get("content", {}).items():
                schema = content["schema"]
                if media_type.endswith(("/json", "+json")) or media_type == FORM:
                    assert schema.keys() == {"$ref"}, (name, media_type)
                    assert schema["$ref"].rpartition("/")[2] in named
                else:
                    is_text = media_type.startswith("text/") or media_type == "application/x-ndjson"
                    assert schema["type"] == "string"
                    assert schema.get("format") == (None if is_text else "binary"), (name, media_type)


@pytest.mark.parametrize("name", ["get_file", "get_bundle", "get_output", "get_audit"])
def test_answers_that_are_bytes_say_so_in_the_one_media_type_that_generators_know(name: str) -> None:
    content = dict(operations())[name]["responses"]["200"]["content"]
    assert next(iter(content.items())) == ("application/octet-stream", {"schema": BINARY})


def test_bytes_are_sent_as_such() -> None:
    assert dict(operations())["put_file"]["requestBody"]["content"] == {
        "application/octet-stream": {"schema": BINARY}
    }
    form = build_document(TABLE, "1")["components"]["schemas"]["FilesForm"]
    assert form["properties"] == {"file": {"type": "array", "items": BINARY}}


def test_no_answer_to_head_has_a_body() -> None:
    answers = dict(operations())["head_file"]["responses"].values()
    assert [answer for answer in answers if "content" in answer] == []


def test_every_enum_has_a_name_and_what_is_one_word_only_is_none() -> None:
    document = build_document(TABLE, "1")
    schemas = document["components"]["schemas"]
    enums = {name for name, schema in schemas.items() if "enum" in schema}
    assert {"Reason", "SessionState", "OnDisconnect", "NetworkAccess"} <= enums
    # Each of them is that of a component: there are no others.
    found = list(all_enums(document))
    assert len(found) == len(enums)
    assert all(len(words) > 1 for words in found)
    assert all(schemas[name]["type"] in {"string", "integer"} for name in enums)
    assert schemas["Started"]["properties"]["type"] == {"type": "string", "const": "started"}


def test_a_named_enum_keeps_its_fields_default_description_and_null() -> None:
    schemas = build_document(TABLE, "1")["components"]["schemas"]
    parameters = {each["name"]: each["schema"] for each in dict(operations())["run_cell"]["parameters"]}
    kept = {"allOf": [{"$ref": "#/components/schemas/ImagePlace"}], "default": "inline"}
    assert parameters["images"] == kept
    optional = schemas["SessionBody"]["properties"]["network"]
    assert optional["anyOf"] == [{"$ref": "#/components/schemas/NetworkAccess"}, {"type": "null"}]
    assert schemas["NetworkAccess"]["enum"] == ["allow", "none"]


def test_fields_of_bodies_tell_their_defaults_in_words_as_generators_would_require_them() -> None:
    schemas = build_document(TABLE, "1")["components"]["schemas"]
    bodies = [schema for name, schema in schemas.items() if name.endswith("Body")]
    fields = [field for schema in bodies for field in schema.get("properties", {}).values()]
    assert len(bodies) > 10
    assert [field for field in fields if "default" in field] == []
    told = schemas["ExecuteBody"]["properties"]
    assert told["on_disconnect"]["description"].endswith("If absent, `continue`.")
    assert told["wait"]["description"].endswith("If absent, `true`.")


def test_objects_of_any_content_say_so() -> None:
    schemas = build_document(TABLE, "1")["components"]["schemas"]
    anything = {"type": "object", "additionalProperties": True}
    assert schemas["Result"]["properties"]["outputs"]["items"] == anything
    assert schemas["SessionModel"]["properties"]["metadata"]["anyOf"][0] == anything


def test_bounds_of_a_value_that_may_be_null_are_those_of_the_value() -> None:
    schemas = build_document(TABLE, "1")["components"]["schemas"]
    timeout = {"type": "number", "exclusiveMinimum": 0}
    assert schemas["ExecuteBody"]["properties"]["timeout"]["anyOf"] == [timeout, {"type": "null"}]


@pytest.mark.parametrize("title", ["SessionState", "SessionModel"])
def test_a_name_that_is_taken_is_refused(title: str) -> None:
    model = msgspec.defstruct("Model", [("word", Annotated[Literal["one", "two"], Meta(title=title)])])

    class Handler(BaseHandler):
        @operation("get_word", "Get a word", Answer(200, "The word.", {JSON: model}))
        async def get(self) -> None: ...

    with pytest.raises(ValueError, match=title):
        build_document([*TABLE, ("/v1/word", Handler)], "1")


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    """All operations by their names."""
    for item in build_document(TABLE, "1")["paths"].values():
        for each in item.values():
            yield each["operationId"], each


def all_enums(value: Any) -> Iterator[list[Any]]:
    """The words of all enums in a value."""
    if isinstance(value, list):
        for each in value:
            yield from all_enums(each)
    if isinstance(value, dict):
        if isinstance(value.get("enum"), list):
            yield value["enum"]
        yield from all_enums(list(value.values()))


def test_reasons_stand_with_their_status() -> None:
    documented = build_document(TABLE, "1")["paths"]
    for path, handler in TABLE:
        for method in METHODS:
            if (declared := operation_of(handler, method)) is None:
                continue
            operation = documented[path][
                "get" if method == "head" and handler.head is handler.get else method
            ]
            for error in declared.all_errors:
                answer = operation["responses"][str(int(status_of_kind(error)))]
                assert error.reason in answer["x-reasons"]
                assert f"`{error.reason}`" in answer["description"]


def test_all_events_are_in_the_document() -> None:
    schemas = build_document(TABLE, "1")["components"]["schemas"]
    for kind in EVENTS:
        assert {"seq", "session", "execution", "type", "at"} <= set(schemas[kind.__name__]["required"])
    assert "display_id" not in schemas["DisplayData"]["required"]


def each_operation() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and operation."""
    for path, item in build_document(TABLE, "1")["paths"].items():
        for method, each in item.items():
            yield method.upper(), path, each


def test_every_operation_is_in_one_task_and_has_an_example() -> None:
    names = [each["operationId"] for _, _, each in each_operation()]
    assert sorted(name for task in load_examples().tasks for name in task.operations) == sorted(names)
    assert load_examples().examples.keys() == set(names)
    for _, _, each in each_operation():
        name = each["operationId"]
        for parameter in each.get("parameters", ()):
            assert parameter["in"] != "path" or "example" in parameter, name
        if each.get("requestBody", {}).get("required") and FORM not in each["requestBody"]["content"]:
            assert "example" in each["requestBody"]["content"][JSON], name
        for status, answer in each["responses"].items():
            if status < "300" and JSON in answer.get("content", {}):
                assert "example" in answer["content"][JSON], (name, status)


def closed(schemas: dict[str, Any]) -> dict[str, Any]:
    """The schemas without fields that they don't name; events of a page have those of their own type."""
    return {
        name: {**each, "additionalProperties": False} if "properties" in each and name != "Event" else each
        for name, each in schemas.items()
    }


def holders(each: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Whatever may have a schema and an example of it."""
    yield from each.get("parameters", ())
    for holder in (each.get("requestBody", {}), *each["responses"].values()):
        yield from holder.get("content", {}).values()


def test_examples_fit_their_schemas() -> None:
    components = {"schemas": closed(build_document(TABLE, "1")["components"]["schemas"])}
    checked = 0
    for _, _, each in each_operation():
        for holder in holders(each):
            if "example" in holder:
                validator = Draft202012Validator({**holder["schema"], "components": components})
                problems = [error.message for error in validator.iter_errors(holder["example"])]
                assert not problems, each["operationId"]
                checked += 1
    assert checked > 100


def test_examples_are_lines_for_a_shell_and_send_a_token_where_one_is_needed() -> None:
    for method, path, each in each_operation():
        words = shlex.split(command_of(method, path, each))
        assert any("URL" in word for word in words), each["operationId"]
        assert ("Authorization: Bearer $TOKEN" in words) == (each.get("security") != [])
        assert "{" not in path or path not in " ".join(words)


def test_the_page_begins_with_the_token_and_a_cell_and_has_each_task() -> None:
    page = reference_page(build_document(TABLE, "1", "/cellgate"))
    begin, _, rest = page.partition("<nav>")
    assert "Authorization: Bearer TOKEN" in begin
    assert "/cellgate</pre>" in begin
    assert "$URL/v1/sessions/hello/execute" in begin
    titles = re.findall(r'<h2 id="task-\d+">([^<]*)</h2>', rest)
    assert titles == [task.title for task in load_examples().tasks]
    for _, _, each in each_operation():
        article = rest.partition(f'<article id="{each["operationId"]}">')[2].partition("</article>")[0]
        assert '<pre class="copy">' in article, each["operationId"]
