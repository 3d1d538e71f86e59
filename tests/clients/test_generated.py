"""Clients that others' generators make of `/openapi.json`: whole, without a warning, and of use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellgate.http.openapi.document import build_document
from cellgate.http.routes import TABLE
from tests.clients.processes import run_client
from tests.support.server import GatewayProcess

DOCUMENT = build_document(TABLE, "test")
OPERATIONS = sorted(each["operationId"] for item in DOCUMENT["paths"].values() for each in item.values())
SCHEMAS = set(DOCUMENT["components"]["schemas"])
# The document itself is checked before each change.
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def made(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the generators said and made, and what came of using one of the clients."""
    folder: Path = tmp_path_factory.mktemp("generated")
    return run_client(gateway, "generated.py", folder)


def test_openapi_python_client_makes_a_function_of_each_operation(made: dict[str, Any]) -> None:
    assert made["python"]["said"] == []
    assert sorted(made["python"]["operations"]) == OPERATIONS
    assert set(made["python"]["classes"]) >= SCHEMAS
    assert not [name for name in made["python"]["classes"] if "Response" in name]


def test_openapi_typescript_makes_a_type_of_each_operation(made: dict[str, Any]) -> None:
    assert made["typescript"]["said"] == []
    assert sorted(made["typescript"]["operations"]) == OPERATIONS


def test_datamodel_code_generator_makes_a_class_of_each_schema_and_each_query(made: dict[str, Any]) -> None:
    queries = {
        f"{each['operationId'].title().replace('_', '')}ParametersQuery"
        for item in DOCUMENT["paths"].values()
        for each in item.values()
        if any(parameter["in"] == "query" for parameter in each.get("parameters", ()))
    }
    assert made["models"]["said"] == []
    assert sorted(made["models"]["classes"]) == sorted(SCHEMAS | queries)


def test_a_generated_client_runs_cells_and_sends_bytes_and_gets_them_back(made: dict[str, Any]) -> None:
    assert made["used"] == {
        "put": "created",
        "same": True,
        "uploaded": ["1.bin", "256.bin"],
        "listed": ["1.bin", "256.bin", "a folder/ü.bin"],
        "ran": ["ok", "[76800, 1, 256]"],
        "refused": ["Problem", True],
        "missing": 404,
        "bundle": True,
        "cells": 1,
        "network": True,
    }
