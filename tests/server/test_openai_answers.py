"""Every answer and chunk is of the openai client's own types, strictly, and has nothing else but what is listed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
from http_server import RunningServer, mock_engine, mock_model
from openai import types
from openai.pagination import SyncPage
from openai.types import chat, responses, shared
from pydantic import TypeAdapter
from scripted import THINKING, say, scripted_engine

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
OURS = {
    "pellucid",  # the seed, what was done to a prompt too long
    "stop_reason",  # vLLM's: the stop string or token
    "prompt_logprobs",  # vLLM's
    "reasoning_content",  # of messages and deltas, and its logprobs
    "max_model_len",  # of models: vLLM's
    "store",  # OpenAI's responses have it; the type does not
    "name",  # of a call's last event: OpenAI's, in earlier versions of the type
    "bytes",  # of logprobs in events, as whole answers have them
}
"""What answers have besides OpenAI's fields."""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, RunningServer]]:
    with (
        RunningServer(mock_engine()) as mock,
        RunningServer(scripted_engine()) as scripted,
        RunningServer(scripted_engine(THINKING)) as thinking,
    ):
        yield {"mock": mock, "scripted": scripted, "thinking": thinking}


def check(kind: Any, value: Any) -> None:
    """The value is of the type without any being coerced, and its fields are those of the type and ours."""
    parsed = TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    for model in _models(parsed):
        assert set(model.model_extra or ()) <= OURS, model


def _models(value: Any) -> Iterator[pydantic.BaseModel]:
    if isinstance(value, pydantic.BaseModel):
        yield value
        for name in value.model_fields_set:
            yield from _models(getattr(value, name))
    elif isinstance(value, list):
        for inner in value:
            yield from _models(inner)


def events(text: str) -> list[dict[str, Any]]:
    """The objects of a stream."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
CHAT_TOOLS = {"tools": [{"type": "function", "function": TOOL}]}
CHATS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("mock", HELLO),
    "n": ("mock", {**HELLO, "n": 3}),
    "logprobs": ("mock", {**HELLO, "logprobs": True, "top_logprobs": 2}),
    "stopped": ("scripted", {"messages": [{"role": "user", "content": say("a b c")}], "stop": "b"}),
    "calls": ("scripted", {"messages": [{"role": "user", "content": say(f"ok {CALL}{CALL}")}], **CHAT_TOOLS}),
    "reasoning": (
        "thinking",
        {"messages": [{"role": "user", "content": say("hm</think>yes")}], "logprobs": True, "top_logprobs": 1},
    ),
    "empty": ("scripted", {"messages": [{"role": "user", "content": say("")}], "logprobs": True}),
    "shortened": (
        "mock",
        {"messages": [{"role": "user", "content": "a" * 9000}], "max_tokens": 2, "overflow": "truncate_left"},
    ),
}


@pytest.mark.parametrize("name", CHATS)
def test_chat_completions(servers: dict[str, RunningServer], name: str) -> None:
    server, body = CHATS[name]
    whole = servers[server].post("/v1/chat/completions", body)
    assert whole.status_code == 200, whole.text
    check(chat.ChatCompletion, whole.json())
    for choice in whole.json()["choices"]:  # nullable, but always there in OpenAI's answers
        assert {"logprobs", "finish_reason"} <= choice.keys()
        assert {"content", "refusal"} <= choice["message"].keys()
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(servers[server].post("/v1/chat/completions", body).text)
    for chunk in chunks:
        check(chat.ChatCompletionChunk, chunk)
        assert "usage" in chunk
        assert all({"delta", "index", "finish_reason"} <= choice.keys() for choice in chunk["choices"])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] > 0


COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {"prompt": "a", "max_tokens": 5},
    "several": {"prompt": ["a", "b"], "n": 2, "max_tokens": 5},
    "ids": {"prompt": [[1, 2]], "max_tokens": 5},
    "echoed": {"prompt": "abc", "echo": True, "logprobs": 2, "max_tokens": 5},
    "logprobs": {"prompt": "abc", "logprobs": 0, "max_tokens": 5},
    "stopped": {"prompt": "abc", "stop": ["aa"], "logit_bias": {"97": 100}},
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions(servers: dict[str, RunningServer], name: str) -> None:
    body = COMPLETIONS[name]
    whole = servers["mock"].post("/v1/completions", body)
    assert whole.status_code == 200, whole.text
    check(types.Completion, _first_token_left_out(whole.json()))
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(servers["mock"].post("/v1/completions", body).text)
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["finish_reason"] is None:  # OpenAI's chunks have it too; the type does not
                choice["finish_reason"] = "stop"
        if chunk["usage"] is None:
            del chunk["usage"]
        check(types.Completion, _first_token_left_out(chunk))
    assert chunks[-1]["choices"] == []


def _first_token_left_out(answer: dict[str, Any]) -> dict[str, Any]:
    """Nothing comes before an echoed prompt's first token, so its logprob is null; the type has no null."""
    for choice in answer["choices"]:
        for name in ("token_logprobs", "top_logprobs"):
            listed = (choice["logprobs"] or {}).get(name)
            if listed and listed[0] is None:
                del listed[0]
    return answer


def test_prompt_logprobs(servers: dict[str, RunningServer]) -> None:
    check(types.Completion, servers["mock"].post("/v1/completions", {"prompt": "ab", "prompt_logprobs": 1}).json())
    check(chat.ChatCompletion, servers["mock"].post("/v1/chat/completions", {**HELLO, "prompt_logprobs": 1}).json())


FLAT_TOOLS = {"tools": [{"type": "function", "strict": False, **TOOL}]}
RESPONSES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("mock", {"input": "a", "max_output_tokens": 5}),
    "everything repeated": (
        "scripted",
        {
            **{"input": say("yes"), "instructions": "i", "metadata": {"a": "b"}, "user": "u", "prompt_cache_key": "k"},
            **{"safety_identifier": "s", "temperature": 0.5, "top_p": 0.5, "tool_choice": "auto", **FLAT_TOOLS},
            **{"reasoning": {"effort": "none"}, "store": False, "truncation": "disabled", "service_tier": "auto"},
        },
    ),
    "logprobs": (
        "mock",
        {"input": "a", "max_output_tokens": 5, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    ),
    "calls": ("scripted", {"input": say(f"ok {CALL}{CALL}"), **FLAT_TOOLS}),
    "one named": ("scripted", {"input": say(CALL), "tool_choice": {"type": "function", "name": "f"}, **FLAT_TOOLS}),
    "reasoning": ("thinking", {"input": say("hm</think>yes")}),
    "empty": ("scripted", {"input": say("")}),
    "format": (
        "scripted",
        {
            "input": say('{"a":1}'),
            "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        },
    ),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_responses(servers: dict[str, RunningServer], name: str) -> None:
    server, body = RESPONSES[name]
    whole = servers[server].post("/v1/responses", body)
    assert whole.status_code == 200, whole.text
    check(responses.Response, whole.json())
    for event in events(servers[server].post("/v1/responses", {**body, "stream": True}).text):
        check(responses.ResponseStreamEvent, event)


def test_embeddings(servers: dict[str, RunningServer]) -> None:
    check(types.CreateEmbeddingResponse, servers["mock"].post("/v1/embeddings", {"input": ["a", "b"]}).json())


def test_models(servers: dict[str, RunningServer]) -> None:
    check(types.Model, servers["mock"].get("/v1/models/mock").json())
    check(SyncPage[types.Model], servers["mock"].get("/v1/models").json())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {}, 400),
        ("/v1/responses", {"input": "a", "store": True}, 400),
        ("/v1/completions", {"prompt": "a", "model": "another"}, 404),
        ("/v1/nothing", {}, 404),
        ("/v1/models", {}, 405),
    ],
)
def test_errors(servers: dict[str, RunningServer], path: str, body: Any, status: int) -> None:
    response = servers["mock"].post(path, body)
    assert response.status_code == status
    assert response.json().keys() == {"error"}
    check(shared.ErrorObject, response.json()["error"])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses"])
def test_what_fails_in_a_stream(servers: dict[str, RunningServer], path: str) -> None:
    """The mock model's logits after this token are no numbers."""
    asked = {"prompt": "a"} if path == "/v1/completions" else {"input": "a"}
    failing = {**asked, "allowed_token_ids": [mock_model.NAN_TOKEN], "stream": True}
    told = events(servers["mock"].post(path, failing).text)
    if path == "/v1/completions":
        check(shared.ErrorObject, told[-1]["error"])
    else:
        assert [event["type"] for event in told[-2:]] == ["error", "response.failed"]
        for event in told:
            check(responses.ResponseStreamEvent, event)
