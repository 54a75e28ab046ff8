"""LLMEngine on the mock: how an answer ends, and what is refused before it begins."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from engine_driver import PROMPT, drain, one, run
from mock_model import (
    BLOCK_BYTES,
    BOS,
    EOS,
    IM_END,
    VOCAB_SIZE,
    ByteTokenizer,
    MockModel,
    make_engine,
)

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.errors import ContextLengthExceededError, InvalidParameterError, PellucidWarning
from pellucid.sampling_params import SamplingParams


def test_s23_every_end_token_ends_and_is_hidden() -> None:
    for end in (EOS, IM_END):
        answer = one(make_engine(), PROMPT, allowed_token_ids=[end], skip_special_tokens=False)
        assert answer.token_ids == [end]
        assert answer.text == ""
        assert (answer.finish_reason, answer.stop_reason) == ("stop", None)


def test_ignore_eos_goes_on_and_stop_token_ids_still_end() -> None:
    answer = one(make_engine(), PROMPT, allowed_token_ids=[EOS], ignore_eos=True, max_tokens=4)
    assert (answer.token_ids, answer.finish_reason) == ([EOS] * 4, "length")
    answer = one(make_engine(), PROMPT, allowed_token_ids=[EOS], ignore_eos=True, stop_token_ids=[EOS])
    assert (answer.token_ids, answer.finish_reason, answer.stop_reason) == ([EOS], "stop", EOS)


def test_stop_token_is_hidden_unless_included() -> None:
    letter = ord("c")
    answer = one(make_engine(), PROMPT, allowed_token_ids=[letter], stop_token_ids=[letter])
    assert (answer.text, answer.stop_reason) == ("", letter)
    answer = one(
        make_engine(), PROMPT, allowed_token_ids=[letter], stop_token_ids=[letter], include_stop_str_in_output=True
    )
    assert (answer.text, answer.token_ids) == ("c", [letter])


def test_s28_a_special_token_as_stop_string_stops() -> None:
    answer = one(make_engine(), PROMPT, allowed_token_ids=[IM_END], ignore_eos=True, stop="<|im_end|>")
    assert (answer.token_ids, answer.text) == ([IM_END], "")
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "<|im_end|>")
    answer = one(
        make_engine(),
        PROMPT,
        allowed_token_ids=[IM_END],
        ignore_eos=True,
        stop="<|im_end|>",
        skip_special_tokens=False,
        include_stop_str_in_output=True,
    )
    assert answer.text == "<|im_end|>"


def test_s25_streams_never_show_a_beginning_that_becomes_a_stop_string() -> None:
    engine = make_engine()
    engine.add_request("x", PROMPT, SamplingParams(allowed_token_ids=[97], stop="aaaa", max_tokens=9))
    texts = [output.outputs[0].text for _ in range(4) for output in engine.step()]
    assert texts == ["", "", "", ""]
    assert not engine.has_unfinished_requests()
    engine.add_request("y", PROMPT, SamplingParams(allowed_token_ids=[97], stop="aaaab", max_tokens=6))
    texts = [output.outputs[0].text for _ in range(6) for output in engine.step()]
    assert texts == ["", "", "", "", "a", "aaaaa"], "released when it cannot be one, all of it at the end"


def test_min_tokens_holds_for_end_tokens_stop_ids_and_stop_strings() -> None:
    answer = one(make_engine(), PROMPT, min_tokens=7, max_tokens=50, logit_bias={EOS: 50}, stop_token_ids=[98])
    assert len(answer.token_ids) == 8
    assert not set(answer.token_ids[:7]) & {EOS, IM_END, 98}
    answer = one(make_engine(), PROMPT, min_tokens=7, max_tokens=50, allowed_token_ids=[97], stop="a")
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("a" * 7, "stop", "a")


def test_stop_at_the_last_allowed_token_is_a_stop() -> None:
    answer = one(make_engine(), PROMPT, allowed_token_ids=[97], stop="aaa", max_tokens=3)
    assert (answer.text, answer.finish_reason) == ("", "stop")


def test_maximum_context_ends_with_length() -> None:
    engine = make_engine(max_model_len=40, num_blocks=3)
    answer = one(engine, PROMPT, temperature=0, ignore_eos=True)
    assert (len(answer.token_ids), answer.finish_reason) == (40 - len(PROMPT), "length")


def test_unfinished_character_is_held_back_then_shown_as_invalid() -> None:
    engine = make_engine()
    engine.add_request("x", PROMPT, SamplingParams(allowed_token_ids=[0xC3], max_tokens=2))
    texts = [output.outputs[0].text for _ in range(2) for output in engine.step()]
    assert texts == ["", "��"]


def test_a45_a_prompt_longer_than_the_context_is_refused_with_both_counts() -> None:
    engine = make_engine(max_model_len=20)
    with pytest.raises(ContextLengthExceededError, match=r"prompt has 28 tokens, but max_model_len is 20") as caught:
        engine.add_request("x", PROMPT, SamplingParams())
    assert (caught.value.num_prompt_tokens, caught.value.max_model_len) == (28, 20)
    with pytest.raises(ContextLengthExceededError, match=r"15 tokens and max_tokens is 6, together 21"):
        engine.add_request("x", PROMPT[:15], SamplingParams(max_tokens=6))
    with pytest.raises(ContextLengthExceededError):
        engine.add_request("x", PROMPT[:20], SamplingParams())
    assert not engine.has_unfinished_requests()
    engine.add_request("x", PROMPT[:15], SamplingParams(max_tokens=5))


def test_a52_an_empty_prompt_needs_a_bos_token() -> None:
    engine = make_engine()
    with pytest.raises(InvalidParameterError, match="prompt is empty and the model puts no beginning-of-sequence"):
        engine.add_request("x", "", SamplingParams())
    assert len(one(engine, PROMPT, max_tokens=2, ignore_eos=True).token_ids) == 2, "alive"
    output = run(make_engine(add_bos=True), {"x": ("", SamplingParams(max_tokens=1))})["x"]
    assert output.prompt_token_ids == [BOS]


@pytest.mark.parametrize("bad", [VOCAB_SIZE, -1, 2.0, "a", True, None])
def test_a_prompt_with_a_token_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(
        InvalidParameterError, match=r"at position 2, but a token id must be a whole number from 0 to 259"
    ):
        make_engine().add_request("x", [97, 98, bad, 99], SamplingParams())


def test_other_refusals_name_the_field() -> None:
    engine = make_engine(max_model_len=40)
    for field, params in (
        ("stop_token_ids", SamplingParams(stop_token_ids=[VOCAB_SIZE])),
        ("logit_bias", SamplingParams(logit_bias={VOCAB_SIZE: 1})),
        ("min_tokens", SamplingParams(min_tokens=20)),
    ):
        with pytest.raises(InvalidParameterError) as caught:
            engine.add_request("x", PROMPT, params)
        assert caught.value.field == field
    engine.add_request("x", PROMPT, SamplingParams())
    with pytest.raises(InvalidParameterError, match="'x' is in use"):
        engine.add_request("x", PROMPT, SamplingParams())
    with pytest.raises(InvalidParameterError, match="non-empty string"):
        engine.add_request("", PROMPT, SamplingParams())
    drain(engine)
    engine.add_request("x", PROMPT, SamplingParams(max_tokens=1))


def test_an_engine_that_cannot_hold_one_request_is_refused() -> None:
    args = EngineArgs(model="mock", kv_cache_memory_bytes=3 * BLOCK_BYTES, max_model_len=49)
    with pytest.raises(InvalidParameterError, match="kv_cache_memory_bytes"):
        LLMEngine(MockModel(), ByteTokenizer(), args)


def test_more_than_the_trained_length_is_warned_of_and_what_has_no_row_is_refused() -> None:
    args, model = EngineArgs(model="mock", max_model_len=257), MockModel()
    with pytest.warns(PellucidWarning, match=r"max_model_len is 257, but the model was trained for 256 positions"):
        assert LLMEngine(model, ByteTokenizer(), args).max_model_len == 257
    model.config = dataclasses.replace(model.config, positions="learned")
    with pytest.raises(InvalidParameterError, match=r"max_model_len is 257, but the model has a table of 256"):
        LLMEngine(model, ByteTokenizer(), args)
