"""Which models write their tool calls how. The chat template shows it; --tool-call-parser says it where that fails."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.errors import InvalidParameterError
from pellucid.server.output.call_readers import (
    CallReader,
    JsonCallReader,
    NamedCallReader,
    SeparatedCallReader,
    XmlCallReader,
)
from pellucid.server.output.harmony import ASSISTANT, CHANNEL, CONSTRAIN, END, MESSAGE, START, HarmonyParser
from pellucid.server.output.tool_calls import CallMarks, ToolCallParser

Schemas = Mapping[str, Mapping[str, Any]]
"""By tool: the JSON schema of its parameters."""


def _json_reader(char: str, _: Schemas) -> CallReader | None:
    return JsonCallReader() if char == "{" else None


def _mistral_reader(char: str, _: Schemas) -> CallReader | None:
    if char == "{":
        return JsonCallReader()
    return NamedCallReader() if re.match(r"\w", char) else None


def _xml_reader(char: str, schemas: Schemas) -> CallReader | None:
    return XmlCallReader(schemas) if char == "<" else None


def _separated_reader(char: str, _: Schemas) -> CallReader | None:
    return SeparatedCallReader() if re.match(r"\w", char) else None


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a list of calls is written, for grammars: head, the calls with `between` between them, foot."""

    head: str = ""
    before: str = ""
    after: str = ""
    """Around each call."""
    between: str = ""
    foot: str = ""


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """How one family of models writes calls."""

    name: str
    marks: CallMarks
    shown_by: tuple[str, ...]
    """Texts that a chat template of the family has, all of them."""
    example: str
    """A call."""
    models: str
    """Who writes so."""
    form: CallForm
    reader: Callable[[str, Schemas], CallReader | None] = _json_reader
    arguments_key: str = "arguments"
    writes_xml: bool = False
    around_arguments: tuple[str, str] | None = None
    """What stands before and behind a call's arguments, with {name} in it; None: both are parts of a JSON object."""
    shows_calls: bool = False
    """Templates of the family have a place for calls and results, even those that have none for tools."""
    is_harmony: bool = False
    """The whole answer is in the harmony format (harmony.py)."""
    id_length: int = 24
    """Letters and digits of a call's id; with 24, OpenAI's prefix stands before them."""

    def parser(self, schemas: Schemas) -> ToolCallParser | HarmonyParser:
        """A parser for one answer."""
        if self.is_harmony:
            return HarmonyParser(schemas.keys(), splits_reasoning=False)
        return ToolCallParser(self.marks, lambda char: self.reader(char, schemas), schemas.keys())

    def new_id(self) -> str:
        """An id for a call, as the family's template takes it."""
        text = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(self.id_length))
        return f"call_{text}" if self.id_length == 24 else text


_ID_CHARACTERS = string.ascii_letters + string.digits
_DEEPSEEK_MARKS = CallMarks(
    ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"), "<｜tool▁calls▁end｜>", call_close="<｜tool▁call▁end｜>"
)
_HARMONY_CALL = (f"{CHANNEL}commentary to=functions.{{name}} {CONSTRAIN}json{MESSAGE}", "")
_JSON = '{"name": "f", "arguments": {"x": 1}}'
_FAMILIES = (
    ToolFamily(
        "openai",
        CallMarks((START, CHANNEL, CONSTRAIN, MESSAGE), END),
        (CHANNEL, MESSAGE),
        f'{_HARMONY_CALL[0].format(name="f")}{{"x": 1}}',
        "gpt-oss",
        CallForm(between=f"{END}{ASSISTANT}"),
        around_arguments=_HARMONY_CALL,
        is_harmony=True,
    ),
    ToolFamily(
        "qwen3_coder",
        CallMarks(("<tool_call>",), "</tool_call>"),
        ("<function=", "<parameter="),
        "<tool_call><function=f><parameter=x>1</parameter></function></tool_call>",
        "Qwen3-Coder, Qwen3.5",
        CallForm(before="<tool_call>\n", after="\n</tool_call>", between="\n"),
        _xml_reader,
        writes_xml=True,
    ),
    ToolFamily(
        "phi4_mini_json",
        CallMarks(("<|tool_call|>",), "<|/tool_call|>"),
        ("<|tool_call|>", "<|/tool_call|>"),
        f"<|tool_call|>[{_JSON}]<|/tool_call|>",
        "Phi-4-mini",
        CallForm("<|tool_call|>[", between=", ", foot="]<|/tool_call|>"),
    ),
    ToolFamily(
        "granite",
        CallMarks(("<|tool_call|>", "<tool_call>")),
        ("<|tool_call|>",),
        f"<|tool_call|>[{_JSON}]",
        "Granite 3",
        CallForm("<|tool_call|>[", between=", ", foot="]"),
    ),
    ToolFamily(
        "deepseek_v3",
        _DEEPSEEK_MARKS,
        (_DEEPSEEK_MARKS.opens[0], "```json"),
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f, then its arguments in a block of JSON",
        "DeepSeek-V3, R1 and what was distilled from it",
        CallForm("<｜tool▁calls▁begin｜>", between="\n", foot="<｜tool▁calls▁end｜>"),
        _separated_reader,
        around_arguments=(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
            "\n```<｜tool▁call▁end｜>",
        ),
        shows_calls=True,
    ),
    ToolFamily(
        "deepseek_v31",
        _DEEPSEEK_MARKS,
        (_DEEPSEEK_MARKS.opens[0],),
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "DeepSeek-V3.1",
        CallForm("<｜tool▁calls▁begin｜>", foot="<｜tool▁calls▁end｜>"),
        _separated_reader,
        around_arguments=("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        shows_calls=True,
    ),
    ToolFamily(
        "hermes",
        CallMarks(("<tool_call>",), "</tool_call>"),
        ("<tool_call>",),
        f"<tool_call>{_JSON}</tool_call>",
        "Hermes, Qwen 2.5 and 3, SmolLM2 and 3, and templates without tools",
        CallForm(before="<tool_call>\n", after="\n</tool_call>", between="\n"),
    ),
    ToolFamily(
        "mistral",
        CallMarks(("[TOOL_CALLS]",)),
        ("[TOOL_CALLS]",),
        f'[TOOL_CALLS][{_JSON}] or [TOOL_CALLS]f[ARGS]{{"x": 1}}',
        "Mistral, Ministral, Magistral",
        CallForm("[TOOL_CALLS][", between=", ", foot="]"),
        _mistral_reader,
        id_length=9,
    ),
    ToolFamily(
        "llama3_json",
        CallMarks(("<|python_tag|>",), may_lack=True),
        ("<|start_header_id|>", '"parameters"'),
        '{"name": "f", "parameters": {"x": 1}}',
        "Llama 3.1 to 3.3",
        CallForm(between="; "),
        arguments_key="parameters",
    ),
)
TOOL_FAMILIES: Mapping[str, ToolFamily] = {family.name: family for family in _FAMILIES}
"""By vLLM's names of parsers, in the order in which templates are looked at."""
FALLBACK_FAMILY = TOOL_FAMILIES["hermes"]
"""What is asked of models whose template knows no tools."""


def tool_family(parser: str, templates: Sequence[str], knows_tools: bool) -> ToolFamily | None:
    """The family for a parser's name; "auto" looks at the chat templates. None: none is known.

    knows_tools: the template has a place for tools; others get them as `FALLBACK_FAMILY` does, unless they show calls.
    """
    if parser != "auto":
        return TOOL_FAMILIES[parser]
    for template in templates:
        for family in TOOL_FAMILIES.values():
            if (knows_tools or family.shows_calls) and all(text in template for text in family.shown_by):
                return family
    return None if knows_tools else FALLBACK_FAMILY


def check_tool_parser(name: str) -> None:
    """Raises `InvalidParameterError` for a name that is not in the table."""
    allowed = ("auto", *TOOL_FAMILIES)
    if name not in allowed:
        raise InvalidParameterError(
            "tool_call_parser", f"tool_call_parser is {name!r}, but must be one of {', '.join(allowed)}"
        )
