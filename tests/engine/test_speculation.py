"""Speculation on the mock: the answers are the same bits, in fewer steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from engine_driver import PROMPT, drain, one
from mock_model import INF_TOKEN, NAN_TOKEN, MockModel, NoisyModel, check_cached_blocks, make_engine

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.scheduler import ScheduledRequest
from pellucid.engine.speculation.acceptance import MATCH_LENGTHS, Acceptance, match_kind
from pellucid.engine.speculation.costs import KNOTS, SHAPE, StepCosts
from pellucid.engine.speculation.draft_model import LAST_PAUSE
from pellucid.engine.speculation.drafts import Draft
from pellucid.engine.speculation.ngram import NgramProposer
from pellucid.engine.speculation.speculator import Speculator
from pellucid.errors import InvalidParameterError
from pellucid.outputs import RequestOutput
from pellucid.request import Request
from pellucid.sampling_params import SamplingParams

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "logprobs": 3},
    {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.01, "logprobs": 0},
    {"temperature": 1.2, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.4},
    {"temperature": 1.0, "min_tokens": 30},
    {"temperature": 1.0, "stop": ["ab", "cde"], "include_stop_str_in_output": True},
    {"temperature": 0.9, "n": 3, "prompt_logprobs": 1},
    {"temperature": 1.0, "max_tokens": 1},
    {"temperature": 1.0, "max_tokens": 2},
]


class Told(NgramProposer):
    """Proposes what it was told: the answer, with wrong tokens in places."""

    def __init__(self, answer: Sequence[int], *, wrong: int | None = None, every: int = 1000) -> None:
        super().__init__()
        self.answer, self.wrong, self.every = answer, wrong, every
        self.seen: list[tuple[Draft, list[int]]] = []

    def propose(self, wanted: Sequence[tuple[ScheduledRequest, int]]) -> list[Draft]:
        drafts = []
        for entry, count in wanted:
            first = len(entry.request.output_token_ids)
            ids = list(self.answer[first : first + count])
            for place in range(len(ids)):
                if (first + place) % self.every == self.every - 1 and self.wrong is not None:
                    ids[place] = self.wrong
            drafts.append(Draft(ids, [1.0] * len(ids)))
        return drafts

    def learn(self, request: Request, draft: Draft, drawn: Sequence[int]) -> None:
        self.seen.append((draft, list(drawn)))


def told(engine: LLMEngine, proposer: Told) -> LLMEngine:
    assert engine.speculator is not None
    engine.speculator.lookup = proposer
    return engine


def answer_of(engine: LLMEngine, **params: Any) -> RequestOutput:
    engine.add_request("one", PROMPT, SamplingParams(seed=5, **params))
    output = drain(engine)["one"]
    check_cached_blocks(engine)
    return output


def bits(output: RequestOutput) -> Any:
    return [
        (a.token_ids, a.text, a.finish_reason, a.stop_reason, a.logprobs, a.cumulative_logprob) for a in output.outputs
    ], output.prompt_logprobs


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_no_bit_depends_on_speculation(settings: dict[str, Any]) -> None:
    """Any method, with good drafts and bad ones, and a budget of few tokens."""
    expected = answer_of(make_engine(), **settings)
    ids = expected.outputs[0].token_ids
    assert bits(answer_of(make_engine(speculative_method="auto"), **settings)) == bits(expected)
    assert bits(answer_of(make_engine(speculative_method="ngram"), **settings)) == bits(expected)
    for share in (0.0, 0.5):
        engine = make_engine(speculative_method="draft_model", draft_model=NoisyModel(1, share))
        assert bits(answer_of(engine, **settings)) == bits(expected)
    for every in (1, 2, 5, 1000):
        proposer = Told(ids, wrong=ord("h"), every=every)
        engine = make_engine(speculative_method="ngram", max_num_batched_tokens=6)
        assert bits(answer_of(told(engine, proposer), **settings)) == bits(expected)


def test_right_drafts_save_steps() -> None:
    params = {"temperature": 1.0, "max_tokens": 80, "ignore_eos": True}
    plain = make_engine()
    ids = answer_of(plain, **params).outputs[0].token_ids
    engine = told(make_engine(speculative_method="ngram", num_speculative_tokens=7), Told(ids))
    output = answer_of(engine, **params)
    assert output.outputs[0].token_ids == ids
    assert plain.stats.num_steps == 80
    assert engine.stats.num_steps == 1 + -(-79 // 8), "the first token, then eight a step"
    assert output.metrics.num_draft_tokens == output.metrics.num_accepted_tokens == engine.stats.spec_draft_tokens
    assert engine.stats.spec_acceptance_rate == 1.0
    assert len(output.metrics.token_times) == 80


def test_a_model_drafting_for_itself_is_always_right() -> None:
    """Coupled by the same random numbers, at any temperature, for several answers and after a preemption."""
    params = SamplingParams(temperature=1.1, seed=3, max_tokens=60, ignore_eos=True, n=2, frequency_penalty=0.3)
    engine = make_engine(
        num_blocks=10, max_model_len=100, speculative_method="draft_model", draft_model=NoisyModel(0, 0.0)
    )
    for i in range(3):
        engine.add_request(f"r{i}", PROMPT, params)
    outputs = drain(engine)
    assert engine.stats.num_preemptions > 0
    assert engine.stats.spec_draft_tokens > 100
    assert engine.stats.spec_acceptance_rate == 1.0
    plain = make_engine()
    plain.add_request("x", PROMPT, params)
    assert bits(outputs["r2"]) == bits(drain(plain)["x"])


def test_the_draft_model_reads_what_the_prefix_cache_has() -> None:
    """A second request with the same prompt costs it the rows of what is new, not the prompt again."""
    draft = NoisyModel(0, 0.0)
    engine = make_engine(speculative_method="draft_model", draft_model=draft)
    prompt = (PROMPT * 4)[:100]
    rows = []
    for name in ("cold", "warm"):
        before = sum(draft.rows)
        engine.add_request(name, prompt, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
        drain(engine)
        rows.append(sum(draft.rows) - before)
    assert rows[0] > 100
    assert rows[1] < 20
    assert engine.stats.spec_acceptance_rate == 1.0


def test_a_stop_string_inside_an_accepted_run_ends_the_answer_there() -> None:
    """Nothing is drawn after it, and no logits processor sees a token after it."""
    plain = one(make_engine(), PROMPT, temperature=1.0, seed=5, max_tokens=60, ignore_eos=True)
    stop = plain.text[18:21]
    calls: list[list[int]] = []

    def watch(output: list[int], logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        calls.append(output)
        return logits

    ends = {}
    for method in ("off", "ngram"):
        calls.clear()
        engine = make_engine(speculative_method=method)  # type: ignore[arg-type]
        if method == "ngram":
            told(engine, Told(plain.token_ids))
        engine.add_request(
            "x",
            PROMPT,
            SamplingParams(temperature=1.0, seed=5, max_tokens=60, ignore_eos=True, stop=[stop]),
            logits_processors=[watch],
        )
        ends[method] = (bits(drain(engine)["x"]), list(calls))
    assert ends["ngram"] == ends["off"]
    assert ends["ngram"][0][0][0][2:4] == ("stop", stop)
    assert ends["ngram"][1][-1] == ends["ngram"][0][0][0][0][:-1], "called once for each token, with those before it"


def test_an_error_after_accepted_drafts_comes_after_their_tokens() -> None:
    """As without: a processor that fails at the fifth token fails there, and four are given."""

    def fail(output: list[int], logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if len(output) == 5:
            raise ValueError("no")
        return logits

    plain = one(make_engine(), PROMPT, temperature=0, max_tokens=20, ignore_eos=True)
    answers = []
    for engine in (make_engine(), told(make_engine(speculative_method="ngram"), Told(plain.token_ids))):
        engine.add_request("x", PROMPT, SamplingParams(temperature=0, max_tokens=20), logits_processors=[fail])
        answer = drain(engine)["x"].outputs[0]
        answers.append((answer.token_ids, answer.finish_reason, answer.error, answer.text))
    assert answers[0] == answers[1]
    assert (len(answers[0][0]), answers[0][1]) == (5, "error")


@pytest.mark.parametrize("token_id", [INF_TOKEN, NAN_TOKEN])
@pytest.mark.parametrize("every", [1, 3, 7])
def test_a_draft_that_cannot_be_stored_harms_nobody(token_id: int, every: int) -> None:
    """A refused guess of a token whose key overflows, or whose logits are NaN: as if it was not guessed."""
    params = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    expected = answer_of(make_engine(), **params)
    proposer = Told(expected.outputs[0].token_ids, wrong=token_id, every=every)
    engine = told(make_engine(speculative_method="ngram"), proposer)
    assert bits(answer_of(engine, **params)) == bits(expected)
    if token_id == INF_TOKEN:
        assert not np.any(engine.storage.layers[0].keys == INF_TOKEN), "its slot is wiped"


def test_a_failing_step_loses_no_token_that_was_drawn() -> None:
    """The second request's sampling is interrupted; what the first one drew in that step goes out with the next."""
    engine = make_engine(speculative_method="ngram")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = one(make_engine(), PROMPT, temperature=0, max_tokens=12, ignore_eos=True)
    raised = []

    def interrupt(output: list[int], logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if len(output) == 4 and not raised:
            raised.append(True)
            raise KeyboardInterrupt
        return logits

    engine.add_request("first", PROMPT, params)
    engine.add_request("second", PROMPT, params, logits_processors=[interrupt])
    got: dict[str, list[int]] = {"first": [], "second": []}
    while engine.has_unfinished_requests():
        try:
            outputs = engine.step()
        except KeyboardInterrupt:
            continue
        for output in outputs:
            got[output.request_id] += output.outputs[0].token_ids
    assert raised
    assert got == {"first": expected.token_ids, "second": expected.token_ids}


def test_no_draft_reaches_beyond_the_end_and_none_is_made_before_the_first_token() -> None:
    for max_tokens in (1, 2, 5, None):
        expected = one(make_engine(max_model_len=40), PROMPT, temperature=0, max_tokens=max_tokens, ignore_eos=True)
        engine = told(
            make_engine(max_model_len=40, num_blocks=3, speculative_method="ngram"), Told(expected.token_ids + [97] * 9)
        )
        longest: list[int] = []
        assert isinstance(engine.model, MockModel)
        engine.model.on_forward = lambda batch, seen=longest: seen.append(int(batch.seq_lens.max()))
        output = answer_of(engine, temperature=0, max_tokens=max_tokens, ignore_eos=True).outputs[0]
        assert output.token_ids == expected.token_ids
        assert longest[0] == len(PROMPT)
        assert max(longest) <= len(PROMPT) + len(expected.token_ids) - 1
        assert output.finish_reason == "length"


def test_drafts_take_what_known_tokens_leave_of_the_budget() -> None:
    engine = make_engine(speculative_method="ngram", max_num_batched_tokens=10, max_num_seqs=6)
    told(engine, Told([97] * 300))
    rows: list[int] = []
    assert isinstance(engine.model, MockModel)
    engine.model.on_forward = lambda batch: rows.append(len(batch.token_ids))
    for i in range(6):
        engine.add_request(str(i), PROMPT, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    steps_before = engine.stats.num_steps
    outputs = drain(engine)
    assert max(rows) == 10
    assert len({tuple(output.outputs[0].token_ids) for output in outputs.values()}) == 1
    assert engine.stats.num_steps > steps_before


def test_guesses_preempt_nobody() -> None:
    engine = make_engine(num_blocks=6, max_model_len=96, speculative_method="ngram", num_speculative_tokens=31)
    told(engine, Told([97] * 300))
    plain = make_engine(num_blocks=6, max_model_len=96)
    for each in (engine, plain):
        for i in range(3):
            each.add_request(str(i), PROMPT[:12], SamplingParams(temperature=0, max_tokens=19, ignore_eos=True))
        drain(each)
    assert plain.stats.num_preemptions == engine.stats.num_preemptions == 0


class Bad(NgramProposer):
    """Always guesses wrongly, and says it is sure."""

    def propose(self, wanted: Sequence[tuple[ScheduledRequest, int]]) -> list[Draft]:
        drafts = super().propose(wanted)
        return [Draft([0] * len(d.token_ids), d.odds, d.kind) for d in drafts]


def fixed_costs(speculator: Speculator | None) -> Speculator:
    """The measured shape, whatever this machine does."""
    assert speculator is not None
    speculator.costs.observe = lambda num_rows, seconds: None  # type: ignore[method-assign]
    return speculator


def test_it_switches_itself_off_when_guesses_are_wrong_and_on_again_when_they_are_right() -> None:
    engine = make_engine(speculative_method="auto")
    speculator = fixed_costs(engine.speculator)
    speculator.lookup = Bad()
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, allowed_token_ids=[97])
    engine.add_request("x", [97] * 20, params)
    steps = [engine.step()[0].outputs[0].token_ids for _ in range(80)]
    assert all(len(step) == 1 for step in steps)
    wrong = engine.stats.spec_draft_tokens
    for _ in range(20):
        engine.step()
    assert engine.stats.spec_draft_tokens == wrong, "off"
    lookup = NgramProposer()
    lookup._texts = speculator.lookup._texts
    speculator.lookup = lookup
    lengths = [len(engine.step()[0].outputs[0].token_ids) for _ in range(20)]
    assert lengths[-1] == 8, "guesses that are not verified are still looked at"
    assert lengths[0] == 1


def test_many_streams_are_not_speculated_on() -> None:
    """The default model's steps are bound by arithmetic then: a guess would have to be nearly certain."""
    engine = make_engine(speculative_method="auto", max_num_seqs=64, num_blocks=600, max_num_batched_tokens=512)
    fixed_costs(engine.speculator)
    for i in range(64):
        engine.add_request(str(i), PROMPT, SamplingParams(seed=i, max_tokens=60, ignore_eos=True))
    drain(engine)
    assert engine.stats.spec_draft_tokens < 0.05 * engine.stats.num_output_tokens


def test_a_useless_draft_model_is_left_alone_and_tried_again_now_and_then() -> None:
    engine = make_engine(
        speculative_method="auto", draft_model=NoisyModel(0, 1.0, 50.0), max_model_len=250, num_speculative_tokens=4
    )
    speculator = fixed_costs(engine.speculator)
    draft = speculator.draft_model
    assert draft is not None
    draft._cost = 0.2
    draft.costs.observe = lambda num_rows, seconds: None  # type: ignore[method-assign]
    engine.add_request("x", PROMPT[:9], SamplingParams(temperature=1.5, seed=1, max_tokens=200, ignore_eos=True))
    drain(engine)
    assert isinstance(draft.model, MockModel)
    assert 4 <= draft.model.num_forwards < 20


@pytest.mark.parametrize("num_prompt_tokens", [9, 100])
def test_a_draft_model_is_asked_once_the_targets_steps_were_timed(num_prompt_tokens: int) -> None:
    """Before its own were, it counts as a part of the target's, in seconds or not."""
    engine = make_engine(
        speculative_method="auto", draft_model=NoisyModel(0, 0.0, 0.0), max_model_len=250, max_num_batched_tokens=128
    )
    speculator = engine.speculator
    assert speculator is not None
    assert speculator.draft_model is not None
    observe = speculator.costs.observe
    speculator.costs.observe = lambda num_rows, seconds: observe(num_rows, 1e-3)  # type: ignore[method-assign]
    rows: list[int] = []
    speculator.draft_model.costs.observe = lambda num_rows, seconds: rows.append(num_rows)  # type: ignore[method-assign]
    speculator.draft_model._cost = 0.2
    engine.add_request("x", [97] * num_prompt_tokens, SamplingParams(seed=1, max_tokens=60, ignore_eos=True))
    output = drain(engine)["x"]
    assert output.metrics is not None
    assert output.metrics.num_accepted_tokens > 30
    assert set(rows) <= {1, 2}, "its step over the prompt does not tell what a guess takes"
    assert rows


def test_a_draft_model_that_seemed_slow_is_tried_for_later_requests_too() -> None:
    engine = make_engine(speculative_method="auto", draft_model=NoisyModel(0, 0.0, 0.0), max_model_len=250)
    speculator = fixed_costs(engine.speculator)
    draft = speculator.draft_model
    assert draft is not None
    draft.costs.observe(1, 100.0)  # the machine slept
    draft.costs.observe = lambda num_rows, seconds: None  # type: ignore[method-assign]
    assert isinstance(draft.model, MockModel)
    for i in range(LAST_PAUSE // 200 + 1):
        assert not draft.model.num_forwards
        engine.add_request(f"{i}", PROMPT[:9], SamplingParams(seed=i, max_tokens=200, ignore_eos=True))
        drain(engine)
    assert 0 < draft.model.num_forwards <= 6, "at once, after 64 tokens and after 128 more; two guesses each"


def test_acceptance_follows_what_is_seen() -> None:
    assert [match_kind(length) for length in (1, 2, 3, 4, 5, 6, 8, 9, 15, 16, 40)] == [0, 1, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    acceptance = Acceptance((0.4,) * len(MATCH_LENGTHS))
    assert acceptance.probability(0) == 0.4
    for _ in range(40):
        acceptance.observe(0, is_right=False)
    assert acceptance.probability(0) < 0.1
    assert acceptance.probability(1) == 0.4
    for _ in range(60):
        acceptance.observe(0, is_right=True)
    assert acceptance.probability(0) > 0.85


def test_costs_learn_the_machine_and_never_fall_with_more_rows() -> None:
    costs = StepCosts()
    assert [costs.seconds(rows) for rows in KNOTS] == pytest.approx(SHAPE)
    assert costs.seconds(7) == pytest.approx((1.72 + 2.1) / 2)
    assert costs.seconds(128) == pytest.approx(14.0 + (14.0 - 10.6) * 64 / 16)
    for _ in range(20):
        for rows in (1, 2, 4):
            costs.observe(rows, 0.010 * rows)  # a machine that is bound by arithmetic from the first row on
    assert costs.seconds(1) == pytest.approx(0.010, rel=0.2)
    assert costs.seconds(2) == pytest.approx(0.020, rel=0.2)
    assert costs.seconds(4) == pytest.approx(0.040, rel=0.2)
    before = costs.seconds(4)
    costs.observe(4, 5.0)
    assert costs.seconds(4) > before
    assert costs.seconds(4) < 1.2 * before, "a step during which the machine slept"
    for _ in range(1000):
        costs.observe(1, 0.020)  # it became slower: every eighth step is seen
    assert costs.seconds(1) == pytest.approx(0.020, rel=0.02)
    assert costs.seconds(4) > 0.028, "what was not seen for long is taken along"
    costs = StepCosts()
    for _ in range(20):
        for rows, seen in ((1, 0.0087), (2, 0.0127), (3, 0.0186), (4, 0.0222)):
            costs.observe(rows, seen)  # two cores with AVX2
    assert costs.seconds(6) == pytest.approx(0.0318, rel=0.15), "more rows than were seen: as those nearest to it"
    assert costs.seconds(8) == pytest.approx(0.0410, rel=0.2)
    seconds = [costs.seconds(rows) for rows in range(1, 200)]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"speculative_method": "medusa"}, "speculative_method is 'medusa', but must be one of auto, ngram"),
        ({"speculative_method": "draft_model"}, "speculative_model must name a model"),
        ({"speculative_method": "off", "speculative_model": "m"}, "speculative_method off uses none"),
        ({"speculative_method": "ngram", "speculative_model": "m"}, "speculative_method ngram uses none"),
        ({"speculative_model": ""}, "speculative_model is '', but must be a name"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0, but must be a whole number from 1 to 31"),
        ({"num_speculative_tokens": 32}, "num_speculative_tokens is 32"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidParameterError, match=sentence):
        EngineArgs(**fields)


def test_a_draft_model_for_shorter_texts_is_refused() -> None:
    draft = MockModel(context_length=100)
    with pytest.raises(InvalidParameterError, match="'mock' was trained for 100 positions, but max_model_len is 256"):
        make_engine(speculative_method="draft_model", draft_model=draft)  # type: ignore[arg-type]
