"""Tool calls and reasoning over HTTP, driven by the openai client: whole answers and streams alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from http_server import TEMPLATE, RunningServer
from scripted import THINKING, say, scripted_engine

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
OTHER: Any = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def scripted() -> Iterator[RunningServer]:
    with RunningServer(scripted_engine()) as running:
        yield running


@pytest.fixture(scope="module")
def thinking() -> Iterator[RunningServer]:
    with RunningServer(scripted_engine(THINKING)) as running:
        yield running


def ask(server: RunningServer, text: str, **options: Any) -> Any:
    return server.client().chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": say(text)}], **options
    )


def streamed(server: RunningServer, text: str, **options: Any) -> Any:
    """A streamed answer put together as a client does it."""
    content, reasoning, reason = "", "", None
    calls: list[dict[str, Any]] = []
    for chunk in ask(server, text, stream=True, **options):
        for choice in chunk.choices:
            delta = choice.delta
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning_content", None) or ""
            reason = choice.finish_reason or reason
            for call in delta.tool_calls or []:
                if call.id is not None:
                    assert call.index == len(calls)
                    assert call.type == "function"
                    calls.append({"name": call.function.name, "arguments": ""})
                else:
                    assert call.function.name is None
                calls[call.index]["arguments"] += call.function.arguments or ""
    return content, reasoning, calls, reason


def both(server: RunningServer, text: str, **options: Any) -> Any:
    """(content, reasoning, calls, finish_reason), the same streamed and not."""
    answer = ask(server, text, **options).choices[0]
    message = answer.message
    calls = [{"name": c.function.name, "arguments": c.function.arguments} for c in message.tool_calls or []]
    whole = (message.content or "", getattr(message, "reasoning_content", None) or "", calls, answer.finish_reason)
    assert streamed(server, text, **options) == whole
    return whole


def test_a_call(scripted: RunningServer) -> None:
    content, _, calls, reason = both(scripted, f"I look.\n{CALL}", tools=[TOOL])
    assert (content, reason) == ("I look.", "tool_calls")
    assert calls == [{"name": "get_weather", "arguments": '{"city": "Köln"}'}]
    answer = ask(scripted, CALL, tools=[TOOL]).choices[0].message
    assert answer.content is None
    assert answer.tool_calls[0].id.startswith("call_")


def test_arguments_come_in_fragments(scripted: RunningServer) -> None:
    fragments = [
        call.function.arguments
        for chunk in ask(scripted, CALL, tools=[TOOL], stream=True)
        for choice in chunk.choices
        for call in choice.delta.tool_calls or []
    ]
    assert len(fragments) > 2, "a step may give several tokens at once, but not all of them"


def test_calls_in_parallel_or_one(scripted: RunningServer) -> None:
    two = CALL + "\n" + CALL.replace("Köln", "Bonn")
    assert [json.loads(c["arguments"])["city"] for c in both(scripted, two, tools=[TOOL])[2]] == ["Köln", "Bonn"]
    assert len(both(scripted, two, tools=[TOOL], parallel_tool_calls=False)[2]) == 1


def test_without_tools_it_is_text(scripted: RunningServer) -> None:
    for options in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        content, _, calls, reason = both(scripted, CALL, **options)
        assert (content, calls, reason) == (CALL, [], "stop")


def test_an_answer_without_a_call(scripted: RunningServer) -> None:
    assert both(scripted, "It is 3 < 4. ", tools=[TOOL]) == ("It is 3 < 4. ", "", [], "stop")


def test_a_call_that_is_cut_off_is_length(scripted: RunningServer) -> None:
    _, _, calls, reason = both(scripted, CALL, tools=[TOOL], max_tokens=60)
    assert reason == "length"
    assert calls[0]["name"] == "get_weather"


def test_logprobs_are_of_the_content(scripted: RunningServer) -> None:
    """As OpenAI's: the tokens of a call are in no text."""
    for text, content in ((CALL, ""), (f"Sure.\n{CALL}", "Sure.")):
        whole = ask(scripted, text, tools=[TOOL], logprobs=True)
        tokens = [
            token
            for chunk in ask(scripted, text, tools=[TOOL], logprobs=True, stream=True)
            for choice in chunk.choices
            if choice.logprobs
            for token in choice.logprobs.content
        ]
        assert tokens == whole.choices[0].logprobs.content
        assert "".join(token.token for token in tokens) == content


def test_the_history_reaches_the_template(scripted: RunningServer) -> None:
    messages: Any = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I need it.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Köln"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "Rain"}]},
    ]
    ids = scripted.post("/tokenize", {"messages": messages, "tools": [TOOL]}).json()["tokens"]
    text = scripted.post("/detokenize", {"tokens": ids}).json()["prompt"]
    assert '"name": "get_weather", "description"' in text
    assert (
        '<think>I need it.</think><tool_call>{"name": "get_weather", "arguments": {"city": "Köln"}}</tool_call>' in text
    )
    assert "<s>tool:Rain<|im_end|>" in text


def test_an_agent_loop(scripted: RunningServer) -> None:
    """The client's own objects go back as they came."""
    client = scripted.client()
    messages: list[Any] = [{"role": "user", "content": say(CALL)}]
    first = client.chat.completions.create(model="scripted", messages=messages, tools=[TOOL]).choices[0].message
    assert first.tool_calls
    messages += [first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": say("It rains.")}]
    second = client.chat.completions.create(model="scripted", messages=messages, tools=[TOOL]).choices[0]
    assert (second.message.content, second.finish_reason) == ("It rains.", "stop")


def test_a_template_without_tools() -> None:
    """The system message tells of them; calls and results of the history become text."""
    with RunningServer(scripted_engine(TEMPLATE)) as server:
        _, _, calls, reason = both(server, CALL, tools=[TOOL])
        assert (calls[0]["name"], reason) == ("get_weather", "tool_calls")
        messages: Any = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "function": {"name": "get_weather", "arguments": '{"city":"Bonn"}'}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "Rain"},
            {"role": "tool", "tool_call_id": "2", "content": "Sun"},
        ]
        ids = server.post("/tokenize", {"messages": messages, "tools": [TOOL]}).json()["tokens"]
        text = server.post("/detokenize", {"tokens": ids}).json()["prompt"]
        assert text.startswith("<s>system:Be brief.\n\nThese functions")
        assert '{"name": "get_weather", "description"' in text
        assert 'assistant:<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn"}}\n</tool_call>' in text
        assert "user:<tool_response>\nRain\n</tool_response>\n<tool_response>\nSun\n</tool_response><|im_end|>" in text
        assert text.endswith("<s>assistant:")


def test_a_template_whose_way_is_unknown() -> None:
    template = "{% if tools %}{% endif %}" + TEMPLATE
    with RunningServer(scripted_engine(template)) as server:
        error = server.refused(PATH, {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]})
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
        assert "--tool-call-parser" in error["message"]
    with RunningServer(scripted_engine(template), tool_call_parser="mistral") as server:
        text = '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "a"}}]'
        assert both(server, text, tools=[TOOL])[2] == [{"name": "get_weather", "arguments": '{"city": "a"}'}]
        assert len(ask(server, text, tools=[TOOL]).choices[0].message.tool_calls[0].id) == 9


def test_marks_that_are_control_tokens_are_read() -> None:
    engine = scripted_engine("{% if tools %}[TOOL_CALLS]{% endif %}" + TEMPLATE)
    tokenizer: Any = engine.tokenizer
    shown: list[bool] = []
    add: Any = engine.add_request

    def note(name: str, ids: Any, params: Any, **options: Any) -> None:
        shown.append(not params.skip_special_tokens)
        add(name, ids, params, **options)

    engine.add_request = note  # type: ignore[method-assign]
    with RunningServer(engine) as server:
        ask(server, "a", tools=[TOOL])
        tokenizer.special_tokens = {**tokenizer.special_tokens, "[TOOL_CALLS]": 259}
        ask(server, "a", tools=[TOOL])
        ask(server, "a")
    assert shown == [False, True, False]


# Reasoning


def test_c21_reasoning_opened_by_the_template(thinking: RunningServer) -> None:
    assert both(thinking, "Hm.\n</think>\n\nYes.")[:2] == ("Yes.", "Hm.")
    message = ask(thinking, "Hm.").choices[0].message
    assert (message.content, message.reasoning_content) == (None, "Hm.")
    for options in (
        {"reasoning_effort": "none"},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    ):
        assert both(thinking, "Yes.", **options)[:2] == ("Yes.", "")
    with pytest.raises(openai.BadRequestError) as caught:
        ask(thinking, "a", reasoning_effort="high")
    assert caught.value.param == "reasoning_effort"


def test_c21_reasoning_opened_by_the_model(scripted: RunningServer) -> None:
    assert both(scripted, "<think>Hm.</think>Yes.")[:2] == ("Yes.", "Hm.")
    content, reasoning, calls, reason = both(scripted, f"<think>\nHm.\n</think>\n\n{CALL}", tools=[TOOL])
    assert (content, reasoning, reason) == ("", "Hm.", "tool_calls")
    assert len(calls) == 1


def test_the_parser_can_be_chosen() -> None:
    with RunningServer(scripted_engine(), reasoning_parser="none") as server:
        assert both(server, "<think>Hm.</think>Yes.")[:2] == ("<think>Hm.</think>Yes.", "")
    with RunningServer(scripted_engine(), reasoning_parser="deepseek_r1") as server:
        assert both(server, "Hm.</think>Yes.")[:2] == ("Yes.", "Hm.")


def test_going_on_inside_reasoning(scripted: RunningServer) -> None:
    messages: Any = [{"role": "user", "content": say("so</think>Yes")}, {"role": "assistant", "content": "<think>"}]
    answer = scripted.client().chat.completions.create(
        model="scripted", messages=messages, extra_body={"continue_final_message": True}, max_tokens=200
    )
    message: Any = answer.choices[0].message
    assert message.reasoning_content is not None


# Refusals

HELLO = [{"role": "user", "content": "hello"}]
ASSISTANT = {"role": "assistant", "content": ""}


def _call(**changes: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    return {"id": "1", "type": "function", "function": function, **changes}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": ["f"]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
        ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "tools[0].function.x"),
        ({"tools": [{"type": "function", "function": {"name": "f"}, "y": 1}]}, "tools[0].y"),
        ({"tools": [TOOL, TOOL]}, "tools[1]"),
        ({"tools": [OTHER] * 129}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "description": "d" * 600_000}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": 3}, "cache_salt"),
        ({"priority": "high"}, "priority"),
        ({"priority": 2**40}, "priority"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [*HELLO, {**ASSISTANT, "tool_calls": {}}]}, "messages[1].tool_calls"),
        ({"messages": [*HELLO, {**ASSISTANT, "tool_calls": [{}]}]}, "messages[1].tool_calls[0]"),
        ({"messages": [*HELLO, {**ASSISTANT, "tool_calls": [_call(type="custom")]}]}, "messages[1].tool_calls[0]"),
        (
            {"messages": [*HELLO, {**ASSISTANT, "tool_calls": [_call(function={"name": "", "arguments": ""})]}]},
            "messages[1].tool_calls[0].function.name",
        ),
        (
            {"messages": [*HELLO, {**ASSISTANT, "tool_calls": [_call(function={"name": "f", "arguments": {}})]}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"messages": [*HELLO, {**ASSISTANT, "tool_calls": [_call(id=3)]}]}, "messages[1].tool_calls[0].id"),
        ({"messages": [*HELLO, {**ASSISTANT, "audio": {"id": "x"}}]}, "messages[1].audio"),
        ({"messages": [{"role": "user", "content": "a", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "function", "name": "f", "content": "a"}]}, "messages[0].role"),
    ],
)
def test_the_field_at_fault_is_named(scripted: RunningServer, fields: dict[str, Any], param: str) -> None:
    error = scripted.refused(PATH, {"messages": HELLO, **fields})
    assert error["param"] == param, error


def test_salts_keep_prefixes_apart_and_priority_is_passed_on(scripted: RunningServer) -> None:
    def cached(salt: str | None) -> int:
        body = {"messages": [{"role": "user", "content": say("ok") + " salted prompt" * 9}], "cache_salt": salt}
        answer = scripted.post(PATH, {**body, "priority": -3}).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached("a") == 0
    assert cached("a") >= 16
    assert cached("b") == 0
    assert cached(None) == 0
