"""The OpenAPI document: valid, whole, and of one mind with the code."""

from __future__ import annotations

from openapi_spec_validator import OpenAPIV31SpecValidator
from tornado.web import RequestHandler

from cellgate.errors import status_of_kind
from cellgate.http.openapi import METHODS, build_document
from cellgate.http.operation import operation_of
from cellgate.http.routes import TABLE
from cellgate.wire.events import EVENTS

PROBLEM = "application/problem+json"


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


def test_reasons_stand_with_their_status() -> None:
    documented = build_document(TABLE, "1")["paths"]
    for path, handler in TABLE:
        for method in METHODS:
            if (declared := operation_of(handler, method)) is None:
                continue
            for error in declared.all_errors:
                answer = documented[path][method]["responses"][str(int(status_of_kind(error)))]
                reasons = answer["content"][PROBLEM]["schema"]["allOf"][1]["properties"]["reason"]["enum"]
                assert error.reason in reasons


def test_all_events_are_in_the_document() -> None:
    schemas = build_document(TABLE, "1")["components"]["schemas"]
    for kind in EVENTS:
        assert {"seq", "session", "execution", "type", "at"} <= set(schemas[kind.__name__]["required"])
    assert "display_id" not in schemas["DisplayData"]["required"]
