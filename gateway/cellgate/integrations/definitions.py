"""A tool as language models are told of it, made of its method: name, description, parameters. Pure.

There is no second list: the method's docstring is the description and its signature the parameters, which
are both shown as a JSON schema and checked when a model calls the tool. ``tools`` has the methods.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from cellgate.client import InvalidInput

FORMATS: Final = ("openai", "openai-responses", "anthropic", "gemini")
"""How providers want tools: OpenAI for Chat Completions and for Responses, Anthropic, and Gemini."""
MAX_ARGUMENTS: Final = 16 * 1024 * 1024
"""Characters of a call's arguments as JSON. A model writes fewer; whoever calls in its name is limited."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A tool's name, description and parameters. `arguments` checks those of a call."""

    name: str
    description: str
    arguments: type[msgspec.Struct]

    def parameters(self) -> dict[str, Any]:
        """Return the parameters as a JSON schema.

        That a parameter may be left out is said by its absence from ``required`` alone: schemas with ``null``
        are not understood everywhere.
        """
        _, components = msgspec.json.schema_components([self.arguments])
        schema = components[self.arguments.__name__]
        shown = {name: _plain(each) for name, each in schema["properties"].items()}
        return {"type": "object", "properties": shown, "required": schema.get("required", [])}

    def read(self, arguments: Mapping[str, object] | str | bytes) -> dict[str, Any]:
        """Return a call's arguments, given as an object or as JSON, by name. Raises InvalidInput.

        What is null counts as left out, and a number or a truth value may be written as a text: some models
        do so.
        """
        try:
            found = _decode(arguments) if isinstance(arguments, (str, bytes)) else arguments
            given = {name: value for name, value in found.items() if value is not None}
            read = msgspec.convert(given, self.arguments, strict=False)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidInput(f"the arguments of {self.name} can't be used: {error}") from error
        return {name: getattr(read, name) for name in read.__struct_fields__}


def define(method: Callable[..., object]) -> Definition:
    """Return the definition of a tool, from its method."""
    parameters = list(inspect.signature(method, eval_str=True).parameters.values())[1:]
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (each.name, each.annotation)
        if each.default is each.empty
        else (each.name, each.annotation, each.default)
        for each in parameters
    ]
    name = method.__name__
    arguments = msgspec.defstruct(name, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)
    return Definition(name, inspect.getdoc(method) or "", arguments)


def schemas(form: str, definitions: Iterable[Definition]) -> list[dict[str, Any]]:
    """Return tools as a provider's API takes them, as the value of ``tools``. Raises InvalidInput."""
    match form:
        case "openai":
            return [{"type": "function", "function": _named(each, "parameters")} for each in definitions]
        case "openai-responses":
            # By default this API takes schemas as strict ones, in which nothing may be left out.
            functions = (_named(each, "parameters") for each in definitions)
            return [{"type": "function", **each, "strict": False} for each in functions]
        case "anthropic":
            return [_named(each, "input_schema") for each in definitions]
        case "gemini":
            return [{"functionDeclarations": [_of_gemini(each) for each in definitions]}]
        case _:
            raise InvalidInput(f"the format is one of {', '.join(FORMATS)}, not {form!r}")


def _named(tool: Definition, parameters: str) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, parameters: tool.parameters()}


def _of_gemini(definition: Definition) -> dict[str, Any]:
    """Return a declaration for Gemini, whose objects have properties or are left out."""
    named = _named(definition, "parameters")
    if not named["parameters"]["properties"]:
        del named["parameters"]
    return named


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter without null, as a type and as the default."""
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    rest = {
        name: value
        for name, value in schema.items()
        if name != "anyOf" and (name, value) != ("default", None)
    }
    return {**kinds[0], **rest} if len(kinds) == 1 else dict(schema)


def _decode(arguments: str | bytes) -> dict[str, Any]:
    if len(arguments) > MAX_ARGUMENTS:
        raise InvalidInput(f"the arguments have more than {MAX_ARGUMENTS} characters")
    # Some models send nothing at all to a tool without parameters.
    return msgspec.json.decode(arguments or b"{}", type=dict[str, Any])
