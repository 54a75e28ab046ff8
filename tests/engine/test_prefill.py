"""Filling the cache ahead: what follows finds it, nothing is drawn, nobody is held up."""

from __future__ import annotations

import asyncio

import pytest
from engine_driver import drain, run
from mock_model import MockModel, make_engine

from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.llm import LLM
from pellucid.errors import ContextLengthExceededError, InvalidParameterError, ShuttingDownError
from pellucid.outputs import PrefillOutput
from pellucid.sampling_params import SamplingParams

PROMPT = [ord(c) for c in "abcdefg" * 10]
PARAMS = SamplingParams(temperature=0, max_tokens=8, logprobs=2, ignore_eos=True)


def test_what_follows_finds_it_and_gives_the_same_bits() -> None:
    cold = run(make_engine(), {"r": (PROMPT, PARAMS)})["r"]
    engine = make_engine(max_num_batched_tokens=24)
    engine.add_prefill("ahead", PROMPT)
    [ahead] = drain(engine).values()
    assert ahead.is_prefill
    assert (len(ahead.prompt_token_ids), ahead.num_cached_tokens) == (64, 0)
    assert (ahead.outputs[0].token_ids, ahead.outputs[0].finish_reason) == ([], "length")
    model = engine.model
    assert isinstance(model, MockModel)
    assert model.logits_rows == [], "nothing is drawn"
    assert engine.stats.prefix_cache_queried_tokens == 0
    warm = run(engine, {"r": (PROMPT, PARAMS)})["r"]
    assert warm.num_cached_tokens == 64
    assert warm.outputs[0].logprobs == cold.outputs[0].logprobs


def test_answers_go_first() -> None:
    engine = make_engine(max_num_batched_tokens=16)
    engine.add_prefill("ahead", PROMPT)
    engine.add_request("r", [ord("a")] * 40, SamplingParams(max_tokens=2, ignore_eos=True))
    order = []
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step() if output.finished]
        engine.check_integrity()
    assert order == ["r", "ahead"]


def test_what_was_computed_stays_when_it_is_aborted() -> None:
    engine = make_engine(max_num_batched_tokens=16)
    engine.add_prefill("ahead", PROMPT)
    engine.step()
    engine.step()
    output = engine.abort("ahead")
    assert output is not None
    assert output.outputs[0].finish_reason == "abort"
    engine.check_integrity()
    assert run(engine, {"r": (PROMPT, PARAMS)})["r"].num_cached_tokens == 32


def test_refusals() -> None:
    engine = make_engine(max_model_len=64)
    with pytest.raises(ContextLengthExceededError):
        engine.add_prefill("a", PROMPT)
    with pytest.raises(InvalidParameterError, match="whole blocks of 16"):
        engine.add_prefill("a", PROMPT[:15])
    with pytest.raises(InvalidParameterError, match="needs enable_prefix_caching"):
        make_engine(enable_prefix_caching=False).add_prefill("a", PROMPT)
    engine.add_prefill("a", PROMPT[:32])
    with pytest.raises(InvalidParameterError, match="in use"):
        engine.add_prefill("a", PROMPT[:32])


def test_llm_and_salts() -> None:
    with LLM.from_engine(make_engine()) as llm:
        assert llm.prefill("a" * 10) == PrefillOutput(10, 0, 0), "less than a block"
        assert llm.prefill("abcdefg" * 10, cache_salt="x") == PrefillOutput(70, 0, 64)
        assert llm.prefill("abcdefg" * 10, cache_salt="x").num_cached_tokens == 48
        assert llm.generate("abcdefg" * 10, PARAMS, cache_salt="y")[0].num_cached_tokens == 0
        assert llm.generate("abcdefg" * 10, PARAMS, cache_salt="x")[0].num_cached_tokens == 64


def test_async_llm_counts_it_for_no_observer() -> None:
    seen = []

    async def use() -> PrefillOutput:
        llm = AsyncLLM(make_engine(), observer=seen.append)
        output = await llm.prefill(PROMPT)
        await llm.close()
        with pytest.raises(ShuttingDownError):
            await llm.prefill(PROMPT)
        return output

    assert asyncio.run(use()) == PrefillOutput(70, 0, 64)
    assert seen == []
