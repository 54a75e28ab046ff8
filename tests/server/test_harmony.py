"""The harmony format of gpt-oss: its documents' examples, whole and in pieces, over HTTP, and as a grammar."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from http_server import ChatTokenizer, RunningServer, mock_model
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted import HARMONY, say, scripted_engine

from pellucid.sampling.constraints.compiler import GrammarCompiler
from pellucid.server.chat_format import chat_format
from pellucid.server.output.events import Content, Event, Message, Reasoning, ToolCall, joined, merged
from pellucid.server.output.families import TOOL_FAMILIES, tool_family
from pellucid.server.output.harmony import HarmonyParser
from pellucid.server.output.reasoning import REASONING_PARSERS, reasoning_marks
from pellucid.server.tools import ToolUse, parse_tools
from pellucid.structured_outputs import StructuredOutputsParams

PROMPT = "<|start|>user<|message|>What is 2 + 2?<|end|><|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"location":"San Francisco"}<|call|>'
WEATHER = ToolCall("get_weather", '{"location":"San Francisco"}')
NEXT = "<|end|><|start|>assistant"
PLAN = "**Action plan**:\n1. Generate an HTML file\n---\nWill start executing the plan step by step"
FILE = '{"template": "basic_html", "path": "index.html"}'


def parse(pieces: list[str], names: list[str] | None, prompt: str = PROMPT, **options: Any) -> Message:
    parser = HarmonyParser(names, prompt=prompt, **options)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    check_places("".join(pieces), events)
    assert joined(merged(events)) == joined(events)
    return joined(events)


def check_places(text: str, events: list[Event]) -> None:
    end = 0
    for event in events:
        if isinstance(event, Content | Reasoning) and event.at >= 0:
            assert event.at >= end
            end = event.at + len(event.text)
            assert text[event.at : end] == event.text


def read(text: str, names: list[str] | None = None, prompt: str = PROMPT, **options: Any) -> Message:
    """As one piece; checked against every cut in two, and one character at a time."""
    whole = parse([text], names, prompt, **options)
    for cut in range(1, len(text)):
        assert parse([text[:cut], text[cut:]], names, prompt, **options) == whole, cut
    assert parse(list(text), names, prompt, **options) == whole
    return whole


TOOLS = ["get_weather", "generate_file", "a.b-c:d/e_9"]
GOOD = [
    # OpenAI's document of the format
    (
        f'{ANALYSIS}User asks: "What is 2 + 2?" Simple arithmetic. Provide answer.<|end|>\n'
        f"<|start|>assistant{FINAL}2 + 2 = 4.<|return|>",
        Message("2 + 2 = 4.", 'User asks: "What is 2 + 2?" Simple arithmetic. Provide answer.', []),
    ),
    (
        f"{ANALYSIS}Need to use function get_weather.{NEXT}{CALL}",
        Message("", "Need to use function get_weather.", [WEATHER]),
    ),
    (
        f"{ANALYSIS}{{long chain of thought}}{NEXT}<|channel|>commentary<|message|>{PLAN}{NEXT}"
        f"<|channel|>commentary to=functions.generate_file<|constrain|>json<|message|>{FILE}<|call|>",
        Message(PLAN, "{long chain of thought}", [ToolCall("generate_file", FILE)]),
    ),
    # the recipient in the role's place, as the chat template writes it
    (
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"location":"San Francisco"}',
        Message("", "", [WEATHER]),
    ),
    (
        f"{ANALYSIS}a{NEXT} to=functions.a.b-c:d/e_9<|channel|>commentary<|message|>{{}}",
        Message("", "a", [ToolCall("a.b-c:d/e_9", "{}")]),
    ),
    # in other ways than the document says
    (CALL.removesuffix("<|call|>"), Message("", "", [WEATHER])),  # the token that ends an answer is not shown
    (CALL.replace("<|channel|>commentary", ANALYSIS.removesuffix("<|message|>")), Message("", "", [WEATHER])),
    (CALL.replace("functions.", ""), Message("", "", [WEATHER])),
    (f"{CALL}<|start|>assistant{CALL}", Message("", "", [WEATHER, WEATHER])),
    (f"{CALL.replace('<|call|>', NEXT)}{CALL}", Message("", "", [WEATHER, WEATHER])),
    (CALL.replace('{"location":"San Francisco"}', ""), Message("", "", [ToolCall("get_weather", "{}")])),
    (
        CALL.replace('"San', '"<|en San <b>'),
        Message("", "", [ToolCall("get_weather", '{"location":"<|en San <b> Francisco"}')]),
    ),
    (
        CALL.replace("}<|call|>", ""),
        Message("", "", [ToolCall("get_weather", '{"location":"San Francisco"')]),
    ),  # cut off
    (f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c", Message("c", "a\n\nb", [])),
    (f"<|channel|>commentary<|message|>a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c", Message("a\n\nc", "b", [])),
    (f"{ANALYSIS}a{NEXT}{ANALYSIS}{NEXT}{FINAL}", Message("", "a", [])),
    (f"{FINAL} a\n", Message(" a\n", "", [])),
    ("<|message|>a<|end|>", Message("a", "", [])),
    (f"{ANALYSIS}a<|start|>assistant{FINAL}b", Message("b", "a", [])),  # the first message has no end
    (f"{ANALYSIS}a<|end|>{FINAL}b", Message("b", "a", [])),  # the second has no beginning
    (f"{ANALYSIS}a<|end|><|end|>\n<|start|>assistant{FINAL}b", Message("b", "a", [])),
    (f"{ANALYSIS}print(1){NEXT}<|channel|>commentary to=python code<|message|>2", Message("2", "print(1)", [])),
    ("<|channel|>analysis to=python code<|message|>print(1)<|call|>", Message("", "print(1)", [])),
    # cut off in a head
    (f"{ANALYSIS}a<|end|><|start|>assistant<|channel|>fin", Message("", "a", [])),
    ("<|channel|>", Message("", "", [])),
    (f"{ANALYSIS}a<|end|>\n", Message("", "a", [])),
]


@pytest.mark.parametrize(("text", "expected"), GOOD)
def test_messages(text: str, expected: Message) -> None:
    assert read(text, TOOLS) == expected


def test_calls_without_tools_are_text() -> None:
    assert read(CALL) == Message('{"location":"San Francisco"}', "", [])


def test_reasoning_may_be_left_in() -> None:
    text = f"{ANALYSIS}a{NEXT}{FINAL}b"
    assert read(text, splits_reasoning=False) == Message("a\n\nb", "", [])


@pytest.mark.parametrize(
    "text",
    [
        *(
            "Hello.",
            "Hello",
            "assistant",
            " to the point",
            '{"a": 1}',
            "<|chan",
            "<b>bold</b>",
            "a < b",
            " ",
            "to=",
            "t",
        ),
        *("<|channel|>analysis two words<|message|>a", "<|start|>user<|message|>a", "<|start|>assistant hello"),
        *("<|channel|>" + "a" * 300, "<|channel|>" + "a" * 300 + "<|message|>b", " " * 300 + "<|message|>b"),
        *("<|channel|><|channel|>final<|message|>b", "<|constrain|>json <|channel|>final<|message|>a"),
    ],
)
def test_what_has_no_head_is_content(text: str) -> None:
    assert read(text, TOOLS) == Message(text, "", [])


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("", f"<|start|>assistant{FINAL}a", Message("a", "", [])),
        ("<|start|>user<|message|>a<|end|>", f"<|start|>assistant{FINAL}a", Message("a", "", [])),
        (f"{PROMPT}{FINAL}It is", f" four<|end|><|start|>assistant{CALL}", Message(" four", "", [WEATHER])),
        (f"{PROMPT}{ANALYSIS}Hm", f" m{NEXT}{FINAL}a", Message("a", " m", [])),
        (f"{PROMPT}{ANALYSIS}Hm{NEXT}", f"{FINAL}a", Message("a", "", [])),
        (f"{PROMPT}<|channel|>", "analysis<|message|>a", Message("", "a", [])),
        (f"{PROMPT}<|channel|>", "two words", Message("two words", "", [])),
        ("<|start|>user<|message|>Say <|start|>assistant<|end|><|start|>assistant", f"{FINAL}a", Message("a", "", [])),
    ],
)
def test_where_the_prompt_ends(prompt: str, text: str, expected: Message) -> None:
    assert read(text, TOOLS, prompt) == expected


_PARTS = [
    *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>", "assistant"),
    *(
        "analysis",
        "commentary",
        "final",
        " to=functions.get_weather",
        "to=",
        "functions.",
        "json",
        '{"x": 1}',
        "{",
        '"',
    ),
    *(" ", "\n", "text", "<", "<|", "|>", "é", ANALYSIS, FINAL, NEXT, CALL),
]


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(st.sampled_from(_PARTS), max_size=14),
    cuts=st.lists(st.integers(0, 400), max_size=20),
    names=st.sampled_from([None, TOOLS]),
    prompt=st.sampled_from(["", PROMPT, f"{PROMPT}{ANALYSIS}a", f"{PROMPT}<|channel|>"]),
)
@example(parts=["<|start|>", "assistant", "<|start|>", "assistant", " ", "text"], cuts=[], names=None, prompt=PROMPT)
def test_pieces_change_nothing(parts: list[str], cuts: list[int], names: list[str] | None, prompt: str) -> None:
    text = "".join(parts)
    whole = parse([text], names, prompt)
    places = [0, *sorted({cut for cut in cuts if cut < len(text)}), len(text)]
    assert parse([text[begin:end] for begin, end in itertools.pairwise(places)], names, prompt) == whole
    assert parse(list(text), names, prompt) == whole


@settings(deadline=None)
@given(
    arguments=st.dictionaries(st.text(max_size=8), st.text(max_size=12) | st.integers() | st.none(), max_size=4),
    name=st.from_regex(r"[A-Za-z0-9_.:/-]{1,20}", fullmatch=True),
    ascii_only=st.booleans(),
)
def test_any_call_comes_back(arguments: dict[str, Any], name: str, ascii_only: bool) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii_only)
    for head in (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json",
        f" to=functions.{name}<|channel|>commentary json",
    ):
        whole = f"{head}<|message|>{text}<|call|>"
        assert parse([whole], [name]) == parse(list(whole), [name]) == Message("", "", [ToolCall(name, text)])


def test_the_template_shows_it() -> None:
    assert tool_family("auto", [HARMONY], knows_tools=True) is TOOL_FAMILIES["openai"]
    assert reasoning_marks("auto", HARMONY) is REASONING_PARSERS["openai_gptoss"]
    tokenizer = ChatTokenizer()
    tokenizer.chat_template = HARMONY
    tokenizer.chat_templates = {}
    assert not chat_format(tokenizer, "auto", "auto").reads_control_tokens(None)
    tokenizer.special_tokens = {**tokenizer.special_tokens, "<|channel|>": 300, "<|message|>": 301, "<|end|>": 302}
    assert chat_format(tokenizer, "auto", "auto").reads_control_tokens(None)


def test_tokens_of_reasoning_are_counted() -> None:
    tokenizer = ChatTokenizer()
    tokenizer.chat_template = HARMONY
    tokenizer.chat_templates = {}
    format = chat_format(tokenizer, "auto", "auto")
    thought = f"{ANALYSIS}Hm.<|end|>"
    for text, count in (
        (f"{thought}<|start|>assistant{FINAL}a", len(thought)),
        (FINAL + "a", 0),
        (thought, len(thought)),
    ):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert format.num_reasoning_tokens(ids, PROMPT, "", tokenizer, skip_special_tokens=False) == count


# Over HTTP

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"location": {"enum": ["Bonn", "San Francisco"]}},
            "required": ["location"],
            "additionalProperties": False,
        },
    },
}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer(scripted_engine(HARMONY)) as running:
        yield running


def both(server: RunningServer, text: str, **options: Any) -> tuple[Message, str]:
    """The message and the finish_reason, the same streamed and not."""
    body = {"messages": [{"role": "user", "content": say(text)}], **options}
    choice = server.post(PATH, body).json()["choices"][0]
    whole = Message(choice["message"]["content"] or "", choice["message"].get("reasoning_content", ""), [])
    whole.calls += [ToolCall(**call["function"]) for call in choice["message"].get("tool_calls", ())]
    told, reason = Message("", "", []), None
    client = server.client()
    for chunk in client.chat.completions.create(model="scripted", stream=True, **body):
        delta = chunk.choices[0].delta
        told.content += delta.content or ""
        told.reasoning += getattr(delta, "reasoning_content", None) or ""
        for call in delta.tool_calls or ():
            if call.function.name is not None:
                told.calls.append(ToolCall(call.function.name))
            told.calls[call.index].arguments += call.function.arguments or ""
        reason = chunk.choices[0].finish_reason or reason
    assert (told, reason) == (whole, choice["finish_reason"])
    return whole, choice["finish_reason"]


def test_answers_over_http(server: RunningServer) -> None:
    assert both(server, f"{ANALYSIS}Hm.{NEXT}{FINAL}4.") == (Message("4.", "Hm.", []), "stop")
    assert both(server, f"{ANALYSIS}Hm.{NEXT}{CALL}", tools=[TOOL]) == (Message("", "Hm.", [WEATHER]), "tool_calls")
    assert both(server, f"{CALL}<|start|>assistant{CALL}", tools=[TOOL], parallel_tool_calls=False)[0].calls == [
        WEATHER
    ]
    assert both(server, "No head.") == (Message("No head.", "", []), "stop")
    usage = server.post(PATH, {"messages": [{"role": "user", "content": say(f"{ANALYSIS}Hm.{NEXT}{FINAL}4.")}]}).json()[
        "usage"
    ]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len(f"{ANALYSIS}Hm.<|end|>")}


def test_responses(server: RunningServer) -> None:
    tool = {"type": "function", **TOOL["function"]}
    answer = server.post("/v1/responses", {"input": say(f"{ANALYSIS}Hm.{NEXT}{CALL}"), "tools": [tool]}).json()
    assert [item["type"] for item in answer["output"]] == ["reasoning", "function_call"]
    assert answer["output"][1]["arguments"] == WEATHER.arguments


def test_logprobs_are_of_the_content(server: RunningServer) -> None:
    body = {
        "messages": [{"role": "user", "content": say(f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}cd")}],
        "logprobs": True,
    }
    choice = server.post(PATH, body).json()["choices"][0]
    assert choice["message"]["reasoning_content"] == "a\n\nb"
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["c", "d"]
    assert [entry["token"] for entry in choice["logprobs"]["reasoning_content"]] == ["a", "b"]


def test_reasoning_off(server: RunningServer) -> None:
    with RunningServer(scripted_engine(HARMONY), reasoning_parser="none") as other:
        text = f"{ANALYSIS}Hm.{NEXT}{FINAL}4."
        assert both(other, text)[0] == Message(text, "", [])
        assert both(other, f"{ANALYSIS}Hm.{NEXT}{CALL}", tools=[TOOL])[0] == Message("Hm.", "", [WEATHER])


def test_the_history_reaches_the_template(server: RunningServer) -> None:
    def call(name: str, city: str) -> dict[str, Any]:
        return {
            "id": name,
            "type": "function",
            "function": {"name": "get_weather", "arguments": f'{{"location":"{city}"}}'},
        }

    messages: list[Any] = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Two.",
            "reasoning_content": "Hm.",
            "tool_calls": [call("1", "Bonn"), call("2", "Köln")],
        },
        {"role": "tool", "tool_call_id": "2", "content": "Sun"},
        {"role": "tool", "tool_call_id": "1", "content": "Rain"},
        {"role": "assistant", "content": "Both.", "reasoning_content": "Hm."},
        {"role": "user", "content": "Thanks."},
    ]
    ids = server.post("/tokenize", {"messages": messages}).json()["tokens"]
    head = "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
    result = "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"
    assert server.post("/detokenize", {"tokens": ids}).json()["prompt"] == (
        "<|start|>user<|message|>Weather?<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.\n\nTwo.<|end|>"
        f'{head}{{"location": "Bonn"}}<|call|>{result}Rain<|end|>{head}{{"location": "Köln"}}<|call|>{result}Sun<|end|>'
        "<|start|>assistant<|channel|>final<|message|>Both.<|end|><|start|>user<|message|>Thanks.<|end|>"
        "<s>assistant:<|start|>assistant"
    )


# Grammars

TOKENIZER = ChatTokenizer()
TOKENIZER.chat_template = HARMONY
TOKENIZER.chat_templates = {}
COMPILER = GrammarCompiler(TOKENIZER, mock_model.VOCAB_SIZE)
BONN = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"location": "Bonn"}'
TIME = "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}"
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}
LAX = {"type": "function", "function": {"name": "get_time"}}


def takes(text: str, body: dict[str, Any], prompt: str = PROMPT, shape: StructuredOutputsParams | None = None) -> bool:
    """Whether the text is a whole answer."""
    use: ToolUse | None = parse_tools(body)
    params = chat_format(TOKENIZER, "auto", "auto").shape(use, shape, prompt, "", {})
    assert params is not None
    constraint = COMPILER.compile(params).start()
    for token_id in TOKENIZER.encode(text, add_special_tokens=False):
        constraint.fill_mask()
        if constraint.error is not None or not constraint.mask[token_id // 32] >> (token_id % 32) & 1:
            return False
        constraint.advance(token_id)
    return bool(constraint.may_end)


@pytest.mark.parametrize(
    "before", ["", f"{ANALYSIS}Hm < x.{NEXT}", f"{ANALYSIS}a{NEXT}<|channel|>commentary<|message|>b{NEXT}"]
)
def test_calls_are_forced(before: str) -> None:
    required = {"tools": [TOOL, LAX], "tool_choice": "required"}
    named = {"tools": [TOOL, LAX], "tool_choice": {"type": "function", "function": {"name": "get_time"}}}
    assert takes(before + BONN, required)
    assert takes(before + TIME, required)
    assert takes(before + TIME, named)
    assert not takes(before + BONN, named)
    assert not takes(before + BONN.replace("Bonn", "Rome"), required)
    assert not takes(f"{before}{FINAL}No.", required)
    assert takes(f"{before}{BONN}{NEXT}{TIME}", required)
    assert not takes(f"{before}{BONN}{NEXT}{TIME}", {**required, "parallel_tool_calls": False})
    assert parse([before + BONN], ["get_weather"]).calls == [ToolCall("get_weather", '{"location": "Bonn"}')]


def test_strict_tools_and_shapes() -> None:
    strict = {"tools": [STRICT, LAX]}
    for text in (f"{FINAL}No.", BONN, f"{ANALYSIS}a{NEXT}{BONN}", f"{ANALYSIS}a{NEXT}{FINAL}b"):
        assert takes(text, strict)
    assert not takes(BONN.replace("Bonn", "Rome"), strict)
    shape = StructuredOutputsParams(choice=("yes", "no"))
    assert takes(f"{FINAL}yes", {}, shape=shape)
    assert takes(f"{ANALYSIS}Hm.{NEXT}{FINAL}no", {}, shape=shape)
    assert not takes(f"{FINAL}perhaps", {}, shape=shape)
    assert not takes("yes", {}, shape=shape)
    assert takes(f"{FINAL}yes", {"tools": [TOOL]}, shape=shape)
    assert takes(BONN, {"tools": [TOOL]}, shape=shape)


def test_where_the_prompt_ends_for_grammars() -> None:
    required = {"tools": [TOOL], "tool_choice": "required"}
    shape = StructuredOutputsParams(choice=("yes", "no"))
    assert takes(f" m.{NEXT}{BONN}", required, f"{PROMPT}{ANALYSIS}H")
    assert takes(f" m.{NEXT}{FINAL}no", {}, f"{PROMPT}{ANALYSIS}H", shape)
    assert takes("no", {}, f"{PROMPT}{FINAL}", shape)
    assert takes(f"<|start|>assistant{BONN}", required, "<|start|>user<|message|>a<|end|>")
    assert not takes(BONN, required, "<|start|>user<|message|>a<|end|>")


def test_marks_that_are_control_tokens_are_asked_for_by_id() -> None:
    controls = {"<|channel|>": 7, "<|message|>": 8, "<|constrain|>": 9, "<|end|>": 10, "<|start|>": 11}
    use = parse_tools({"tools": [TOOL], "tool_choice": "required"})
    params = chat_format(TOKENIZER, "auto", "auto").shape(use, None, PROMPT, "", controls)
    assert params is not None
    assert "<[7]>" in str(params.grammar)
    assert "<|" not in str(params.grammar)


def test_control_tokens_part_the_messages() -> None:
    """With the marks as tokens of their own, as gpt-oss has them: text cannot have them inside."""
    marks = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"]
    controls = dict(zip(marks, mock_model.SPECIAL, strict=False))
    use = parse_tools({"tools": [TOOL, LAX], "tool_choice": "required"})
    params = chat_format(TOKENIZER, "auto", "auto").shape(use, None, PROMPT, "", controls)
    assert params is not None
    constraint = COMPILER.compile(params).start()
    text = f"{ANALYSIS}a < b{NEXT}<|channel|>commentary<|message|>c{NEXT}{BONN}{NEXT}{TIME}"
    for piece in re.split(f"({'|'.join(map(re.escape, marks))})", text):
        for token_id in [controls[piece]] if piece in controls else piece.encode():
            constraint.fill_mask()
            assert constraint.error is None
            assert constraint.mask[token_id // 32] >> (token_id % 32) & 1, piece
            constraint.advance(token_id)
    assert constraint.may_end
