"""What answers must be: calls in the form of each family, shapes, reasoning before them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from http_server import ChatTokenizer, RunningServer, mock_engine, mock_model
from pydantic import BaseModel
from scripted import QWEN_LIKE, THINKING, say, scripted_engine

from pellucid.sampling.constraints.compiler import GrammarCompiler
from pellucid.server.answer_grammar import answer_grammar
from pellucid.server.api_errors import ApiError
from pellucid.server.output.events import joined
from pellucid.server.output.families import TOOL_FAMILIES
from pellucid.server.output.reasoning import REASONING_PARSERS
from pellucid.server.tools import parse_tools
from pellucid.structured_outputs import StructuredOutputsParams

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"x": {"$ref": "#/$defs/number"}, "s": {"type": "string"}},
                "required": ["x"],
                "additionalProperties": False,
                "$defs": {"number": {"type": "integer"}},
            },
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "g"}},
]
TOKENIZER = ChatTokenizer()
COMPILER = GrammarCompiler(TOKENIZER, mock_model.VOCAB_SIZE)
QWEN = REASONING_PARSERS["qwen3"]

GOOD: dict[str, list[str]] = {
    "hermes": [
        '<tool_call>\n{"name": "f", "arguments": {"x": 1, "s": "</tool_call>"}}\n</tool_call>',
        '<tool_call>\n{"name": "g", "arguments": {"y": [1]}}\n</tool_call>',
    ],
    "qwen3_coder": [
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=s>\na < b\n</parameter>\n</function>\n"
        "</tool_call>",
        "<tool_call>\n<function=g>\n<parameter=y>\nz\n</parameter>\n</function>\n</tool_call>",
    ],
    "granite": ['<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]', '<|tool_call|>[{"name": "g", "arguments": {}}]'],
    "phi4_mini_json": [
        '<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]<|/tool_call|>',
        '<|tool_call|>[{"name": "g", "arguments": {}}]<|/tool_call|>',
    ],
    "mistral": ['[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]', '[TOOL_CALLS][{"name": "g", "arguments": {}}]'],
    "deepseek_v3": [
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"x": 1, "s": "``` <｜tool▁call▁end｜>"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ],
    "deepseek_v31": [
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ],
    "llama3_json": ['{"name": "f", "parameters": {"x": 1}}', '{"name": "g", "parameters": {}}'],
}
FAMILIES = sorted(name for name, family in TOOL_FAMILIES.items() if not family.is_harmony)
BAD_ARGUMENT = ('"x": 1', '"x": "a"'), ("<parameter=x>\n1", "<parameter=x>\na")


def grammar(family: str, body: dict[str, Any], **options: Any) -> StructuredOutputsParams | None:
    use = parse_tools({"tools": TOOLS, **body})
    arguments = {"controls": {}, "marks": None, "is_open": False, "shape": None, **options}
    return answer_grammar(family=TOOL_FAMILIES[family], use=use, **arguments)


def takes(params: StructuredOutputsParams | None, text: str) -> bool:
    """Whether the text is a whole answer of the shape."""
    assert params is not None
    constraint = COMPILER.compile(params).start()
    for token_id in TOKENIZER.encode(text):
        constraint.fill_mask()
        if constraint.error is not None or not constraint.mask[token_id // 32] >> (token_id % 32) & 1:
            return False
        constraint.advance(token_id)
    return constraint.may_end


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_every_family(family: str) -> None:
    """What the grammar takes, the family's parser reads."""
    required = grammar(family, {"tool_choice": "required"})
    named = grammar(family, {"tool_choice": {"type": "function", "function": {"name": "g"}}})
    strict = grammar(family, {})
    call_f, call_g = GOOD[family]
    wrong = call_f
    for good, bad in BAD_ARGUMENT:
        wrong = wrong.replace(good, bad)
    for call, name in ((call_f, "f"), (call_g, "g")):
        parser = TOOL_FAMILIES[family].parser({"f": {}, "g": {}})
        read = joined(parser.push(call) + parser.finish())
        assert [one.name for one in read.calls] == [name]
        assert takes(required, call)
        assert takes(strict, call)
        assert takes(named, call) == (name == "g")
    assert not takes(required, wrong)
    assert not takes(strict, wrong)
    assert not takes(required, "Hello.")
    assert takes(strict, "Hello.")
    if not TOOL_FAMILIES[family].marks.may_lack:
        assert takes(strict, f"I look. {call_f}")
        assert not takes(strict, f"I look. {wrong}")


@pytest.mark.parametrize("family", FAMILIES)
def test_one_call_or_several(family: str) -> None:
    call_f, call_g = GOOD[family]
    form = TOOL_FAMILIES[family].form
    inner = [c.removeprefix(form.head).removesuffix(form.foot) for c in (call_f, call_g)]
    two = form.head + form.between.join(inner) + form.foot
    parser = TOOL_FAMILIES[family].parser({"f": {}, "g": {}})
    assert [one.name for one in joined(parser.push(two) + parser.finish()).calls] == ["f", "g"]
    for body in ({"tool_choice": "required"}, {}):
        assert takes(grammar(family, body), two)
        assert not takes(grammar(family, {**body, "parallel_tool_calls": False}), two)


def test_reasoning_comes_first() -> None:
    call = GOOD["hermes"][0]
    for is_open in (False, True):
        params = grammar("hermes", {"tool_choice": "required"}, marks=QWEN, is_open=is_open)
        assert takes(params, f"<think>Hm < x.</think>\n\n{call}")
        assert takes(params, f"Hm.</think>{call}") == is_open
        assert takes(params, call) == (not is_open)
        shape = StructuredOutputsParams(choice=("yes", "no"))
        params = answer_grammar({}, QWEN, is_open, None, None, shape)
        assert takes(params, "<think>Hm.</think>\n\nyes")
        assert takes(params, "yes") == (not is_open)
        assert not takes(params, "<think>Hm.</think>perhaps")


def test_a_shape_or_calls() -> None:
    params = grammar("hermes", {}, shape=StructuredOutputsParams(json_object=True))
    assert takes(params, '{"a": 1}')
    assert takes(params, GOOD["hermes"][0])
    assert not takes(params, "Hello.")


def test_nothing_to_enforce() -> None:
    lax = {"tools": [TOOLS[1]]}
    assert grammar("hermes", lax) is None
    assert answer_grammar({}, QWEN, False, None, None, None) is None
    shape = StructuredOutputsParams(json_object=True)
    assert answer_grammar({}, None, False, None, None, shape) is shape


def test_marks_that_are_control_tokens_are_asked_for_by_id() -> None:
    text = grammar("hermes", {"tool_choice": "required"}, controls={"<tool_call>": 7, "</tool_call>": 8})
    assert text is not None
    assert "<[7]>" in str(text.grammar)
    assert "<tool_call>" not in str(text.grammar)


# Over HTTP

POINT: Any = {
    "type": "function",
    "function": {
        "name": "point",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
            "required": ["x", "kind"],
            "additionalProperties": False,
        },
    },
}
OTHER: Any = {
    "type": "function",
    "function": {"name": "other", "parameters": {"type": "object", "additionalProperties": False}},
}
PATH = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def random_server() -> Iterator[RunningServer]:
    """A model that writes letters at random, unless something is enforced."""
    engine = mock_engine()
    tokenizer: Any = engine.tokenizer
    tokenizer.chat_template = QWEN_LIKE
    tokenizer.chat_templates = {"default": QWEN_LIKE}
    with RunningServer(engine, reasoning_parser="none") as running:
        yield running


@pytest.mark.parametrize("seed", range(6))
def test_required_and_named(random_server: RunningServer, seed: int) -> None:
    client = random_server.client()
    options: Any = {"model": "mock", "messages": HELLO, "seed": seed, "parallel_tool_calls": False}
    choice = client.chat.completions.create(tools=[POINT, OTHER], tool_choice="required", **options).choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.function.name in ("point", "other")
    json.loads(call.function.arguments)
    named = {"type": "function", "function": {"name": "point"}}
    choice = client.chat.completions.create(tools=[OTHER, POINT], tool_choice=named, **options).choices[0]
    [call] = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "point"
    assert isinstance(arguments["x"], bool)
    assert arguments["kind"] in ("a", "b")
    stream = client.chat.completions.create(tools=[OTHER, POINT], tool_choice=named, stream=True, **options)
    text = "".join(
        one.function.arguments for chunk in stream for c in chunk.choices for one in c.delta.tool_calls or []
    )
    assert text == call.function.arguments


def test_parse_with_tools_and_a_format() -> None:
    """The client's `parse`: strict tools made from pydantic models, and a format beside them."""
    import openai

    class GetWeather(BaseModel):
        city: str

    class Answer(BaseModel):
        text: str

    tool = openai.pydantic_function_tool(GetWeather)
    with RunningServer(scripted_engine()) as server:
        call = '<tool_call>\n{"name": "GetWeather", "arguments": {"city": "Bonn"}}\n</tool_call>'
        for text, city in ((f"I look. {call}", "Bonn"), ("No call.", None)):
            parsed = server.client().chat.completions.parse(
                model="scripted", messages=[{"role": "user", "content": say(text)}], tools=[tool]
            )
            calls = parsed.choices[0].message.tool_calls or []
            assert [one.function.parsed_arguments for one in calls] == ([GetWeather(city=city)] if city else [])
        for text in (call, '{"text": "ok"}'):
            parsed = server.client().chat.completions.parse(
                model="scripted",
                messages=[{"role": "user", "content": say(text)}],
                tools=[tool],
                response_format=Answer,
            )
            message = parsed.choices[0].message
            assert message.parsed == (None if text == call else Answer(text="ok"))
            assert bool(message.tool_calls) == (text == call)


def test_reasoning_before_a_format() -> None:
    with RunningServer(scripted_engine(THINKING)) as server:
        body = {
            "messages": [{"role": "user", "content": say('Hm.\n</think>\n\n{"a": 1}')}],
            "response_format": {"type": "json_object"},
        }
        message = server.post(PATH, body).json()["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ('{"a": 1}', "Hm.")


def test_what_cannot_be_enforced_is_refused(random_server: RunningServer) -> None:
    def tool(schema: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "t", "parameters": schema}}

    for schema in ({"properties": {"a": {"type": "no such type"}}}, {"properties": {"a": {"divisibleBy": 3}}}):
        error = random_server.refused(
            PATH, {"messages": HELLO, "tools": [OTHER, tool(schema)], "tool_choice": "required"}
        )
        assert error["param"].startswith("tools"), error
        lax = {"messages": HELLO, "tools": [tool(schema)], "max_tokens": 2}
        assert random_server.post(PATH, lax).status_code == 200
    grammar_and_tools = {"messages": HELLO, "tools": [POINT], "structured_outputs": {"grammar": 'start: "a"'}}
    assert random_server.refused(PATH, grammar_and_tools)["param"] == "structured_outputs"


def test_tools_too_large_for_a_grammar() -> None:
    large = [
        {"type": "function", "function": {"name": f"t{i}", "parameters": {"description": "d" * 2000}}}
        for i in range(40)
    ]
    hermes = TOOL_FAMILIES["hermes"]
    with pytest.raises(ApiError, match="name one of them") as caught:
        answer_grammar({}, None, False, hermes, parse_tools({"tools": large, "tool_choice": "required"}), None)
    assert caught.value.param == "tools"
    named = {"type": "function", "function": {"name": "t3"}}
    assert answer_grammar({}, None, False, hermes, parse_tools({"tools": large, "tool_choice": named}), None)
