"""Flags for the shape an answer must have, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pellucid.cli.arguments import Option
from pellucid.errors import InvalidParameterError
from pellucid.structured_outputs import StructuredOutputsParams


def _option(flag: str, metavar: str | None, help: str) -> Any:
    return Option(flag, metavar=metavar, help=help)


JsonSchemaFlag = Annotated[
    Path | None, _option("--json-schema", "FILE", "The answer is JSON that satisfies the JSON Schema in this file.")
]
JsonObjectFlag = Annotated[bool, _option("--json-object", None, "The answer is a JSON object.")]
RegexFlag = Annotated[str | None, _option("--regex", "REGEX", "The whole answer matches this regular expression.")]
ChoiceFlag = Annotated[
    list[str] | None, _option("--choice", "TEXT", "The answer is one of these strings. May be repeated.")
]
GrammarFlag = Annotated[
    Path | None, _option("--grammar", "FILE", "The answer follows the grammar in this file, in Lark's notation.")
]


def with_shape(
    sampling: dict[str, Any],
    *,
    json_schema: Path | None,
    json_object: bool,
    regex: str | None,
    choice: list[str] | None,
    grammar: Path | None,
) -> dict[str, Any]:
    """The sampling fields with `structured_outputs`, where a flag asks for it. Raises `InvalidParameterError`."""
    given: dict[str, Any] = {"regex": regex, "choice": choice or None, "json_object": json_object or None}
    given["json"] = None if json_schema is None else _read("json_schema", json_schema)
    given["grammar"] = None if grammar is None else _read("grammar", grammar)
    given = {name: value for name, value in given.items() if value is not None}
    return {**sampling, "structured_outputs": StructuredOutputsParams(**given)} if given else sampling


def _read(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidParameterError(name, f"{name} {path} is not valid UTF-8") from None
    except OSError as error:
        raise InvalidParameterError(name, f"{name} {path} cannot be read: {error.strerror}") from None
