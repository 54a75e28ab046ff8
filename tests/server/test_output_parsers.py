"""Generated text taken apart: reasoning, content, tool calls; the same however the text falls into pieces."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.errors import InvalidParameterError
from pellucid.server.output.choice import ChoiceParser
from pellucid.server.output.events import Content, Event, Message, Reasoning, joined
from pellucid.server.output.families import TOOL_FAMILIES, check_tool_parser, tool_family
from pellucid.server.output.reasoning import (
    REASONING_PARSERS,
    ReasoningParser,
    check_reasoning_parser,
    reasoning_marks,
)

SCHEMAS: dict[str, Any] = {
    "f": {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": "object"}}},
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def parse(pieces: list[str], family: str | None, reasoning: str | None = None, prompt: str = "") -> list[Event]:
    parser = ChoiceParser(
        None if reasoning is None else ReasoningParser(REASONING_PARSERS[reasoning], prompt),
        None if family is None else TOOL_FAMILIES[family].parser(SCHEMAS),
    )
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    check_places("".join(pieces), events)
    return events


def check_places(text: str, events: list[Event]) -> None:
    """Every piece stands where it says, behind the one before it."""
    end = 0
    for event in events:
        if isinstance(event, Content | Reasoning):
            assert event.at >= end
            end = event.at + len(event.text)
            assert text[event.at : end] == event.text


def read(text: str, family: str | None, reasoning: str | None = None, prompt: str = "") -> Message:
    """As one piece; checked against one character at a time."""
    whole = joined(parse([text], family, reasoning, prompt))
    assert joined(parse(list(text), family, reasoning, prompt)) == whole
    return whole


def calls(message: Message) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in message.calls]


F = '{"name": "f", "arguments": {"x": 1}}'
WEATHER = '{"name": "get_weather", "arguments": {"city": "Köln }] </x>"}}'
COLOGNE = ("get_weather", {"city": "Köln }] </x>"})

CALL, SEP, END, ENDS = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
BEGIN = f"<｜tool▁calls▁begin｜>{CALL}"

GOOD: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("hermes", f"<tool_call>\n{F}\n</tool_call>", "", [("f", {"x": 1})]),
    ("hermes", f"I look.\n\n<tool_call>\n{F}\n</tool_call>\n", "I look.", [("f", {"x": 1})]),
    ("hermes", f"<tool_call>{F}</tool_call>\n<tool_call>{WEATHER}</tool_call>", "", [("f", {"x": 1}), COLOGNE]),
    ("hermes", f"<tool_call>[\n{F},\n{WEATHER}\n]</tool_call>", "", [("f", {"x": 1}), COLOGNE]),  # SmolLM2
    ("hermes", f"<tool_call>{F}</tool_call>\n\nDone.", "Done.", [("f", {"x": 1})]),
    ("hermes", '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", [("f", {"x": 1})]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", {"x": 1})]),
    (
        "hermes",
        '<tool_call>{"id": 3, "name": "f", "arguments": {"s": "a\\"}b"}}</tool_call>',
        "",
        [("f", {"s": 'a"}b'})],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"s": "</tool_call>"}}</tool_call>',
        "",
        [("f", {"s": "</tool_call>"})],
    ),
    ("hermes", f"<tool_call>\n{F}", "", [("f", {"x": 1})]),  # the closing mark is missing
    ("granite", f"<|tool_call|>[{F}, {WEATHER}]", "", [("f", {"x": 1}), COLOGNE]),
    ("granite", f"<tool_call>[{F}]", "", [("f", {"x": 1})]),
    ("phi4_mini_json", f"<|tool_call|>[{F}]<|/tool_call|>", "", [("f", {"x": 1})]),
    ("mistral", f"[TOOL_CALLS][{F}, {WEATHER}]", "", [("f", {"x": 1}), COLOGNE]),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdefghi"}]', "", [("f", {})]),
    ("mistral", 'A [TOOL_CALLS]f{"x": [1, {"y": 2}]}', "A", [("f", {"x": [1, {"y": 2}]})]),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]f[ARGS]{"x": 2}', "", [("f", {"x": 1}), ("f", {"x": 2})]),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"x": 1}', "", [("f", {"x": 1})]),
    ("deepseek_v31", f'{BEGIN}f{SEP}{{"x": 1}}{END}{ENDS}', "", [("f", {"x": 1})]),
    (
        "deepseek_v31",
        f'I look.\n\n{BEGIN}f{SEP}{{}}{END}{CALL}get_weather{SEP}{{"city": "Köln }}] </x>"}}{END}{ENDS}',
        "I look.",
        [("f", {}), COLOGNE],
    ),
    ("deepseek_v31", f'{BEGIN}f{SEP} {{"s": "{END}{ENDS}"}}{END}{ENDS}\nDone.', "Done.", [("f", {"s": END + ENDS})]),
    ("deepseek_v31", f'{CALL}f{SEP}{{"x": 1}}{END}', "", [("f", {"x": 1})]),  # marks around the list are missing
    ("deepseek_v31", f'{BEGIN}a.b-c:d/e_9{SEP}{{"x": 1}}', "", [("a.b-c:d/e_9", {"x": 1})]),
    ("deepseek_v31", f"{BEGIN}function{SEP}{{}}{END}{ENDS}", "", [("function", {})]),
    ("deepseek_v3", f'{BEGIN}function{SEP}f\n```json\n{{"x": 1}}\n```{END}{ENDS}', "", [("f", {"x": 1})]),
    (
        "deepseek_v3",
        f'A\n{BEGIN}function{SEP}f\n```json\n{{\n  "s": "```"\n}}\n```{END}\n'
        f'{CALL}function{SEP}get_weather\n```json\n{{"city": "Köln }}] </x>"}}\n```{END}{ENDS} B',
        "AB",
        [("f", {"s": "```"}), COLOGNE],
    ),
    ("deepseek_v3", f"{BEGIN}function{SEP}a.b-c```json{{}}```{ENDS}", "", [("a.b-c", {})]),
    ("deepseek_v3", f'{BEGIN}f{SEP}{{"x": 1}}{END}{ENDS}', "", [("f", {"x": 1})]),  # in the other's way
    ("llama3_json", '{"name": "f", "parameters": {"x": 1}}', "", [("f", {"x": 1})]),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"x": 1}}', "", [("f", {"x": 1})]),
    (
        "llama3_json",
        '{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {"city": "a"}}',
        "",
        [("f", {}), ("get_weather", {"city": "a"})],
    ),
    (
        "qwen3_coder",
        "Hm.\n<tool_call>\n<function=f>\n<parameter=x>\n12\n</parameter>\n<parameter=s>\n12\n</parameter>\n</function>\n</tool_call>",
        "Hm.",
        [("f", {"x": 12, "s": "12"})],
    ),
    (
        "qwen3_coder",
        '<tool_call><function=f><parameter=o>{"a": [true]}</parameter><parameter=z>two\nlines</parameter></function>'
        "</tool_call>",
        "",
        [("f", {"o": {"a": [True]}, "z": "two\nlines"})],
    ),
    ("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>", "", [("f", {})]),
]


@pytest.mark.parametrize(("family", "text", "content", "expected"), GOOD)
def test_calls_are_found(family: str, text: str, content: str, expected: list[tuple[str, Any]]) -> None:
    message = read(text, family)
    assert message.content == content
    assert calls(message) == expected


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "No call at all.\n"),
        ("hermes", "<tool_call> is what a call begins with."),
        ("hermes", 'Text <tool_call>{"answer": 3}</tool_call>'),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "argum'),  # cut off before the call is certain
        ("hermes", '<tool_call>{"arguments": {"x": 1}}</tool_call>'),
        ("hermes", "<tool_call>not json</tool_call> "),
        ("hermes", "a < b <tool"),
        ("mistral", "[TOOL_CALLS] and then words"),
        ("mistral", "[1, 2]"),
        ("llama3_json", '{"name": "Bob", "parameters": {"age": 3}}'),  # no such tool
        ("llama3_json", '{"answer": {"name": "f", "parameters": {}}}'),
        ("llama3_json", 'See {"name": "f", "parameters": {"x": 1}}'),
        ("llama3_json", "  {} "),
        ("deepseek_v31", f"{BEGIN} and then words"),
        ("deepseek_v31", f"{BEGIN}{END}{ENDS}"),
        ("deepseek_v31", f"{BEGIN}f{SEP}not json{END}{ENDS}"),
        ("deepseek_v31", f"{BEGIN}f{SEP}{END}{ENDS}"),
        ("deepseek_v31", f"{BEGIN}f{SEP}"),
        ("deepseek_v31", f"{BEGIN}f<b>{{}}"),
        ("deepseek_v3", f"{BEGIN}function{SEP}f\n```python\n{{}}\n```{END}{ENDS}"),
        ("deepseek_v3", "a <｜tool▁calls"),
        ("qwen3_coder", "<tool_call>\n<func"),
        ("qwen3_coder", "<tool_call>\n<b>bold</b>"),
    ],
)
def test_what_is_no_call_stays_as_it_is(family: str, text: str) -> None:
    message = read(text, family)
    assert message.calls == []
    assert message.content == text


def test_text_after_a_list_of_calls_is_kept() -> None:
    message = read(f"[TOOL_CALLS][{F}] hello", "mistral")
    assert (message.content, calls(message)) == ("hello", [("f", {"x": 1})])
    message = read(f"[TOOL_CALLS][{F}] hello there [TOOL_CALLS][{F}]", "mistral")
    assert (message.content, calls(message)) == ("hello there", [("f", {"x": 1}), ("f", {"x": 1})])


def test_a_call_that_is_cut_off_keeps_what_came() -> None:
    message = read('<tool_call>{"name": "f", "arguments": {"s": "ab', "hermes")
    assert [(c.name, c.arguments) for c in message.calls] == [("f", '{"s": "ab')]
    assert message.content == ""


def test_arguments_that_are_no_json_end_at_the_mark() -> None:
    message = read('<tool_call>{"name": "f", "arguments": {"x": [1}}</tool_call> on', "hermes")
    assert [(c.name, c.arguments) for c in message.calls] == [("f", '{"x": [1}}')]
    assert message.content == "on"
    text = f'{BEGIN}f{SEP}{{"x": [1}}{END}{CALL}f{SEP}{{"x": 1}}{END}{ENDS}'
    assert [c.arguments for c in read(text, "deepseek_v31").calls] == ['{"x": [1}', '{"x": 1}']


def test_arguments_are_given_out_while_they_are_written() -> None:
    parser = ChoiceParser(None, TOOL_FAMILIES["hermes"].parser(SCHEMAS))
    parser.push('<tool_call>{"name": "f", "arguments": {"x"')
    assert [getattr(event, "fragment", None) for event in parser.push(": 1")] == [": 1"]


def test_one_call_where_only_one_is_wanted() -> None:
    parser = ChoiceParser(None, TOOL_FAMILIES["hermes"].parser(SCHEMAS), parallel=False)
    message = joined(parser.push(f"<tool_call>{F}</tool_call><tool_call>{WEATHER}</tool_call>") + parser.finish())
    assert calls(message) == [("f", {"x": 1})]


# Reasoning


@pytest.mark.parametrize(
    ("parser", "prompt", "text", "reasoning", "content"),
    [
        ("qwen3", "", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("qwen3", "<think>\n", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),  # C21: opened by the template
        ("qwen3", "<think>\n\n</think>\n\n", "Yes.\n", "", "Yes.\n"),
        ("qwen3", "", "Yes. <think>", "", "Yes. <think>"),
        ("qwen3", "", " Yes.", "", " Yes."),
        ("qwen3", "", "<think>It is cut", "It is cut", ""),
        ("qwen3", "", "<think>It is cut</thi", "It is cut</thi", ""),
        ("qwen3", "", "<thin", "", "<thin"),
        ("qwen3", "", "<think></think>Yes", "", "Yes"),
        ("qwen3", "", "<think>a < b </ think></think>c </think>", "a < b </ think>", "c </think>"),
        ("deepseek_r1", "", "Hm.</think>Yes.", "Hm.", "Yes."),
        ("deepseek_r1", "", "<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("deepseek_r1", "<think></think>", "Yes.", "", "Yes."),
        ("mistral", "", "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
    ],
)
def test_reasoning_is_split_off(parser: str, prompt: str, text: str, reasoning: str, content: str) -> None:
    message = read(text, None, parser, prompt)
    assert (message.reasoning, message.content) == (reasoning, content)


def test_going_on_inside_reasoning() -> None:
    parser = ReasoningParser(REASONING_PARSERS["qwen3"], "user <think> \n assistant <think>I say", "<think>I say")
    assert joined(parser.push(" so</think>Yes") + parser.finish()) == Message("Yes", "so", [])
    parser = ReasoningParser(REASONING_PARSERS["qwen3"], "user <think> \n assistant Well", "Well")
    assert joined(parser.push(" yes") + parser.finish()) == Message(" yes", "", [])


def test_calls_inside_reasoning_are_none() -> None:
    text = f"<think>I could <tool_call>{F}</tool_call></think>\n<tool_call>{F}</tool_call>"
    message = read(text, "hermes", "qwen3")
    assert message.reasoning == f"I could <tool_call>{F}</tool_call>"
    assert calls(message) == [("f", {"x": 1})]


# Pieces

_PARTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<|tool_call|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "<think>",
        "</think>",
    ),
    *("\n", " ", "text", "<", "[", "]", "{", "}", ",", ";", '"', "f", "</tool", "\\", "é"),
    *(
        "<function=f>",
        "<parameter=x>",
        "1",
        "</parameter>",
        "</function>",
        F,
        '{"name": "f", "parameters": {"x": 1',
        WEATHER,
    ),
    *(BEGIN, CALL, SEP, END, ENDS, "function", "```json\n", "```", f"{BEGIN}f{SEP}"),
    *('{"name": "f", ', '"arguments": ', '{"x": [1}', ": "),
]


@settings(max_examples=400)
@given(
    parts=st.lists(st.sampled_from(_PARTS), max_size=14),
    cuts=st.lists(st.integers(0, 400), max_size=20),
    family=st.sampled_from(sorted(TOOL_FAMILIES)),
    reasoning=st.sampled_from([None, *REASONING_PARSERS]),
    prompt=st.sampled_from(["", "<think>\n", "<think></think>"]),
)
def test_pieces_change_nothing(
    parts: list[str], cuts: list[int], family: str, reasoning: str | None, prompt: str
) -> None:
    text = "".join(parts)
    whole = joined(parse([text], family, reasoning, prompt))
    places = [0, *sorted({cut for cut in cuts if cut < len(text)}), len(text)]
    pieces = [text[begin:end] for begin, end in itertools.pairwise(places)]
    assert joined(parse(pieces, family, reasoning, prompt)) == whole
    assert joined(parse(list(text), family, reasoning, prompt)) == whole


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(arguments=st.dictionaries(st.text(max_size=8), _JSON, max_size=4), ascii_only=st.booleans())
def test_any_arguments_come_back(arguments: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=ascii_only)
    given = json.dumps(arguments, ensure_ascii=ascii_only)
    for family, written in (
        ("hermes", f"<tool_call>\n{text}\n</tool_call>"),
        ("mistral", f"[TOOL_CALLS][{text}]"),
        ("deepseek_v31", f"{BEGIN}f{SEP}{given}{END}{ENDS}"),
        ("deepseek_v3", f"{BEGIN}function{SEP}f\n```json\n{given}\n```{END}{ENDS}"),
    ):
        message = read(written, family)
        assert calls(message) == [("f", arguments)]
        assert message.content == ""


# Tables


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("…<tool_call>…", "hermes"),
        ("…<tool_call>…<function=name><parameter=x>…", "qwen3_coder"),
        ("…[TOOL_CALLS]…", "mistral"),
        ('<|start_header_id|>… {"name": function name, "parameters": dictionary}', "llama3_json"),
        ("<|tool_call|>…<|/tool_call|>", "phi4_mini_json"),
        ("<|tool_call|>…", "granite"),
        ("<｜tool▁calls▁begin｜>…```json…", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜>…", "deepseek_v31"),
        ("<|channel|>…<|message|>…", "openai"),
    ],
)
def test_the_family_is_seen_in_the_template(template: str, expected: str) -> None:
    family = tool_family("auto", [template], knows_tools=True)
    assert family is not None
    assert family.name == expected


def test_families_by_name_and_without_tools() -> None:
    assert tool_family("auto", ["…"], knows_tools=True) is None
    assert tool_family("auto", ["…"], knows_tools=False) is TOOL_FAMILIES["hermes"]
    assert tool_family("auto", ["[TOOL_CALLS]"], knows_tools=False) is TOOL_FAMILIES["hermes"]
    assert tool_family("auto", ["<｜tool▁calls▁begin｜>"], knows_tools=False) is TOOL_FAMILIES["deepseek_v31"]
    assert tool_family("mistral", ["<tool_call>"], knows_tools=True) is TOOL_FAMILIES["mistral"]
    assert reasoning_marks("auto", "… </think> …") is REASONING_PARSERS["qwen3"]
    assert reasoning_marks("auto", "…") is None
    assert reasoning_marks("none", "<think>") is None
    for check in (check_tool_parser, check_reasoning_parser):
        check("auto")
        with pytest.raises(InvalidParameterError, match="must be one of auto"):
            check("pythonic3")


def test_ids_fit_the_family() -> None:
    assert len(TOOL_FAMILIES["mistral"].new_id()) == 9
    assert TOOL_FAMILIES["mistral"].new_id().isalnum()
    assert TOOL_FAMILIES["hermes"].new_id().startswith("call_")
