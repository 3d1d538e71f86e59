"""What language models are told of the tools: one list for all APIs and for MCP. Arguments are checked."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from cellgate.cli.run.tools import ToolsApp
from cellgate.client import Alternative, Exploration, Gateway, InvalidInput, Result
from cellgate.integrations.definitions import FORMATS, MAX_ARGUMENTS
from cellgate.integrations.tools import DEFINITIONS, Picture, SessionTools, tool_schemas
from cellgate.mcp.tools import McpTools as ProtocolTools

RUN_CODE = DEFINITIONS["run_code"]


def named(form: str) -> dict[str, dict[str, Any]]:
    """The tools in a provider's form, by name: description and parameters."""
    match form:
        case "openai":
            listed = [each["function"] for each in tool_schemas(form)]
        case "gemini":
            listed = tool_schemas(form)[0]["functionDeclarations"]
        case _:
            listed = tool_schemas(form)
    key = "input_schema" if form == "anthropic" else "parameters"
    return {each["name"]: {"told": each["description"], "parameters": each.get(key)} for each in listed}


@pytest.mark.parametrize("form", FORMATS)
def test_each_api_has_all_tools(form: str) -> None:
    found = named(form)
    assert list(found) == list(DEFINITIONS)
    assert found["run_code"]["told"].startswith("Run code as a notebook cell")
    assert found["run_code"]["parameters"] == {
        "type": "object",
        "properties": {
            "code": {"type": "string"},
            "timeout": {"type": "number"},
            "language": {"type": "string"},
            "tables": {"type": "integer"},
            "branch": {"type": "string"},
        },
        "required": ["code"],
    }
    assert found["run_program"]["parameters"]["properties"]["argv"] == {
        "type": "array",
        "items": {"type": "string"},
    }
    assert "null" not in json.dumps(tool_schemas(form))


def test_what_apis_want_besides() -> None:
    assert {each["type"] for each in tool_schemas("openai")} == {"function"}
    assert {each["strict"] for each in tool_schemas("openai-responses")} == {False}
    assert named("anthropic")["list_files"]["parameters"]["properties"] == {}
    assert named("gemini")["list_files"]["parameters"] is None  # Gemini refuses objects without properties


def test_the_command_has_the_same_formats() -> None:
    assert ToolsApp.class_traits()["format"].values == FORMATS


def test_some_tools_alone() -> None:
    assert [each["name"] for each in tool_schemas("anthropic", ["read_file"])] == ["read_file"]
    with pytest.raises(InvalidInput, match="did you mean read_file"):
        tool_schemas("anthropic", ["read_fil"])
    with pytest.raises(InvalidInput, match="openai, openai-responses, anthropic, gemini"):
        tool_schemas("other")


async def test_the_model_context_protocol_has_the_same_ones() -> None:
    session = Gateway("http://127.0.0.1:9").session()
    told = {each.name: each for each in await ProtocolTools(session, None).server("1").list_tools()}
    for name, definition in DEFINITIONS.items():
        assert told[name].description == definition.description
        schema = definition.parameters()
        assert told[name].input_schema["properties"].keys() == schema["properties"].keys()
        assert told[name].input_schema.get("required", []) == schema["required"]


def test_arguments_are_read_as_models_write_them() -> None:
    read = RUN_CODE.read('{"code": "1", "timeout": "5", "tables": 3, "branch": null}')
    assert read == {"code": "1", "timeout": 5.0, "language": None, "tables": 3, "branch": None}
    assert RUN_CODE.read({"code": "1"})["timeout"] is None
    assert DEFINITIONS["read_file"].read('{"path": "a", "start": null}')["start"] == 0
    assert DEFINITIONS["list_files"].read("") == {}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("", "missing required field `code`"),
        ("[]", "Expected `object`, got `array`"),
        ('{"code": 1}', r"Expected `str`, got `int` - at `\$.code`"),
        ('{"code": "1", "cod": "2"}', "unknown field `cod`"),
        ('{"code": "1"', "Input data was truncated"),
        ('{"code": ' + "[" * 200_000, "the arguments of run_code can't be used"),
        (b"\xff", "the arguments of run_code can't be used"),
        (" " * (MAX_ARGUMENTS + 1), "more than 16777216 characters"),
    ],
)
def test_wrong_arguments_are_refused_in_words(arguments: str | bytes, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        RUN_CODE.read(arguments)


async def test_a_tool_that_there_is_not_is_an_answer() -> None:
    tools = SessionTools(Gateway("http://127.0.0.1:9").session())
    answer = await tools.answer("run_cod", "{}")
    assert answer.failed
    assert answer.text == "bad_request: there is no tool 'run_cod'; did you mean run_code?"
    assert len((await tools.answer("x" * 100_000, "{}")).text) <= 8000
    assert "unreachable" in (await tools.answer("list_files")).text


def test_pictures_that_apis_would_refuse_are_left_out_and_said_so() -> None:
    small, large = "aaaa", "a" * (5 * 1024 * 1024 + 4)
    outputs = [{"output_type": "display_data", "data": {"image/png": data}} for data in (large, small)]
    result = Result(session="s", execution="x", status="ok", outputs=outputs)
    tools = SessionTools(Gateway("http://127.0.0.1:9").session())
    text, *pictures = tools.content(result)
    assert pictures == [Picture("image/png", small)]
    assert text == "[cellgate: 1 of the images can't be shown, because of their size]"


async def test_pictures_of_all_alternatives_fit_into_one_answer() -> None:
    outputs = [{"output_type": "display_data", "data": {"image/png": "a" * (5 * 1024 * 1024)}}]

    class Explored:
        """A session whose alternatives have each shown a picture."""

        async def opened(self) -> str:
            return "s"

        async def explore(self, cells: list[str], **options: object) -> Exploration:
            results = [
                Alternative(session=cell, execution="x", status="ok", outputs=outputs, branch="ended")
                for cell in cells
            ]
            return Exploration(results=results)

    tools = SessionTools(Explored())  # type: ignore[arg-type]
    answer = await tools.answer("try_alternatives", {"cells": ["1", "2", "3", "4"]})
    assert len(answer.pictures) == 3
    assert answer.text.endswith("[cellgate: 1 of the images can't be shown, because of their size]")


def test_definitions_are_those_of_public_methods() -> None:
    for name, definition in DEFINITIONS.items():
        assert inspect.getdoc(getattr(SessionTools, name)) == definition.description
