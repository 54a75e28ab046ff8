"""Where a structured answer ends, with what it goes together, and that it fails alone."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import one, run
from jsonschema import Draft202012Validator
from mock_model import EOS, make_engine

from pellucid.engine.llm import LLM
from pellucid.errors import InvalidParameterError
from pellucid.sampling.constraints import compiler
from pellucid.sampling.constraints.mask_worker import MaskWorker
from pellucid.sampling.recorder import StageRecorder
from pellucid.sampling.sampler import Sampler
from pellucid.sampling.state import SamplingState
from pellucid.sampling_params import SamplingParams
from pellucid.structured_outputs import StructuredOutputsParams


def shaped(**fields: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(**fields)


def test_the_end_of_the_structure_is_the_end_of_the_answer() -> None:
    """Without an end token: the last token belongs to the text."""
    answer = one(make_engine(), "abc", structured_outputs=shaped(choice=("hello",)), logprobs=0)
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("hello", "stop", None)
    assert answer.token_ids == list(b"hello")
    assert len(answer.logprobs or ()) == 5


def test_an_end_token_ends_it_where_it_may_end() -> None:
    params = {"structured_outputs": shaped(regex="a*"), "logit_bias": {EOS: 100.0}}
    answer = one(make_engine(), "abc", **params)
    assert (answer.text, answer.finish_reason, answer.token_ids) == ("", "stop", [EOS])
    answer = one(make_engine(), "abc", structured_outputs=shaped(regex="a{3}b"), logit_bias={EOS: 100.0})
    assert answer.text == "aaab"


def test_min_tokens_keeps_end_tokens_away_until_the_structure_is_complete() -> None:
    params = {"logit_bias": {EOS: 100.0}, "min_tokens": 5}
    assert one(make_engine(), "abc", structured_outputs=shaped(regex="a*"), **params).token_ids == [*b"aaaaa", EOS]
    answer = one(make_engine(), "abc", structured_outputs=shaped(choice=("ab",)), **params)
    assert (answer.text, answer.finish_reason) == ("ab", "stop")


def test_an_end_token_that_alone_is_left_ends_the_answer_before_min_tokens() -> None:
    answer = one(make_engine(), "abc", structured_outputs=shaped(regex="a{0}"), min_tokens=7, skip_special_tokens=False)
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("", "stop", None)
    assert len(answer.token_ids) == 1


def test_max_tokens_cuts_a_structure() -> None:
    answer = one(make_engine(), "abc", structured_outputs=shaped(choice=("hello",)), max_tokens=3)
    assert (answer.text, answer.finish_reason) == ("hel", "length")
    answer = one(make_engine(), "abc", structured_outputs=shaped(choice=("hello",)), max_tokens=5)
    assert (answer.text, answer.finish_reason) == ("hello", "stop")


def test_stop_strings_and_stop_tokens_end_a_structure_early() -> None:
    shape = shaped(choice=("hello world",))
    answer = one(make_engine(), "abc", structured_outputs=shape, stop="o w")
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("hell", "stop", "o w")
    answer = one(make_engine(), "abc", structured_outputs=shape, stop="world")
    assert (answer.text, answer.stop_reason) == ("hello ", "world")
    answer = one(make_engine(), "abc", structured_outputs=shape, stop_token_ids=[ord("w")])
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("hello ", "stop", ord("w"))


def test_what_is_held_back_for_a_stop_string_comes_with_the_end() -> None:
    answer = one(make_engine(), "abc", structured_outputs=shaped(choice=("hello",)), stop="lo there")
    assert (answer.text, answer.stop_reason) == ("hello", None)


def test_ignore_eos_and_a_structure_exclude_each_other() -> None:
    with pytest.raises(InvalidParameterError, match="ignore_eos and structured_outputs") as caught:
        SamplingParams(ignore_eos=True, structured_outputs=shaped(regex="a"))
    assert caught.value.field == "ignore_eos"
    with pytest.raises(InvalidParameterError, match="structured_outputs is 'a', but must be"):
        SamplingParams(structured_outputs="a")  # type: ignore[arg-type]


def test_a_refusal_queues_nothing() -> None:
    engine = make_engine()
    with pytest.raises(InvalidParameterError, match=r"structured_outputs\.json cannot be compiled"):
        engine.add_request("r", "abc", SamplingParams(structured_outputs=shaped(json={"not": {}})))
    assert not engine.has_unfinished_requests()
    assert one(engine, "abc", structured_outputs=shaped(choice=("x",))).text == "x"


def test_a_structure_that_the_other_parameters_leave_no_token_ends_with_an_error() -> None:
    """… and the other requests go on."""
    engine = make_engine()
    banned = SamplingParams(structured_outputs=shaped(choice=("xy",)), banned_token_ids=[ord("y")])
    good = SamplingParams(structured_outputs=shaped(choice=("xyz",)))
    answers = run(engine, {"bad": ("abc", banned), "good": ("abc", good)})
    bad = answers["bad"].outputs[0]
    assert (bad.text, bad.finish_reason) == ("x", "error")
    assert "banned_token_ids, structured_outputs make every one impossible" in str(bad.error)
    assert answers["good"].outputs[0].text == "xyz"
    engine.check_integrity()


def test_running_past_the_limits_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compiler.LIMITS, "max_lexer_states", 300)
    engine = make_engine()
    shape = shaped(regex="(.|\n)*a(.|\n){50}c(.|\n)*")
    bad = SamplingParams(structured_outputs=shape, max_tokens=120)
    good = SamplingParams(structured_outputs=shaped(choice=("xyz",)))
    answers = run(engine, {"bad": ("abc", bad), "good": ("abc", good)})
    assert answers["bad"].outputs[0].finish_reason == "error"
    assert "structured_outputs: " in str(answers["bad"].outputs[0].error)
    assert answers["good"].outputs[0].text == "xyz"


def test_each_of_n_answers_has_its_own_place() -> None:
    engine = make_engine()
    params = SamplingParams(n=6, structured_outputs=shaped(regex="[a-g]{8}"), seed=3)
    texts = [answer.text for answer in run(engine, {"r": ("abc", params)})["r"].outputs]
    assert all(re.fullmatch("[a-g]{8}", text) for text in texts)
    assert len(set(texts)) > 1


def test_a_users_processor_cannot_let_in_what_is_forbidden() -> None:
    def only_x(ids: list[int], logits: Any) -> Any:
        logits[:] = -1.0
        logits[ord("x")] = 1e9
        return logits

    engine = make_engine()
    engine.add_request(
        "r", "abc", SamplingParams(structured_outputs=shaped(choice=("hello",))), logits_processors=[only_x]
    )
    text = ""
    while engine.has_unfinished_requests():
        text += "".join(completion.text for output in engine.step() for completion in output.outputs)
    assert text == "hello"


def test_logprobs_are_those_of_the_raw_logits() -> None:
    free = one(make_engine(), "abc", temperature=0, max_tokens=1, logprobs=5)
    bound = one(
        make_engine(), "abc", temperature=0, max_tokens=1, logprobs=5, structured_outputs=shaped(choice=("zz",))
    )
    assert bound.token_ids == [ord("z")]
    assert free.logprobs is not None
    assert bound.logprobs is not None
    top = list(free.logprobs[0].items())
    assert list(bound.logprobs[0].items())[1:6] == top[:5]
    assert bound.logprobs[0][ord("z")].rank > 5


def test_the_recorder_shows_what_the_structure_left() -> None:
    engine = make_engine()
    constraint = engine.grammars.compile(shaped(choice=("yes", "no"))).start()
    constraint.fill_mask()
    recorder = StageRecorder(chosen=ord("y"))
    logits = np.linspace(-1, 1, 260, dtype=np.float32)
    state = SamplingState(SamplingParams(), seed=0, constraint=constraint)
    assert Sampler(260).sample(logits, state, recorder).token_id in b"yn"
    raw, masked = recorder.records[:2]
    assert (raw.name, raw.alive) == ("raw", 260)
    assert (masked.name, masked.parameter, masked.alive) == ("structured_outputs", "choice", 2)
    assert 0.98 < masked.mass_removed < 1
    assert {standing.token_id for standing in masked.top} == set(b"yn")


@pytest.mark.parametrize("overlaps", [False, True])
def test_masks_are_filled_beside_the_model_where_a_core_is_free(overlaps: bool) -> None:
    """In a thread of their own, which a step without constrained answers does not need."""
    engine = make_engine()
    engine.runner._masks = MaskWorker(overlaps=overlaps)
    model: Any = engine.model
    names: list[str] = []
    model.on_forward = lambda batch: names.extend(thread.name for thread in threading.enumerate())
    one(engine, "abc", max_tokens=2)
    assert not any(name.startswith("pellucid-masks") for name in names)
    assert one(engine, "abc", structured_outputs=shaped(choice=("xyz",))).text == "xyz"
    assert any(name.startswith("pellucid-masks") for name in names) == overlaps


# The real model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["kind", "old", "tall"]}, "maxItems": 2},
        "friend": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "friend"],
    "additionalProperties": False,
}
SHAPES = (
    shaped(json=PERSON),
    shaped(json=PERSON, disable_any_whitespace=True),
    shaped(regex=r"[A-Z][a-z]{1,9}, \d{1,2} (January|May|July) \d{4}"),
    shaped(choice=("Paris", "London", "Tokyo, the capital of Japan")),
    shaped(
        json={"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 9.5}, "minItems": 2, "maxItems": 3}
    ),
)


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> LLM:
    return LLM(str(smollm2_path), kv_cache_memory_bytes=64 * 1024**2, max_model_len=512)


def test_real_answers_have_their_shapes(llm: LLM) -> None:
    """At temperature 1, where a small model would soon write something else; together they are what they are alone."""
    prompts = ["Describe a person as JSON: ", "Born on: ", "The town is "]
    asked = [
        (prompt, SamplingParams(structured_outputs=shape, seed=seed, max_tokens=120))
        for seed, prompt in enumerate(prompts)
        for shape in SHAPES
    ]
    answers = [out.outputs[0] for out in llm.generate([prompt for prompt, _ in asked], [params for _, params in asked])]
    for answer, (_, params) in zip(answers, asked, strict=True):
        shape = params.structured_outputs
        assert shape is not None
        assert answer.finish_reason == "stop", answer
        if shape.json is not None:
            Draft202012Validator(json.loads(str(shape.json))).validate(json.loads(answer.text))
        elif shape.regex is not None:
            assert re.fullmatch(shape.regex, answer.text)
        else:
            assert answer.text in (shape.choice or ())
    alone = llm.generate(asked[5][0], asked[5][1])[0].outputs[0]
    assert (alone.token_ids, alone.text) == (answers[5].token_ids, answers[5].text)
