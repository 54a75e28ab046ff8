"""/v1/completions, driven by the openai client."""

from __future__ import annotations

import json
import math
from typing import Any

import openai
import pytest
from http_server import RunningServer, mock_engine, mock_model

from pellucid.engine.llm import LLM
from pellucid.sampling_params import SamplingParams

GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def llm() -> LLM:
    """The same engine without a server."""
    return LLM.from_engine(mock_engine())


def test_one_prompt(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.completions.create(model="mock", prompt="abc", **GREEDY)
    [expected] = llm.generate("abc", SamplingParams(temperature=0, max_tokens=12))[0].outputs
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == "mock"
    [choice] = answer.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, expected.text, expected.finish_reason)
    assert choice.logprobs is None
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, len(expected.token_ids))
    assert usage.total_tokens == 3 + len(expected.token_ids)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert isinstance(answer.pellucid["seed"], int)  # type: ignore[attr-defined]


def test_the_seed_in_the_answer_repeats_it(client: openai.OpenAI) -> None:
    first = client.completions.create(model="mock", prompt="abc", n=3)
    seed = first.pellucid["seed"]  # type: ignore[attr-defined]
    again = client.completions.create(model="mock", prompt="abc", n=3, seed=seed)
    assert [c.text for c in first.choices] == [c.text for c in again.choices]
    assert len({c.text for c in first.choices}) > 1


def test_max_tokens_is_16_unless_given_and_gives_way_to_the_context(client: openai.OpenAI) -> None:
    ignore: dict[str, Any] = {"extra_body": {"ignore_eos": True}}
    answer = client.completions.create(model="mock", prompt="abc", **ignore)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    long = client.completions.create(model="mock", prompt=[97] * 4090, **ignore)
    assert long.usage is not None
    assert long.usage.completion_tokens == 6
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="mock", prompt=[97] * 4090, max_tokens=16, **ignore)


@pytest.mark.parametrize("prompts", [["abc", "xyz"], [[97, 98, 99], [120, 121, 122]]])
def test_a50_several_prompts_have_index_i_times_n_plus_j(client: openai.OpenAI, llm: LLM, prompts: Any) -> None:
    answer = client.completions.create(model="mock", prompt=prompts, n=2, seed=5, max_tokens=8)
    wholes = llm.generate(["abc", "xyz"], SamplingParams(n=2, seed=5, max_tokens=8))
    expected = [(2 * i + o.index, o.text) for i, whole in enumerate(wholes) for o in whole.outputs]
    assert [(c.index, c.text) for c in answer.choices] == expected
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 6
    assert answer.pellucid == {"seed": 5, "seeds": [5, 5]}  # type: ignore[attr-defined]


def test_one_list_of_ids_is_one_prompt(client: openai.OpenAI) -> None:
    ids = client.completions.create(model="mock", prompt=[97, 98, 99], **GREEDY)
    assert ids.choices[0].text == client.completions.create(model="mock", prompt="abc", **GREEDY).choices[0].text


def test_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"prompt": ["abc", "xyz"], "n": 2, "seed": 7, "max_tokens": 30, "logprobs": 1}
    whole = client.completions.create(model="mock", **options)
    texts, reasons, logprobs = [""] * 4, [""] * 4, [0] * 4
    offsets: list[list[int]] = [[], [], [], []]
    for chunk in client.completions.create(model="mock", stream=True, **options):
        assert chunk.usage is None
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            if choice.logprobs is not None:
                logprobs[choice.index] += len(choice.logprobs.tokens or ())
                offsets[choice.index] += choice.logprobs.text_offset or ()
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert logprobs == [len(choice.logprobs.tokens) for choice in whole.choices]  # type: ignore[union-attr, arg-type]
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices]  # type: ignore[union-attr]


def test_a48_usage_comes_only_when_asked_for(client: openai.OpenAI, server: RunningServer) -> None:
    body = {"prompt": "abc", "stream": True, **GREEDY}
    assert "usage" not in server.post("/v1/completions", body).text
    asked = list(
        client.completions.create(
            model="mock", prompt="abc", stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    assert [chunk.usage is None for chunk in asked] == [True] * (len(asked) - 1) + [False]
    assert asked[-1].choices == []
    assert asked[-1].usage is not None
    assert asked[-1].usage.prompt_tokens == 3
    assert '"usage":null' in server.post("/v1/completions", {**body, "stream_options": {"include_usage": True}}).text


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs(client: openai.OpenAI, llm: LLM, stream: bool) -> None:
    options: dict[str, Any] = {"prompt": ["abc", "é"], "echo": True, "logprobs": 2, **GREEDY}
    wholes = llm.generate(["abc", "é"], SamplingParams(temperature=0, max_tokens=12, logprobs=2, prompt_logprobs=2))
    texts, tokens, values, offsets = ["", ""], [[], []], [[], []], [[], []]  # type: ignore[var-annotated]
    answers: Any = client.completions.create(model="mock", stream=stream, **options)
    for part in answers if stream else [answers]:
        for choice in part.choices:
            texts[choice.index] += choice.text
            if choice.logprobs:
                tokens[choice.index] += choice.logprobs.tokens
                values[choice.index] += choice.logprobs.token_logprobs
                offsets[choice.index] += choice.logprobs.text_offset
    for i, (whole, prompt) in enumerate(zip(wholes, ("abc", "é"), strict=True)):
        output = whole.outputs[0]
        assert texts[i] == prompt + output.text
        ids = [*whole.prompt_token_ids, *output.token_ids]
        assert len(tokens[i]) == len(ids)
        assert values[i][0] is None
        rows = [*(whole.prompt_logprobs or ()), *(output.logprobs or ())]
        assert values[i][1:] == [row[t].logprob for row, t in zip(rows[1:], ids[1:], strict=True) if row]
        assert offsets[i] == sorted(offsets[i])
    assert offsets[0][:4] == [0, 1, 2, 3]
    assert offsets[1][:3] == [0, 0, 1]  # two bytes, one character


def test_echo_alone(client: openai.OpenAI) -> None:
    plain = client.completions.create(model="mock", prompt="abc", **GREEDY).choices[0].text
    assert client.completions.create(model="mock", prompt="abc", echo=True, **GREEDY).choices[0].text == "abc" + plain
    ids = client.completions.create(model="mock", prompt=[97, 98, 99], echo=True, stream=True, **GREEDY)
    assert "".join(c.choices[0].text for c in ids) == "abc" + plain


def test_logprobs_are_raw_and_finite(client: openai.OpenAI) -> None:
    """L40: the same at any temperature."""
    cold = client.completions.create(model="mock", prompt="abc", max_tokens=1, temperature=0, logprobs=3)
    warm = client.completions.create(
        model="mock", prompt="abc", max_tokens=1, temperature=2, logprobs=3, logit_bias={str(ord("a")): -100}, seed=1
    )
    first, second = cold.choices[0].logprobs, warm.choices[0].logprobs
    assert first is not None
    assert second is not None
    top = dict(list(first.top_logprobs[0].items()))  # type: ignore[index]
    shared = top.keys() & second.top_logprobs[0].keys()  # type: ignore[index]
    assert len(shared) >= 3
    assert all(top[t] == second.top_logprobs[0][t] for t in shared)  # type: ignore[index]
    assert all(math.isfinite(value) for value in top.values())


def test_s25_nothing_of_a_stop_string_is_ever_emitted(client: openai.OpenAI) -> None:
    free = client.completions.create(model="mock", prompt="abc", seed=2, max_tokens=60)
    text = free.choices[0].text
    stop = text[8:12]
    at = text.find(stop)
    pieces = client.completions.create(model="mock", prompt="abc", seed=2, max_tokens=60, stop=stop, stream=True)
    seen = ""
    for chunk in pieces:
        seen += chunk.choices[0].text
        assert text[:at].startswith(seen)
        if chunk.choices[0].finish_reason:
            assert chunk.choices[0].finish_reason == "stop"
            assert chunk.choices[0].stop_reason == stop  # type: ignore[attr-defined]
    assert seen == text[:at]


def test_vllm_fields(client: openai.OpenAI, llm: LLM) -> None:
    extra = {"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True, "min_tokens": 3}
    extra |= {"stop_token_ids": [104], "banned_token_ids": [97], "skip_special_tokens": False}
    answer = client.completions.create(model="mock", prompt="abc", seed=9, max_tokens=20, extra_body=extra)
    params: Any = {**extra, "seed": 9, "max_tokens": 20}
    assert answer.choices[0].text == llm.generate("abc", SamplingParams(**params))[0].outputs[0].text
    answer = client.completions.create(model="mock", prompt="abc", extra_body={"allowed_token_ids": [98]})
    assert answer.choices[0].text == "b" * 16
    answer = client.completions.create(model="mock", prompt="abc", extra_body={"prompt_logprobs": 1})
    rows = answer.choices[0].prompt_logprobs  # type: ignore[attr-defined]
    assert rows[0] is None
    assert all({"logprob", "rank", "decoded_token"} == entry.keys() for entry in rows[1].values())


def test_a52_an_empty_prompt(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="mock", prompt="")
    assert caught.value.param == "prompt"
    with RunningServer(mock_engine(add_bos=True)) as with_bos:
        answer = with_bos.client().completions.create(model="mock", prompt="", **GREEDY)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 1
    assert client.completions.create(model="mock", prompt="a", **GREEDY).choices


@pytest.mark.parametrize("stream", [False, True])
def test_p37_a_request_that_fails_is_an_error(client: openai.OpenAI, stream: bool) -> None:
    """Before the first byte a status, afterwards an event."""
    options: Any = {"stream": stream, "extra_body": {"allowed_token_ids": [mock_model.NAN_TOKEN]}}

    def ask() -> None:
        list(client.completions.create(model="mock", prompt="abc", max_tokens=5, **options))

    with pytest.raises(openai.APIError, match=r"NaN|finite") as caught:
        ask()
    assert caught.value.code == "request_failed"
    assert client.completions.create(model="mock", prompt="abc", **GREEDY).choices


def test_a_prompt_that_does_not_fit_is_shortened_as_asked_and_the_answer_tells(server: RunningServer) -> None:
    body = {"prompt": "abcdefg" * 800, "max_tokens": 6, "overflow": "truncate_left", "temperature": 0}
    answer = server.post("/v1/completions", body).json()
    kept = 4096 - 6
    assert answer["pellucid"]["overflow"] == {
        "policy": "truncate_left",
        "original_tokens": 5600,
        "kept_tokens": kept,
        "removed": [{"start": 0, "end": 5600 - kept}],
    }
    assert answer["usage"]["prompt_tokens"] == kept
    several = server.post("/v1/completions", {**body, "prompt": ["ab", "abcdefg" * 800]}).json()
    assert [one and one["kept_tokens"] for one in several["pellucid"]["overflows"]] == [None, kept]
    compressed = server.post("/v1/completions", {**body, "prompt": "abc def. " * 600, "overflow": "compress"}).json()
    assert compressed["pellucid"]["overflow"]["policy"] == "compress"
    assert server.refused("/v1/completions", {**body, "overflow": "x"})["param"] == "overflow"
    assert server.refused("/v1/completions", {**body, "overflow": "error"})["code"] == "context_length_exceeded"


def test_a_conversation_that_does_not_fit_loses_its_oldest_turns(server: RunningServer) -> None:
    turns = [{"role": role, "content": "x" * 400} for _ in range(8) for role in ("user", "assistant")]
    messages = [{"role": "system", "content": "Be brief."}, *turns, {"role": "user", "content": "Well?"}]
    body = {"messages": messages, "max_tokens": 6, "overflow": "truncate_left", "stream": True}
    text = server.post("/v1/chat/completions", body).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    overflow = next(chunk["pellucid"]["overflow"] for chunk in chunks if "pellucid" in chunk)
    assert overflow["policy"] == "truncate_left"
    assert overflow["kept_tokens"] <= 4096 - 6
    places = [part["message"] for part in overflow["removed"]]
    assert places == list(range(1, len(places) + 1))
    assert len(places) % 2 == 0
