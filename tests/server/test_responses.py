"""/v1/responses, driven by the openai client; every body and event is checked against the client's own types."""

from __future__ import annotations

import asyncio
import json
import typing
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from http_server import RunningServer, mock_engine
from openai.types import responses as types
from pydantic import TypeAdapter
from scripted import THINKING, say, scripted_engine

from pellucid.server.responses.fields import RESPONSES

PATH = "/v1/responses"
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
LOGPROBS = "message.output_text.logprobs"
_EVENT: Any = TypeAdapter(types.ResponseStreamEvent)


@pytest.fixture(scope="module")
def scripted() -> Iterator[RunningServer]:
    with RunningServer(scripted_engine()) as running:
        yield running


@pytest.fixture(scope="module")
def thinking() -> Iterator[RunningServer]:
    with RunningServer(scripted_engine(THINKING)) as running:
        yield running


def ask(server: RunningServer, text: str, **options: Any) -> Any:
    return server.client().responses.create(model="scripted", input=say(text), **options)


def events_of(server: RunningServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, numbered without gaps, each of the type that its name says."""
    text = server.post(PATH, {**body, "stream": True}).text
    events = []
    for block in text.strip().split("\n\n"):
        head, data = block.split("\n", 1)
        event = json.loads(data.removeprefix("data: "))
        assert head == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        _EVENT.validate_python(event)
        events.append(event)
    return events


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """What two answers to one question have in common."""
    plain: dict[str, Any] = json.loads(json.dumps(response))
    for holder in (plain, *plain["output"]):
        holder.pop("id", None)
        holder.pop("call_id", None)
    plain.pop("created_at")
    plain["usage"].pop("input_tokens_details")
    return plain


def both(server: RunningServer, body: dict[str, Any]) -> dict[str, Any]:
    """The response object, the same streamed and not."""
    body = {"seed": 1, **body}
    answer = server.post(PATH, body)
    assert answer.status_code == 200, answer.text
    types.Response.model_validate(answer.json())
    events = events_of(server, body)
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    assert without_ids(events[-1]["response"]) == without_ids(answer.json())
    assert put_together(events) == events[-1]["response"]["output"]
    whole: dict[str, Any] = answer.json()
    return whole


def put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output as a client builds it from the events alone."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            assert event["item"]["status"] == "in_progress"
            items.append(event["item"])
        elif kind == "content_part.added":
            items[-1]["content"].append(event["part"])
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            assert event["item_id"] == items[-1]["id"]
            items[-1]["content"][0]["text"] += event["delta"]
            items[-1]["content"][0].get("logprobs", []).extend(event.get("logprobs", []))
        elif kind == "function_call_arguments.delta":
            items[-1]["arguments"] += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == items[-1]["content"][0]["text"]
        elif kind == "content_part.done":
            assert event["part"] == items[-1]["content"][0]
        elif kind == "output_item.done":
            items[-1]["status"] = event["item"]["status"]
            assert event["item"] == items[-1]
    return items


def test_a_text(scripted: RunningServer) -> None:
    answer = ask(scripted, "Hello.", instructions="Be brief.", metadata={"a": "b"})
    assert answer.output_text == "Hello."
    assert (answer.status, answer.object, answer.store) == ("completed", "response", False)
    assert answer.id.startswith("resp_")
    assert (answer.instructions, answer.metadata) == ("Be brief.", {"a": "b"})
    assert answer.usage.output_tokens == 7
    assert answer.usage.total_tokens == answer.usage.input_tokens + 7
    whole = both(scripted, {"input": say("Hello.")})
    [item] = whole["output"]
    assert item["content"] == [{"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}]


def test_the_events_of_a_text(scripted: RunningServer) -> None:
    kinds = [event["type"].removeprefix("response.") for event in events_of(scripted, {"input": say("Hi")})]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]


def test_an_empty_answer_is_an_empty_message(scripted: RunningServer) -> None:
    assert both(scripted, {"input": say("")})["output"][0]["content"][0]["text"] == ""


def test_an_answer_that_is_cut_off(scripted: RunningServer) -> None:
    whole = both(scripted, {"input": say("A longer answer."), "max_output_tokens": 4})
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["output"][0]["status"] == "incomplete"
    assert whole["output"][0]["content"][0]["text"] == "A lo"


def test_calls(scripted: RunningServer) -> None:
    whole = both(scripted, {"input": say(f"I look.\n{CALL}{CALL}"), "tools": [TOOL]})
    assert [item["type"] for item in whole["output"]] == ["message", "function_call", "function_call"]
    call = whole["output"][1]
    assert (call["name"], json.loads(call["arguments"]), call["status"]) == (
        "get_weather",
        {"city": "Köln"},
        "completed",
    )
    assert call["call_id"].startswith("call_")
    assert whole["output"][2]["call_id"] != call["call_id"]
    assert (
        len(both(scripted, {"input": say(CALL + CALL), "tools": [TOOL], "parallel_tool_calls": False})["output"]) == 1
    )


def test_an_agent_loop(scripted: RunningServer) -> None:
    """The client's own objects go back as they came."""
    client = scripted.client()
    items: list[Any] = [{"role": "user", "content": say(f"<think>Hm.</think>I look.\n{CALL}")}]
    first = client.responses.create(model="scripted", input=items, tools=[TOOL])
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    items += first.output
    items.append({"type": "function_call_output", "call_id": first.output[2].call_id, "output": say("It rains.")})
    second = client.responses.create(model="scripted", input=items, tools=[TOOL])
    assert second.output_text == "It rains."


def test_the_history_reaches_the_template_as_messages(scripted: RunningServer) -> None:
    items: list[Any] = [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": [{"type": "input_text", "text": "U"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "A", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "message", "role": "assistant", "content": "B"},
    ]
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "system", "content": "I\n\nD"},
        {"role": "user", "content": "U"},
        {
            "role": "assistant",
            "content": "A",
            "reasoning_content": "R",
            "tool_calls": [{"id": "c1", **call}, {"id": "c2", "function": {"name": "g", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": "B"},
    ]
    answer = scripted.post(PATH, {"input": items, "instructions": "I", "max_output_tokens": 1}).json()
    tokens = scripted.post("/tokenize", {"messages": messages}).json()
    assert answer["usage"]["input_tokens"] == tokens["count"]


def test_c21_reasoning(thinking: RunningServer) -> None:
    whole = both(thinking, {"input": say("Hm.\n</think>\n\nYes.")})
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == len("Hm.\n</think>")
    off = both(thinking, {"input": say("Yes."), "reasoning": {"effort": "none", "summary": None}})
    assert [item["type"] for item in off["output"]] == ["message"]
    assert off["reasoning"]["effort"] == "none"
    cut = both(thinking, {"input": say("Hm."), "max_output_tokens": 2})
    assert [(item["type"], item["status"]) for item in cut["output"]] == [("reasoning", "incomplete")]


def test_logprobs_of_the_text(scripted: RunningServer) -> None:
    whole = both(scripted, {"input": say("Yes."), "include": [LOGPROBS], "top_logprobs": 2})
    logprobs = whole["output"][0]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in logprobs) == "Yes."
    assert all(len(entry["top_logprobs"]) == 2 for entry in logprobs)


def test_the_client_s_stream_helper(scripted: RunningServer) -> None:
    text = ""
    with scripted.client().responses.stream(model="scripted", input=say("Hello."), tools=[TOOL]) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
        final = stream.get_final_response()
    assert text == final.output_text == "Hello."


def test_the_async_client(scripted: RunningServer) -> None:
    async def read() -> tuple[str, str]:
        async with scripted.async_client() as client:
            whole = await client.responses.create(model="scripted", input=say("Hi."))
            text = ""
            async for event in await client.responses.create(model="scripted", input=say("Hi."), stream=True):
                if event.type == "response.output_text.delta":
                    text += event.delta
        return whole.output_text, text

    assert asyncio.run(read()) == ("Hi.", "Hi.")


def test_sampling_fields_are_taken() -> None:
    with RunningServer(mock_engine()) as server:
        body = {"input": "hello", "seed": 4, "max_output_tokens": 12, "top_k": 3, "temperature": 0.7}
        one, two = (server.post(PATH, body).json() for _ in range(2))
        chat = {"messages": [{"role": "user", "content": "hello"}], "seed": 4, "max_tokens": 12, "top_k": 3}
        three = server.post("/v1/chat/completions", {**chat, "temperature": 0.7}).json()
        assert one["output"][0]["content"] == two["output"][0]["content"]
        assert one["output"][0]["content"][0]["text"] == three["choices"][0]["message"]["content"]
        assert one["pellucid"] == {"seed": 4}
        assert one["temperature"] == 0.7


def test_a_failure_inside_a_stream() -> None:
    engine = mock_engine()
    compute: Any = engine.model.compute_logits
    calls = 0

    def fail_later(hidden: Any) -> Any:
        nonlocal calls
        calls += 1
        logits = compute(hidden)
        if calls > 3:
            logits[:] = float("nan")
        return logits

    engine.model.compute_logits = fail_later  # type: ignore[method-assign]
    with RunningServer(engine) as server:
        events = events_of(server, {"input": "a", "ignore_eos": True, "max_output_tokens": 20})
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-2]["code"] == "request_failed"
        assert events[-2].keys() == {"type", "code", "message", "param", "sequence_number"}
        assert events[-1]["response"]["status"] == "failed"
        assert events[-1]["response"]["error"]["code"] == "server_error"


def test_every_field_of_the_openai_client_is_known() -> None:
    """The outside truth: the types that the client ships."""
    from openai.types.responses import response_create_params

    names = typing.get_type_hints(response_create_params.ResponseCreateParamsNonStreaming)
    assert set(names) - RESPONSES.known == set()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": "x", "y": 1}]}, "input[0].y"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": 3}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "summary": [{}]}]}, "input[0].summary"),
        ({"instructions": 3}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 9000}, "max_output_tokens"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": [LOGPROBS], "top_logprobs": 5000}, "top_logprobs"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"background": True}, "background"),
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"n": 2}, "n"),
        ({"temperature": 99, "top_p": 3}, "top_p"),
        ({"messages": []}, "messages"),
    ],
)
def test_the_field_at_fault_is_named(scripted: RunningServer, fields: dict[str, Any], param: str) -> None:
    error = scripted.refused(PATH, {"input": "hello", **fields})
    assert error["param"] == param, error


def test_neutral_values_pass(scripted: RunningServer) -> None:
    neutral = {
        "background": False,
        "store": False,
        "truncation": "disabled",
        "service_tier": "auto",
        "include": [],
        "tools": [],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": None, "summary": None},
        "previous_response_id": None,
        "user": "u",
        "prompt_cache_key": "k",
    }
    whole = both(scripted, {"input": say("ok"), **neutral})
    assert (whole["user"], whole["prompt_cache_key"]) == ("u", "k")


def test_keys_are_asked_for() -> None:
    with RunningServer(scripted_engine(), api_key=("key",)) as server:
        assert server.post(PATH, {"input": "a"}).status_code == 401
        client = openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0)
        assert client.responses.create(model="scripted", input=say("in")).output_text == "in"


def test_an_answer_of_a_shape(server: RunningServer) -> None:
    """text.format as the client's `parse` makes it, and as a plain object."""
    from pydantic import BaseModel

    class Point(BaseModel):
        x: bool
        y: bool

    client = server.client()
    parsed = client.responses.parse(model="mock", input="hello", text_format=Point, extra_body={"seed": 3})
    assert isinstance(parsed.output_parsed, Point)
    plain = server.post(
        PATH, {"input": "a", "text": {"format": {"type": "json_object"}}, "max_output_tokens": 400}
    ).json()
    if plain["status"] == "completed":
        assert isinstance(json.loads(plain["output"][0]["content"][0]["text"]), dict)
    bad = {"type": "json_schema", "name": "x", "schema": {"type": "no such type"}}
    assert server.refused(PATH, {"input": "a", "text": {"format": bad}})["param"].startswith("text.format")
    both_given = {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"json_object": True}}
    assert server.refused(PATH, {"input": "a", **both_given})["param"] == "structured_outputs"
    choice = server.post(PATH, {"input": "a", "structured_outputs": {"choice": ["yes", "no"]}}).json()
    assert choice["output"][0]["content"][0]["text"] in ("yes", "no")
