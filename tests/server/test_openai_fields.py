"""Every field that the openai client's own types have is served, or stands in one of the tables of openai_fields.py."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
from client_types import REQUESTS, fields_of, values
from http_server import RunningServer, error_of, mock_engine
from scripted import THINKING, say, scripted_engine

from pellucid.server.embeddings import EMBEDDINGS
from pellucid.server.fields import CHAT, COMPLETIONS, Endpoint
from pellucid.server.openai_fields import ECHOES, INNER_UNSERVED, LABELS, UNSERVED
from pellucid.server.responses.fields import RESPONSES

CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH, EMBEDDINGS_PATH = REQUESTS
ENDPOINTS: dict[str, Endpoint] = {
    CHAT_PATH: CHAT,
    COMPLETIONS_PATH: COMPLETIONS,
    RESPONSES_PATH: RESPONSES,
    EMBEDDINGS_PATH: EMBEDDINGS,
}
EVERY_FIELD = [(path, name) for path in REQUESTS for name in fields_of(path)]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, RunningServer]]:
    """A model with random answers, one that says what it is told, and one that reasons."""
    with (
        RunningServer(mock_engine()) as mock,
        RunningServer(scripted_engine()) as scripted,
        RunningServer(scripted_engine(THINKING)) as thinking,
    ):
        yield {"mock": mock, "scripted": scripted, "thinking": thinking}


# What is served has an effect

HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "seed": 1}
PROMPT = {"prompt": "hello", "max_tokens": 12, "seed": 1}
INPUT = {"input": "hello", "max_output_tokens": 12, "seed": 1}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
PARAMETERS = {"name": "f", "parameters": SCHEMA}
TOOLS = {"tools": [{"type": "function", "function": PARAMETERS}]}
FLAT_TOOLS = {"tools": [{"type": "function", **PARAMETERS}]}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
LOGPROBS = {"include": ["message.output_text.logprobs"]}
SAYS_CALLS = {"messages": [{"role": "user", "content": say(CALL * 2)}], "seed": 1}
SAYS_CALLS_TO_RESPONSES = {"input": say(CALL * 2), "seed": 1}
THINKS = {"messages": [{"role": "user", "content": say("</think>yes")}], "seed": 1}
THINKS_IN_RESPONSES = {"input": say("</think>yes"), "seed": 1}

EFFECTS: dict[str, dict[str, tuple[str, dict[str, Any], Any]]] = {
    CHAT_PATH: {
        "frequency_penalty": ("mock", {**HELLO, "temperature": 0, "max_tokens": 200}, 2),
        "logit_bias": ("mock", HELLO, {"97": 100}),
        "logprobs": ("mock", HELLO, True),
        "max_completion_tokens": ("mock", {k: v for k, v in HELLO.items() if k != "max_tokens"}, 3),
        "max_tokens": ("mock", HELLO, 3),
        "messages": ("mock", HELLO, [{"role": "user", "content": "bye"}]),
        "model": ("mock", HELLO, "another"),
        "n": ("mock", HELLO, 2),
        "parallel_tool_calls": ("scripted", {**SAYS_CALLS, **TOOLS}, False),
        "presence_penalty": ("mock", {**HELLO, "temperature": 0, "max_tokens": 200}, 2),
        "reasoning_effort": ("thinking", THINKS, "none"),
        "response_format": ("mock", HELLO, {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}),
        "seed": ("mock", HELLO, 2),
        "stop": ("scripted", {"messages": [{"role": "user", "content": say("a b c")}], "seed": 1}, [" b"]),
        "stream": ("mock", HELLO, True),
        "stream_options": ("mock", {**HELLO, "stream": True}, {"include_usage": True}),
        "temperature": ("mock", HELLO, 0),
        "tool_choice": ("scripted", {**SAYS_CALLS, **TOOLS}, "none"),
        "tools": ("scripted", SAYS_CALLS, TOOLS["tools"]),
        "top_logprobs": ("mock", {**HELLO, "logprobs": True}, 2),
        "top_p": ("mock", HELLO, 0.01),
    },
    COMPLETIONS_PATH: {
        "best_of": ("mock", PROMPT, 2),
        "echo": ("mock", PROMPT, True),
        "frequency_penalty": ("mock", {**PROMPT, "temperature": 0, "max_tokens": 200}, 2),
        "logit_bias": ("mock", PROMPT, {"97": 100}),
        "logprobs": ("mock", PROMPT, 1),
        "max_tokens": ("mock", PROMPT, 3),
        "model": ("mock", PROMPT, "another"),
        "n": ("mock", PROMPT, 2),
        "presence_penalty": ("mock", {**PROMPT, "temperature": 0, "max_tokens": 200}, 2),
        "prompt": ("mock", PROMPT, "bye"),
        "seed": ("mock", PROMPT, 2),
        "stop": ("mock", {**PROMPT, "logit_bias": {"97": 100}}, "aaa"),
        "stream": ("mock", PROMPT, True),
        "stream_options": ("mock", {**PROMPT, "stream": True}, {"include_usage": True}),
        "temperature": ("mock", PROMPT, 0),
        "top_p": ("mock", PROMPT, 0.01),
    },
    RESPONSES_PATH: {
        "include": ("mock", INPUT, LOGPROBS["include"]),
        "input": ("mock", INPUT, [{"role": "user", "content": "bye"}]),
        "instructions": ("mock", INPUT, "be brief"),
        "max_output_tokens": ("mock", INPUT, 3),
        "model": ("mock", INPUT, "another"),
        "parallel_tool_calls": ("scripted", {**SAYS_CALLS_TO_RESPONSES, **FLAT_TOOLS}, False),
        "reasoning": ("thinking", THINKS_IN_RESPONSES, {"effort": "none"}),
        "stream": ("mock", INPUT, True),
        "temperature": ("mock", INPUT, 0),
        "text": ("mock", INPUT, {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}),
        "tool_choice": ("scripted", {**SAYS_CALLS_TO_RESPONSES, **FLAT_TOOLS}, "none"),
        "tools": ("scripted", SAYS_CALLS_TO_RESPONSES, FLAT_TOOLS["tools"]),
        "top_logprobs": ("mock", {**INPUT, **LOGPROBS}, 2),
        "top_p": ("mock", INPUT, 0.01),
    },
    EMBEDDINGS_PATH: {
        "dimensions": ("mock", {"input": "a"}, 2),
        "encoding_format": ("mock", {"input": "a"}, "base64"),
        "input": ("mock", {"input": "a"}, "b"),
        "model": ("mock", {"input": "a"}, "another"),
    },
}
"""By endpoint and field: a server, a body, and the value that changes its answer."""
REFUSING = {(COMPLETIONS_PATH, "best_of"), (EMBEDDINGS_PATH, "dimensions"), *((path, "model") for path in EFFECTS)}
"""Where the effect is a refusal: a value that is not n; a model that was not trained for it, or is not there."""
ONLY_INNER = {(RESPONSES_PATH, "stream_options")}
"""Fields that are objects of which nothing is served."""


def test_every_field_of_the_client_is_known() -> None:
    for path, endpoint in ENDPOINTS.items():
        unserved, labels = set(endpoint.unserved), set(endpoint.labels)
        assert not unserved & labels
        served = {name for name in fields_of(path) if (path, name) not in ONLY_INNER} - unserved - labels
        assert EFFECTS[path].keys() == served, path
        assert served < endpoint.known
        assert unserved | labels <= fields_of(path).keys() | {"functions"}


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, fields in EFFECTS.items() for name in fields])
def test_what_is_served_has_an_effect(servers: dict[str, RunningServer], path: str, name: str) -> None:
    server, body, value = EFFECTS[path][name]
    plain = _answer(servers[server], path, body)
    assert _answer(servers[server], path, body) == plain
    changed = _answer(servers[server], path, {**body, name: value})
    assert changed.startswith("error") == ((path, name) in REFUSING), changed
    if path == RESPONSES_PATH:  # which repeats fields
        plain, changed = (re.sub(rf'"{name}":[^,]*,', "", text) for text in (plain, changed))
    assert changed != plain


def _answer(server: RunningServer, path: str, body: dict[str, Any]) -> str:
    """The answer without what differs from one to the next."""
    response = server.post(path, body)
    text = re.sub(r'"(id|item_id|call_id)":"[^"]*"', "", response.text)
    if response.status_code != 200:
        return f"error {text}"
    assert '"error":{' not in text
    return re.sub(r'"(created|created_at|cached_tokens)":\d+', "", text)


# What is not served is refused, at any depth

BASE: dict[str, dict[str, Any]] = {
    CHAT_PATH: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    COMPLETIONS_PATH: {"prompt": "a", "max_tokens": 1},
    RESPONSES_PATH: {"input": "a", "max_output_tokens": 1},
    EMBEDDINGS_PATH: {"input": "a"},
}
COMPANIONS: dict[str, dict[str, Any]] = {"stream_options": {"stream": True}}
INNER_SERVED = {
    CHAT_PATH: """
        messages[].role messages[].name messages[].tool_call_id
        messages[].content messages[].content[].type messages[].content[].text
        messages[].tool_calls[].type messages[].tool_calls[].id messages[].tool_calls[].function
        messages[].tool_calls[].function.name messages[].tool_calls[].function.arguments
        response_format.type response_format.json_schema.name response_format.json_schema.description
        response_format.json_schema.schema response_format.json_schema.strict
        stream_options.include_usage
        tools[].type tools[].function.name tools[].function.description tools[].function.parameters
        tools[].function.strict tool_choice.type tool_choice.function.name
        tool_choice.allowed_tools.mode tool_choice.allowed_tools.tools""",
    COMPLETIONS_PATH: "stream_options.include_usage",
    RESPONSES_PATH: """
        input[].role input[].type input[].content input[].content[].type input[].content[].text
        input[].call_id input[].name input[].arguments input[].output input[].output[].type input[].output[].text
        input[].summary
        reasoning.effort text.format.type text.format.name text.format.schema text.format.description
        text.format.strict tools[].type tools[].name tools[].description tools[].parameters tools[].strict
        tool_choice.type tool_choice.name tool_choice.mode tool_choice.tools""",
    EMBEDDINGS_PATH: "",
}
"""Fields of objects that are read; the tests of tools, formats, messages and items show how."""


@pytest.mark.parametrize(("path", "name"), EVERY_FIELD)
def test_any_value_that_the_client_can_send_is_served_or_refused_by_name(
    servers: dict[str, RunningServer], path: str, name: str
) -> None:
    served = {place for end in INNER_SERVED[path].split() for place in _with_parents(end)}
    harmless = {re.sub(r"\[message\]", "[]", place) for place in ECHOES} | INNER_UNSERVED.keys()
    harmless |= {place.replace("content", "output") for place in harmless if place.startswith("input[].content")}
    for value, places in values(fields_of(path)[name], name):
        if name == "model":  # any that is not there is 404
            continue
        body = {**BASE[path], **COMPANIONS.get(name, {}), name: value}
        response = servers["scripted"].post(path, body)
        if response.status_code == 200:
            assert places - {name, f"{name}[]", f"{name}[][]"} <= served | harmless, (value, response.text[:300])
            assert name not in ENDPOINTS[path].unserved or value in UNSERVED[name].neutral
        else:
            error = error_of(response)
            assert re.match(rf"{name}\b", error["param"]), (value, error)
            assert name in error["message"]
            if name in ENDPOINTS[path].unserved:
                assert UNSERVED[name].why in error["message"]


def _with_parents(place: str) -> Iterator[str]:
    while place:
        yield place
        place = place[:-2] if place.endswith("[]") else place.rpartition(".")[0]


RICH: dict[str, list[dict[str, Any]]] = {
    CHAT_PATH: [
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "a"}]},
                {"role": "user", "content": [{"type": "text", "text": "a"}]},
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "a"}],
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a"}]},
            ],
            **TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            "stream": True,
            "stream_options": {"include_usage": True},
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            "max_tokens": 1,
        },
        {
            **{**HELLO, **TOOLS, "max_tokens": 1},
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "structured_outputs": {"regex": "a"},
        },
    ],
    COMPLETIONS_PATH: [{**PROMPT, "stream": True, "stream_options": {}, "response_format": {"type": "text"}}],
    RESPONSES_PATH: [
        {
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "o"}]},
            ],
            **FLAT_TOOLS,
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
            "reasoning": {"effort": "none"},
            "stream": True,
            "stream_options": {},
            "max_output_tokens": 1,
        },
        {**INPUT, **FLAT_TOOLS, "tool_choice": {"type": "function", "name": "f"}, "max_output_tokens": 1},
    ],
    EMBEDDINGS_PATH: [{"input": "a"}],
    "/tokenize": [{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], **TOOLS}],
    "/v1/prefill": [{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}],
}
FREE = ("parameters", "schema")
"""JSON schemas have keywords of their own."""


@pytest.mark.parametrize("path", RICH)
def test_no_object_takes_a_field_that_nobody_knows(servers: dict[str, RunningServer], path: str) -> None:
    for body in RICH[path]:
        response = servers["scripted"].post(path, body)
        assert response.status_code == 200, response.text
        for place in _objects(body):
            changed = copy.deepcopy(body)
            inner: Any = changed
            for key in place:
                inner = inner[key]
            inner["colour"] = "red"
            error = error_of(servers["scripted"].post(path, changed))
            assert "colour" in error["message"], (place, error)
            assert error["param"] in (f"{_written(place)}.colour".lstrip("."), "structured_outputs"), error


def _objects(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict):
        yield place
        for name, inner in value.items():
            if name not in FREE:
                yield from _objects(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _objects(inner, (*place, index))


def _written(place: tuple[str | int, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).lstrip(".")


# What has no effect

LABEL_VALUES: dict[str, Any] = {"metadata": {"a": "b"}}


@pytest.mark.parametrize(("path", "name"), [(p, n) for p, endpoint in ENDPOINTS.items() for n in endpoint.labels])
def test_a_label_changes_no_answer(servers: dict[str, RunningServer], path: str, name: str) -> None:
    body = {**BASE[path], **({} if path == EMBEDDINGS_PATH else {"seed": 1})}
    labelled = servers["mock"].post(path, {**body, name: LABEL_VALUES.get(name, "x")})
    plain = servers["mock"].post(path, body)
    assert labelled.status_code == plain.status_code == 200
    contents = [_content(response.json()) for response in (labelled, plain)]
    assert contents[0] == contents[1]


def _content(answer: dict[str, Any]) -> Any:
    plain = re.sub(r"'id': '[^']*'", "", str(answer.get("choices") or answer.get("data") or answer.get("output")))
    assert len(plain) > 20
    return plain


def test_the_tables_have_nothing_that_no_endpoint_has() -> None:
    assert set().union(*(endpoint.labels for endpoint in ENDPOINTS.values())) == LABELS.keys()
    assert set().union(*(endpoint.unserved for endpoint in ENDPOINTS.values())) == UNSERVED.keys()


def test_answers_that_a_client_parsed_can_be_sent_back(servers: dict[str, RunningServer]) -> None:
    calls = [
        {
            "id": "1",
            "type": "function",
            "index": 0,
            "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}},
        }
    ]
    turn = {"role": "assistant", "content": "{}", "parsed": {"a": 1}, "refusal": None, "annotations": []}
    result = {"role": "tool", "tool_call_id": "1", "content": "a"}
    asked = {"role": "user", "content": say("yes")}
    body = {"messages": [asked, {**turn, "tool_calls": calls}, result, asked]}
    assert servers["scripted"].post(CHAT_PATH, body).status_code == 200
    plain = {**turn, "role": "user"}
    error = error_of(servers["scripted"].post(CHAT_PATH, {"messages": [plain]}))
    assert error["param"] == "messages[0].parsed"  # nobody got a user's message from us
