"""What the server refuses, and how: OpenAI's shape, the field's name, a status; never a 500."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import fields
from typing import Any

import httpx
import openai
import pytest
from http_server import RunningServer, error_of, mock_engine, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.sampling_params import SamplingParams
from pellucid.server.fields import CHAT, COMPLETIONS

CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
POSTS: dict[str, Any] = {
    COMPLETIONS_PATH: {"prompt": "a"},
    CHAT_PATH: {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses": {"input": "hello"},
    "/v1/embeddings": {"input": "hello"},
    "/v1/prefill": {"prompt": "a" * 40},
}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("stream", [False, True])
def test_a45_too_long_a_prompt_is_400_with_both_counts(client: openai.OpenAI, stream: bool) -> None:
    """Before the headers, so that a stream too has a status."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="mock", prompt="a" * 5000, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"
    assert "5000" in caught.value.message
    assert "4096" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="mock", messages=HELLO, max_completion_tokens=4096, stream=stream)  # type: ignore[call-overload]
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "max_completion_tokens"
    long: Any = [{"role": "user", "content": "a" * 5000}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="mock", messages=long, stream=stream)
    assert caught.value.param == "messages"


def prompts_of(count: int) -> list[tuple[str, dict[str, Any], int, bool]]:
    """For each endpoint a prompt of so many tokens, those of prompts beside it, and whether an answer needs room."""
    chat = "a" * (count - len("user:assistant:") - 3)
    message = [{"role": "user", "content": chat}]
    return [
        (COMPLETIONS_PATH, {"prompt": "a" * count}, 0, True),
        (COMPLETIONS_PATH, {"prompt": ["b", "a" * count]}, 1, True),
        (COMPLETIONS_PATH, {"prompt": [97] * count}, 0, True),
        (CHAT_PATH, {"messages": message}, 0, True),
        ("/v1/responses", {"input": chat}, 0, True),
        ("/v1/embeddings", {"input": "a" * count}, 0, False),
        ("/v1/embeddings", {"input": [[97], [97] * count]}, 1, False),
        ("/v1/prefill", {"prompt": "a" * count}, 0, True),
        ("/v1/prefill", {"messages": message}, 0, True),
    ]


def test_a46_nothing_of_a_prompt_is_left_out_in_silence(server: RunningServer) -> None:
    """A prompt is counted in full, up to the longest that fits; one token more is refused with both counts."""
    context = server.async_llm.max_model_len
    for place, (path, _, beside, needs_room) in enumerate(prompts_of(500)):
        longest = context - needs_room
        for count in (500, longest):
            answer = server.post(path, prompts_of(count)[place][1]).json()
            usage = answer.get("usage", answer)
            assert usage.get("prompt_tokens", usage.get("input_tokens")) - beside == count, (path, answer)
        error = server.refused(path, prompts_of(longest + 1)[place][1])
        assert error["code"] == "context_length_exceeded", (path, error)
        assert f"{longest + 1} tokens" in error["message"]
        assert str(context) in error["message"]
    assert server.post("/tokenize", {"prompt": "a" * 5000}).json()["count"] == 5000


OUT_OF_RANGE: dict[str, Any] = {
    "n": 0,
    "temperature": -1,
    "top_k": -2,
    "top_p": 0,
    "min_p": 2,
    "repetition_penalty": 0,
    "frequency_penalty": 3,
    "presence_penalty": -3,
    "seed": -1,
    "max_tokens": 0,
    "min_tokens": -1,
    "stop": [""],
    "stop_token_ids": [-1],
    "include_stop_str_in_output": "yes",
    "ignore_eos": 1,
    "logit_bias": {"x": 1},
    "allowed_token_ids": [],
    "banned_token_ids": "a",
    "logprobs": -1,
    "prompt_logprobs": -1,
    "skip_special_tokens": "no",
    "overflow": "drop",
    "structured_outputs": {"regexp": "a"},
}


def test_every_sampling_field_is_refused_by_name(server: RunningServer) -> None:
    assert OUT_OF_RANGE.keys() == {f.name for f in fields(SamplingParams)}
    for name, value in OUT_OF_RANGE.items():
        error = server.refused(COMPLETIONS_PATH, {"prompt": "a", name: value})
        assert error["param"] == name, error
        assert error["type"] == "invalid_request_error"
        assert name in error["message"]
        error = server.refused(CHAT_PATH, {"messages": HELLO, name: value})
        assert error["param"] == name, error
    error = server.refused(CHAT_PATH, {"messages": HELLO, "logprobs": True, "top_logprobs": 5000})
    assert error["param"] == "top_logprobs"
    assert error["message"].startswith("top_logprobs is 5000")
    assert server.refused(CHAT_PATH, {"messages": HELLO, "top_logprobs": 1})["param"] == "top_logprobs"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS_PATH, {}, "prompt"),
        (COMPLETIONS_PATH, {"prompt": []}, "prompt"),
        (COMPLETIONS_PATH, {"prompt": ["a", 1]}, "prompt"),
        (COMPLETIONS_PATH, {"prompt": {}}, "prompt"),
        (COMPLETIONS_PATH, {"prompt": [[]]}, "prompt"),
        (COMPLETIONS_PATH, {"prompt": [99999]}, "prompt"),
        (COMPLETIONS_PATH, {"prompt": [[1.5]]}, "prompt"),
        (COMPLETIONS_PATH, {"prompt": "a", "stream": "yes"}, "stream"),
        (COMPLETIONS_PATH, {"prompt": "a", "stream_options": {}}, "stream_options"),
        (
            COMPLETIONS_PATH,
            {"prompt": "a", "stream": True, "stream_options": {"chunk_size": 1}},
            "stream_options.chunk_size",
        ),
        (COMPLETIONS_PATH, {"prompt": "a", "max_completion_tokens": 1}, "max_completion_tokens"),
        (COMPLETIONS_PATH, {"prompt": "a", "temprature": 1}, "temprature"),
        (COMPLETIONS_PATH, {"prompt": "a", "stop": ["x"] * 65}, "stop"),
        (COMPLETIONS_PATH, {"prompt": "a", "n": 129}, "n"),
        (COMPLETIONS_PATH, {"prompt": ["a"] * 200, "n": 100}, "n"),
        (COMPLETIONS_PATH, {"prompt": "a", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        (CHAT_PATH, {}, "messages"),
        (CHAT_PATH, {"messages": []}, "messages"),
        (CHAT_PATH, {"messages": "hello"}, "messages"),
        (CHAT_PATH, {"messages": ["hello"]}, "messages[0]"),
        (CHAT_PATH, {"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role"),
        (CHAT_PATH, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (CHAT_PATH, {"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        (CHAT_PATH, {"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        (CHAT_PATH, {"messages": HELLO, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (CHAT_PATH, {"messages": HELLO, "prompt": "x"}, "prompt"),
        (CHAT_PATH, {"messages": HELLO, "chat_template_kwargs": []}, "chat_template_kwargs"),
        (COMPLETIONS_PATH, {"prompt": "a", "repetition_penalty": 1e-320}, "repetition_penalty"),
        (COMPLETIONS_PATH, {"prompt": "a", "repetition_penalty": 1e39}, "repetition_penalty"),
        ("/v1/embeddings", {"input": "a", "encoding_format": ""}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "encoding_format": {}}, "encoding_format"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": 0}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    ],
)
def test_the_field_at_fault_is_named(server: RunningServer, path: str, body: Any, param: str) -> None:
    error = server.refused(path, body)
    assert error["param"] == param, error


def test_an_unknown_field_names_the_nearest(server: RunningServer) -> None:
    error = server.refused(COMPLETIONS_PATH, {"prompt": "a", "temprature": 1})
    assert "temperature" in error["message"]
    assert error["code"] == "unknown_field"


def test_g60_an_adapter_that_is_asked_for_is_refused(server: RunningServer) -> None:
    """A cached prefix of the model alone would be another text's: none is applied, and none is ignored."""
    for name in ("lora_request", "lora", "adapter_id"):
        error = server.refused(COMPLETIONS_PATH, {"prompt": "a", name: "a"})
        assert (error["code"], error["param"]) == ("unknown_field", name)


def test_another_model_is_404(client: openai.OpenAI, server: RunningServer) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-9", prompt="a")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")
    assert [m.id for m in client.models.list()] == ["mock"]
    assert client.models.retrieve("mock").id == "mock"
    assert server.post(COMPLETIONS_PATH, {"prompt": "a"}).status_code == 200  # one model: no name is needed


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "\xff"}',
        b"[" * 100_000,
        b'{"prompt": "a", "temperature": 1e999}',
        '{"prompt": "a"}'.encode("utf-16"),
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a", "logit_bias": {"1": 1, "1": 2}}',
    ],
)
def test_bodies_that_are_no_strict_json(server: RunningServer, content: bytes) -> None:
    response = httpx.post(server.url + COMPLETIONS_PATH, content=content, headers={"Content-Type": "application/json"})
    error_of(response, 400)


def test_half_a_surrogate_pair(server: RunningServer) -> None:
    headers = {"Content-Type": "application/json"}
    for content in (rb'{"prompt": "\ud800"}', rb'{"prompt": "a", "model": "\ud800"}', rb'{"prompt": "a", "\ud800": 1}'):
        response = httpx.post(server.url + COMPLETIONS_PATH, content=content, headers=headers)
        assert response.status_code in (400, 404), response.text
        error_of(response, response.status_code)


def test_content_type_and_size() -> None:
    with RunningServer(mock_engine(), max_body_bytes=1000) as server:
        plain = httpx.post(server.url + COMPLETIONS_PATH, content=b"{}", headers={"Content-Type": "text/plain"})
        assert error_of(plain, 415)["code"] == "unsupported_media_type"
        coded = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        packed = httpx.post(server.url + COMPLETIONS_PATH, content=gzip.compress(b"{}"), headers=coded)
        assert error_of(packed, 415)["code"] == "unsupported_media_type"
        assert error_of(server.post(COMPLETIONS_PATH, {"prompt": "a" * 1000}), 413)["code"] == "body_too_large"

        def chunks() -> Any:
            for _ in range(100):
                yield b" " * 100

        streamed = httpx.post(
            server.url + COMPLETIONS_PATH, content=chunks(), headers={"Content-Type": "application/json"}
        )
        assert error_of(streamed, 413)["code"] == "body_too_large"
        assert server.post(COMPLETIONS_PATH, {"prompt": "a"}).status_code == 200


def test_paths_and_methods_that_are_not_there(server: RunningServer) -> None:
    assert error_of(server.get("/v1/nothing"), 404)["code"] == "not_found"
    assert error_of(server.get(CHAT_PATH), 405)["code"] == "method_not_allowed"


def test_a55_keys_are_asked_for_on_all_routes_but_three() -> None:
    with RunningServer(mock_engine(), api_key=("first-key", "second-key")) as server:
        schema = server.get("/openapi.json", headers={"Authorization": "Bearer first-key"}).json()
        paths = [*schema["paths"], "/openapi.json", "/docs", "/nothing"]
        assert {"/v1/models", COMPLETIONS_PATH, CHAT_PATH, "/tokenize", "/detokenize", "/metrics"} <= set(paths)
        for path in paths:
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": "first-key"},
                {"Authorization": ""},
            ):
                response = server.get(path, headers=headers)
                if path in ("/health", "/ready", "/version"):
                    assert response.status_code == 200
                else:
                    assert error_of(response, 401)["code"] == "invalid_api_key"
                    assert response.headers["WWW-Authenticate"] == "Bearer"
        for key in ("first-key", "second-key"):
            client = openai.OpenAI(base_url=server.base_url, api_key=key)
            assert client.completions.create(model="mock", prompt="a").choices
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=server.base_url, api_key="x").models.list()


def test_a_full_queue_is_429_with_retry_after() -> None:
    engine = mock_engine(step_seconds=0.005, max_num_seqs=2)
    with RunningServer(engine, max_queue=1) as server:
        body = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with httpx.Client(timeout=30) as http:
            streams = []
            for _ in range(3):
                stream = http.send(http.build_request("POST", server.url + COMPLETIONS_PATH, json=body), stream=True)
                assert stream.status_code == 200
                streams.append(stream)
            refusal = server.post(COMPLETIONS_PATH, {"prompt": "a"})
            assert error_of(refusal, 429)["code"] == "queue_full"
            assert int(refusal.headers["Retry-After"]) >= 1
            for stream in streams:
                stream.close()
        patient = openai.OpenAI(base_url=server.base_url, api_key="x", max_retries=3)
        assert patient.completions.create(model="mock", prompt="a").choices


def test_every_503_says_when_to_try_again() -> None:
    with RunningServer(mock_engine()) as server:
        asyncio.run(server.models.close())
        asked = {path: server.post(path, body) for path, body in POSTS.items()}
        asked |= {path: server.get(path) for path in ("/ready", "/health")}
        assert {path: (answer.status_code, answer.headers.get("Retry-After")) for path, answer in asked.items()} == (
            dict.fromkeys(asked, (503, "5"))
        )
    with RunningServer(mock_engine()) as server:
        model = server.models.models[0]
        model.llm = None  # its loading raises, as it has none
        model.load = lambda: (_ for _ in ()).throw(MemoryError())
        refusal = server.post(COMPLETIONS_PATH, {"prompt": "a"})
        assert (error_of(refusal, 503)["code"], refusal.headers["Retry-After"]) == ("model_load_failed", "5")


def test_cors_is_off_unless_asked_for(server: RunningServer) -> None:
    ask = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in server.get("/health", headers=ask).headers
    with RunningServer(mock_engine(), cors_origin=("https://a.example",), api_key=("k",)) as open_:
        preflight = httpx.options(open_.url + CHAT_PATH, headers=ask)
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        other = open_.get("/health", headers={"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(data=st.data(), path=st.sampled_from([COMPLETIONS_PATH, CHAT_PATH, "/tokenize", "/detokenize"]))
def test_random_json_never_gives_a_500(server: RunningServer, data: Any, path: str) -> None:
    """Known names with any values, among good ones, so that every field's check is reached."""
    endpoint = CHAT if path == CHAT_PATH else COMPLETIONS
    good: dict[str, Any] = (
        {"max_tokens": 2, "prompt": "a"} if path != CHAT_PATH else {"max_tokens": 2, "messages": HELLO}
    )
    if path == "/tokenize":
        good = {"prompt": "a"}
    if path == "/detokenize":
        good = {"tokens": [1]}
    names = st.sampled_from(sorted(endpoint.known)) if path.startswith("/v1") else st.text(max_size=6)
    bad = data.draw(st.dictionaries(names, _JSON, max_size=3))
    body = {**good, **bad} if data.draw(st.booleans()) else bad
    response = _http.post(
        server.url + path, content=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        error_of(response, response.status_code)


_http = httpx.Client(timeout=30)


def test_the_document_describes_every_field(server: RunningServer) -> None:
    document = server.get("/openapi.json").json()
    for path, endpoint in ((COMPLETIONS_PATH, COMPLETIONS), (CHAT_PATH, CHAT)):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["properties"].keys() == endpoint.known
    assert server.get("/docs").status_code == 200


def test_a_mistake_of_ours_is_a_plain_500(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with RunningServer(mock_engine()) as server:

        def fail(*_: object, **__: object) -> None:
            raise ZeroDivisionError("secret")

        monkeypatch.setattr(server.engine.tokenizer, "encode", fail)
        response = server.post(COMPLETIONS_PATH, {"prompt": "a"})
        error = error_of(response, 500)
        assert error["code"] == "internal_error"
        assert response.headers["Connection"] == "close"  # or the next request would meet a reset
        assert "secret" not in response.text
        wait_for(lambda: "ZeroDivisionError" in caplog.text)
        assert server.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x" * 100_000
    body = {"prompt": text} if path.endswith("v1/completions") else {"messages": [{"role": "user", "content": text}]}
    with RunningServer(mock_engine()) as server:
        tokenizer = server.engine.tokenizer
        monkeypatch.setattr(type(tokenizer), "encode_with_protected", lambda *_, **__: pytest.fail("it was encoded"))
        monkeypatch.setattr(type(tokenizer), "encode", lambda *_, **__: pytest.fail("it was encoded"))
        error = server.refused(path, body)
    assert error["code"] == "context_length_exceeded"
    assert "at least 25" in error["message"]
    assert "max_model_len is 4096" in error["message"]


def test_too_many_prompts_are_refused_before_they_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningServer(mock_engine()) as server:
        monkeypatch.setattr(type(server.engine.tokenizer), "encode", lambda *_, **__: pytest.fail("it was encoded"))
        error = server.refused("/v1/completions", {"prompt": ["a"] * 100_000})
    assert error["param"] == "n"
    assert "asks for 100000 answers" in error["message"]
