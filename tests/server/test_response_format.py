"""response_format and structured_outputs over HTTP, through OpenAI's own client and bare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal

import openai
import pytest
from http_server import RunningServer, mock_engine
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
HELLO: Any = [{"role": "user", "content": "hello"}]


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Owner(BaseModel):
    name: str = Field(max_length=12)
    email: str | None = Field(max_length=8)


class Thing(BaseModel):
    """What pydantic writes for it has $defs, $ref, anyOf with null, enum, const and arrays."""

    colour: Colour
    size: int = Field(ge=0, le=99)
    kind: Literal["tool"]
    owner: Owner
    notes: list[Colour] = Field(max_length=2)


def schema_format(schema: Any, **extra: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **extra}}


def test_openai_clients_parse_gives_the_model(client: openai.OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.parse(
            model="mock", messages=HELLO, response_format=Thing, max_tokens=400, seed=seed
        )
        [choice] = answer.choices
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Thing)
        assert json.loads(choice.message.content or "") == choice.message.parsed.model_dump(mode="json")


def test_openai_clients_parse_on_the_real_model(real_server: RunningServer) -> None:
    question: Any = [{"role": "user", "content": "Invent a thing. Answer in JSON."}]
    answer = real_server.client().chat.completions.parse(
        model="smollm2:135m", messages=question, response_format=Thing, max_tokens=200, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Thing)


def test_the_stream_has_the_same_text(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "mock", "messages": HELLO, "seed": 5, "max_tokens": 600}
    shape = schema_format(Thing.model_json_schema(), strict=True)
    whole = client.chat.completions.create(**options, response_format=shape).choices[0]  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(**options, response_format=shape, stream=True))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason == "stop"


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_schema_is_enforced_strict_or_not(server: RunningServer, strict: bool | None) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    body = {"messages": HELLO, "response_format": schema_format(schema, strict=strict), "n": 4, "max_tokens": 100}
    for choice in server.post(CHAT_PATH, body).json()["choices"]:
        Draft202012Validator(schema).validate(json.loads(choice["message"]["content"]))
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


@pytest.mark.parametrize(
    ("shape", "texts"),
    [
        ({"choice": ["red", "green"]}, {"red", "green"}),
        ({"regex": "ab?c"}, {"ac", "abc"}),
        ({"grammar": 'start: "x" ("y" | "z")'}, {"xy", "xz"}),
        ({"json": {"const": {"a": None}}, "disable_any_whitespace": True}, {'{"a":null}'}),
        ({"json": '{"enum": [true]}'}, {"true"}),
    ],
)
def test_vllms_structured_outputs(server: RunningServer, shape: Any, texts: set[str]) -> None:
    chat = server.post(CHAT_PATH, {"messages": HELLO, "structured_outputs": shape}).json()
    raw = server.post(COMPLETIONS_PATH, {"prompt": "a", "structured_outputs": shape, "max_tokens": 20}).json()
    assert {chat["choices"][0]["message"]["content"], raw["choices"][0]["text"]} <= texts


def test_any_json_object(server: RunningServer) -> None:
    body = {"messages": HELLO, "response_format": {"type": "json_object"}, "logit_bias": {ord("}"): 100}}
    assert server.post(CHAT_PATH, body).json()["choices"][0]["message"]["content"] == "{}"
    assert server.post(CHAT_PATH, {"messages": HELLO, "response_format": {"type": "text"}, "max_tokens": 2}).is_success


NAMELESS = {"type": "json_schema", "json_schema": {"schema": {}}}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": schema_format({"not": {}})}, "response_format", "Unimplemented keys"),
        ({"response_format": schema_format({"not": {}}, strict=False)}, "response_format", "Unimplemented keys"),
        ({"response_format": schema_format({"$ref": "#/$defs/x"})}, "response_format", "does not exist"),
        (
            {"response_format": schema_format({"type": "integer", "minimum": 2, "maximum": 1})},
            "response_format",
            "minimum",
        ),
        ({"response_format": schema_format({"oneOf": [{}, {"type": "null"}]})}, "response_format", "oneOf"),
        ({"response_format": schema_format({"x-guidance": {}})}, "response_format", "x-guidance"),
        ({"response_format": schema_format(5)}, "response_format.json_schema.schema", "object"),
        ({"response_format": schema_format({}, strict="yes")}, "strict", "true or false"),
        ({"response_format": schema_format({}, extra=1)}, "response_format.json_schema.extra", "not served"),
        ({"response_format": NAMELESS}, "response_format.json_schema.name", "letters"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "object"),
        ({"response_format": {"type": "grammar"}}, "response_format.type", "json_object"),
        ({"response_format": {"type": "text", "x": 1}}, "response_format.x", "not served"),
        ({"response_format": "json"}, "response_format", "object"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "cannot be compiled"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"json": {"a": "x" * 200_000}}}, "structured_outputs", "more than"),
        ({"structured_outputs": {"grammar": "start: start"}}, "structured_outputs", "no text satisfies it"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "exclude each other",
        ),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "exclude each other"),
    ],
)
def test_j76_what_cannot_be_enforced_is_400(
    server: RunningServer, fields: dict[str, Any], param: str, words: str
) -> None:
    for path, body in ((CHAT_PATH, {"messages": HELLO}), (COMPLETIONS_PATH, {"prompt": "a"})):
        error = server.refused(path, {**body, **fields})
        assert error["param"].endswith(param), error
        assert words in error["message"]
        assert len(error["message"]) < 600


def test_a_stream_that_cannot_be_enforced_is_400_too(server: RunningServer) -> None:
    body = {"messages": HELLO, "response_format": schema_format({"not": {}}), "stream": True}
    assert server.refused(CHAT_PATH, body)["param"] == "response_format"


def wide(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"{i}": {} for i in range(count)}}


INSIDE: Any = {"type": "object", "properties": {"a": {"type": "array", "items": wide(600), "minItems": 1}}}
ADDED_UP: Any = {"anyOf": [{"type": "object", "properties": {"k": wide(100)}, "required": ["k"]}] * 6}
"""Each part can be read, all of them at once cannot, which shows behind `{"k":{`."""
TOO_MANY = "can be read in too many ways at once"


def shapes(schema: Any) -> list[tuple[str, dict[str, Any], str]]:
    """Where a request may have a schema: path, body, and what a refusal names."""
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}, "required": ["x"]}}
    own = {"structured_outputs": {"json": schema}}
    return [
        (CHAT_PATH, {"messages": HELLO, "response_format": schema_format(schema)}, "response_format"),
        (COMPLETIONS_PATH, {"prompt": "a", "response_format": schema_format(schema)}, "response_format"),
        (COMPLETIONS_PATH, {"prompt": "a", **own}, "structured_outputs"),
        (COMPLETIONS_PATH, {"prompt": "a", "max_tokens": 500, **grammar(schema)}, "structured_outputs"),
        (
            CHAT_PATH,
            {"messages": HELLO, "tools": [{"type": "function", "function": tool}], "tool_choice": "required"},
            "tools",
        ),
        ("/v1/responses", {"input": "hello", "text": {"format": {"name": "f", "schema": schema, **TYPE}}}, "text"),
    ]


TYPE = {"type": "json_schema"}


def grammar(schema: Any) -> dict[str, Any]:
    return {"structured_outputs": {"grammar": f'start: "x" %json {json.dumps(schema)}'}}


@pytest.fixture(scope="module")
def roomy_server() -> Iterator[RunningServer]:
    """With room for schemas in the prompt, where tools are."""
    with RunningServer(
        mock_engine(context=100_000, kv_cache_memory_bytes=10**9, max_num_batched_tokens=8192)
    ) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_what_can_be_read_in_too_many_ways_inside_is_400(roomy_server: RunningServer, stream: bool) -> None:
    for path, body, param in shapes(INSIDE):
        error = roomy_server.refused(path, {**body, "stream": stream})
        assert error["param"].split(".")[0] == param
        assert error["message"].startswith(param)
        assert TOO_MANY in error["message"]


def test_a_shape_that_fails_in_mid_answer_is_the_requests_fault(roomy_server: RunningServer) -> None:
    for path, body, param in shapes(ADDED_UP):
        error = roomy_server.refused(path, body)
        assert (error["param"].split(".")[0], error["code"]) == (param, "invalid_parameter")
        assert error["message"].startswith(param)
        assert TOO_MANY in error["message"]
        answer = roomy_server.post(path, {**body, "stream": True})
        assert answer.status_code == 200
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        [told] = [event for event in events if "error" in event or event.get("type") == "error"]
        told = told.get("error", told)
        assert told["message"] == error["message"]
        assert (told["param"], told["code"]) == (error["param"], "invalid_parameter")


def test_fields_that_leave_no_token_are_the_requests_fault(server: RunningServer) -> None:
    body = {"prompt": "a", "allowed_token_ids": [65], "structured_outputs": {"regex": "AB"}}
    error = server.refused(COMPLETIONS_PATH, body)
    assert (error["param"], error["code"]) == ("allowed_token_ids", "invalid_parameter")
    assert error["message"] == (
        "no token can be drawn: allowed_token_ids, structured_outputs make every one impossible"
    )


def test_the_openapi_document_has_the_fields(server: RunningServer) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    for path in (CHAT_PATH, COMPLETIONS_PATH):
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert {"response_format", "structured_outputs"} <= schema["properties"].keys()
