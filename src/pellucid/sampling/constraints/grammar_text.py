"""StructuredOutputsParams → one grammar in llguidance's Lark notation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pellucid.sampling.constraints.json_schema import OUR_KEY, read_schema
from pellucid.structured_outputs import DEFAULT_WHITESPACE, StructuredOutputsParams, refusal

# Where text is forced llguidance would allow one spelling in tokens only, found by looking ahead without bound.
_DECODER = json.JSONDecoder()
OPTIONS = '\n%llguidance {"no_forcing": true}\n'
"""At the end, so that messages name the lines of the grammar that was given."""
_RULE_WITH_ATTRIBUTES = re.compile(
    r"^[ \t]*[!?]?[\w-]+(?:\.\d+)?[ \t]*\[(?P<attributes>[^\n]*?)\][ \t]*:", re.MULTILINE
)
_UNSERVED_ATTRIBUTE = re.compile(r"(?<![\w\"])(temperature|stop|stop_capture)[ \t]*=")


def grammar_text(params: StructuredOutputsParams) -> str:
    """The grammar. Raises `InvalidParameterError` for what would not be enforced; compiling it shows the rest."""
    if params.grammar is not None:
        return _checked_lark(params.grammar) + OPTIONS
    return f"start: {expression(params)}{OPTIONS}"


def expression(params: StructuredOutputsParams) -> str:
    """Any shape but a grammar as part of a rule. Raises as `grammar_text`."""
    if params.json is not None:
        return json_expression(str(params.json), params)
    if params.json_object:
        return json_expression('{"type":"object"}', params)
    # Choices too are one regular expression: as alternatives of a rule they would be as many open items at every byte.
    regex = "|".join(map(_escaped, params.choice or ())) if params.regex is None else params.regex
    from llguidance import regex_to_lark

    return f"/{regex_to_lark(regex, 'd')}/"


def schemas_in(text: str) -> Iterator[dict[str, Any]]:
    """The JSON Schemas of a grammar."""
    for found in re.finditer(r"%json(?=[\s{])\s*", text):
        with suppress(ValueError, RecursionError):  # compiling it shows what is wrong
            schema, _ = _DECODER.raw_decode(text, found.end())
            if isinstance(schema, dict):
                yield schema


def names_tokens(params: StructuredOutputsParams) -> bool:
    """Whether the grammar may ask for control tokens: Lark's `<name>` and `<[id]>`."""
    return params.grammar is not None and "<" in params.grammar


def _escaped(text: str) -> str:
    """Text as a regular expression."""
    return re.sub(r"[\\.+*?()|\[\]{}^$]|[\x00-\x1f\x7f]", lambda m: _escape(m[0]), text)


def _escape(character: str) -> str:
    return f"\\{character}" if character.isprintable() else f"\\x{ord(character):02x}"


def literal(text: str) -> str:
    """Text as part of a rule."""
    return json.dumps(text).replace("\x7f", "\\u007f")  # the one control character that JSON does not escape


def json_expression(text: str, params: StructuredOutputsParams | None = None) -> str:
    """Text of a schema as part of a rule. Raises `InvalidParameterError` for what would not be enforced."""
    params = StructuredOutputsParams(json_object=True) if params is None else params
    schema = read_schema(text)
    options: dict[str, object] = {"lenient": False, "coerce_one_of": False}
    if params.disable_any_whitespace:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = params.whitespace_pattern or DEFAULT_WHITESPACE
    return f"%json {json.dumps({**schema, OUR_KEY: options}, ensure_ascii=False)}"


def _checked_lark(grammar: str) -> str:
    for rule in _RULE_WITH_ATTRIBUTES.finditer(grammar):
        unserved = _UNSERVED_ATTRIBUTE.search(rule["attributes"])
        if unserved is not None:
            raise refusal("grammar", f"has the attribute {unserved[1]}, which is not served")
    return grammar
