"""/v1/chat/completions, /tokenize and /detokenize, driven by the openai client."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import openai
import pytest
from http_server import RunningServer, mock_engine

from pellucid.engine.llm import LLM
from pellucid.sampling_params import SamplingParams

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM.from_engine(mock_engine())


def chat(client: openai.OpenAI, messages: Any = HELLO, **options: Any) -> Any:
    return client.chat.completions.create(model="mock", messages=messages, **{"seed": 4, "max_tokens": 12, **options})


def test_one_answer(client: openai.OpenAI, llm: LLM) -> None:
    answer = chat(client, extra_body={"cache_salt": "nobody has asked before"})
    whole = llm.chat(HELLO, SamplingParams(seed=4, max_tokens=12))[0]
    [choice] = answer.choices
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert (choice.message.role, choice.message.content) == ("assistant", whole.outputs[0].text)
    assert choice.finish_reason == whole.outputs[0].finish_reason
    assert answer.usage.prompt_tokens == len(whole.prompt_token_ids)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.pellucid == {"seed": 4}


def test_a_prompt_that_was_read_before_is_counted_as_cached(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "A text of a few blocks, that nobody has sent before. " * 2}]
    first, second = chat(client, messages), chat(client, messages)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached >= 64
    assert cached % 16 == 0
    assert second.choices[0].message.content == first.choices[0].message.content


def test_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"n": 3, "max_tokens": 30, "logprobs": True, "top_logprobs": 2}
    whole = chat(client, **options)
    texts, reasons, roles, tokens = [""] * 3, [""] * 3, [0] * 3, [[], [], []]  # type: ignore[var-annotated]
    for chunk in chat(client, stream=True, **options):
        assert chunk.object == "chat.completion.chunk"
        assert chunk.usage is None
        for choice in chunk.choices:
            roles[choice.index] += choice.delta.role == "assistant"
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            if choice.logprobs:
                tokens[choice.index] += choice.logprobs.content
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert tokens == [choice.logprobs.content for choice in whole.choices]
    assert roles == [1, 1, 1]


def test_the_async_client_streams(server: RunningServer, client: openai.OpenAI) -> None:
    async def read() -> str:
        async with server.async_client() as asking:
            stream = await asking.chat.completions.create(
                model="mock", messages=HELLO, seed=4, max_tokens=12, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage is not None
        assert chunks[-1].choices == []
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])

    assert asyncio.run(read()) == chat(client).choices[0].message.content


def test_the_client_s_own_stream_helper(server: RunningServer) -> None:
    helper: Any = server.client().chat.completions
    with helper.stream(model="mock", messages=HELLO, seed=4, stop=["\n", "b"]) as stream:
        final = stream.get_final_completion()
    whole = chat(server.client(), max_tokens=None, stop=["\n", "b"])
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_logprobs(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3, temperature=0)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob  # greedy
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
        assert [t.logprob for t in entry.top_logprobs] == sorted((t.logprob for t in entry.top_logprobs), reverse=True)
    alone = chat(client, logprobs=True, temperature=0).choices[0].logprobs.content
    assert [e.logprob for e in alone] == [e.logprob for e in entries]
    assert all(e.top_logprobs == [] for e in alone)


def test_l39_minus_infinity_is_the_floor() -> None:
    engine = mock_engine()
    compute: Any = engine.model.compute_logits

    def without_z(hidden: Any) -> Any:
        logits = compute(hidden)
        logits[:, ord("z")] = -np.inf
        return logits

    engine.model.compute_logits = without_z  # type: ignore[method-assign]
    with RunningServer(engine) as server:
        body = {"messages": HELLO, "max_tokens": 2, "logprobs": True, "top_logprobs": 260}
        response = server.post("/v1/chat/completions", body)
        assert "Infinity" not in response.text
        for entry in response.json()["choices"][0]["logprobs"]["content"]:
            assert {t["token"]: t["logprob"] for t in entry["top_logprobs"]}["z"] == -9999.0
        with_echo = {"prompt": "az", "max_tokens": 1, "logprobs": 260, "echo": True}
        logprobs = server.post("/v1/completions", with_echo).json()["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"][:2] == [None, -9999.0]


def test_both_names_of_max_tokens(client: openai.OpenAI) -> None:
    extra = {"ignore_eos": True}
    for name in ("max_tokens", "max_completion_tokens"):
        answer = client.chat.completions.create(model="mock", messages=HELLO, extra_body={**extra, name: 5})
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5
        assert answer.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, max_completion_tokens=0, max_tokens=openai.NOT_GIVEN)
    assert caught.value.param == "max_completion_tokens"


def test_parts_and_roles(client: openai.OpenAI, server: RunningServer) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    assert chat(client, parts).choices[0].message.content == chat(client).choices[0].message.content
    system = [{"role": "system", "content": "s"}, *HELLO]
    developer = [{"role": "developer", "content": "s"}, *HELLO]
    assert chat(client, system).choices[0].message.content == chat(client, developer).choices[0].message.content
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert server.refused("/v1/chat/completions", {"messages": image})["param"].startswith("messages[0].content")


def test_c14_a_template_that_refuses_is_400_with_its_message(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="this model takes no such system prompt") as caught:
        chat(client, [{"role": "system", "content": "no"}, *HELLO])
    assert caught.value.param == "messages"
    assert caught.value.code == "chat_template"
    assert chat(client).choices


def test_c20_going_on_with_the_last_message(client: openai.OpenAI, server: RunningServer) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "abc"}]
    goes_on = chat(client, messages, extra_body={"continue_final_message": True})
    raw = client.completions.create(
        model="mock",
        prompt=server.post("/tokenize", {"messages": messages, "continue_final_message": True}).json()["tokens"],
        seed=4,
        max_tokens=12,
    )
    assert goes_on.choices[0].message.content == raw.choices[0].text
    both = {"messages": messages, "continue_final_message": True, "add_generation_prompt": True}
    assert server.refused("/v1/chat/completions", both)["param"] == "continue_final_message"


def test_t6_control_strings_in_a_message_are_text(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "<|im_end|>"}]
    tokens = server.post("/tokenize", {"messages": messages}).json()["tokens"]
    assert tokens.count(257) == 1
    assert tokens.count(258) == 2


def test_fields_that_are_known_but_not_served(server: RunningServer) -> None:
    neutral = {
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "service_tier": "auto",
        "store": False,
        "reasoning_effort": None,
        "verbosity": "medium",
        "audio": None,
        "user": "someone",
        "metadata": {"a": "b"},
        "safety_identifier": "x",
        "prompt_cache_key": "y",
        "logit_bias": {},
        "stop": None,
        "n": None,
    }
    body = {"messages": HELLO, "max_tokens": 2, **neutral}
    assert server.post("/v1/chat/completions", body).status_code == 200
    asking = {
        "tools": [{"type": "web_search"}],
        "tool_choice": "required",
        "modalities": ["audio"],
        "service_tier": "flex",
        "store": True,
        "reasoning_effort": "high",
        "functions": [{"name": "f"}],
        "prediction": {"type": "content", "content": "x"},
        "web_search_options": {},
        "user": 3,
        "metadata": {"a": 1},
    }
    for name, value in asking.items():
        param = server.refused("/v1/chat/completions", {"messages": HELLO, name: value})["param"]
        assert param.partition("[")[0] == name
    completions = {"suffix": "x", "best_of": 2}
    for name, value in completions.items():
        assert server.refused("/v1/completions", {"prompt": "a", name: value})["param"] == name
    assert server.post("/v1/completions", {"prompt": "a", "suffix": "", "best_of": 1}).status_code == 200


def test_every_field_of_the_openai_client_is_known() -> None:
    """The outside truth: the types that the client ships."""
    import typing

    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params

    from pellucid.server.fields import CHAT, COMPLETIONS

    for module, endpoint in ((completion_create_params, COMPLETIONS), (chat_create_params, CHAT)):
        names = typing.get_type_hints(module.CompletionCreateParamsNonStreaming)
        assert set(names) - endpoint.known == set()


def test_tokenize_and_detokenize(server: RunningServer) -> None:
    body = {"prompt": "hé<s>", "return_token_strs": True}
    answer = server.post("/tokenize", body).json()
    assert answer["tokens"] == list("hé<s>".encode())
    assert answer["count"] == 6
    assert answer["max_model_len"] == 4096
    assert answer["token_strs"][0] == "h"
    assert server.post("/tokenize", {"prompt": "<s>", "parse_special": True}).json()["tokens"] == [258]
    assert server.post("/detokenize", {"tokens": [104, 258]}).json() == {"prompt": "h<s>"}
    assert server.post("/detokenize", {"tokens": [104, 258], "skip_special_tokens": True}).json() == {"prompt": "h"}
    for path, bad, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": "a", "x": 1}, "x"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [260]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
    ):
        assert server.refused(path, bad)["param"] == param
