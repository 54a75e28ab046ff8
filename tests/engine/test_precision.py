"""--precision fast: which rows it touches, and which it never does."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import one, run
from mock_model import MockModel, make_engine

from pellucid.config import PRECISIONS, EngineArgs, SpeculativeMethod
from pellucid.engine.llm import LLM
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.model_runner import MIN_FAST_ROWS
from pellucid.errors import InvalidParameterError
from pellucid.forward_batch import ForwardBatch, Int32Array
from pellucid.sampling_params import SamplingParams

PROMPT_LENGTH = 45
PROMPTS = [[ord("a") + (7 * i * i + n) % 7 for i in range(PROMPT_LENGTH)] for n in range(5)]
ANSWER = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)


def batches_of(engine: LLMEngine) -> list[tuple[list[Int32Array], list[bool] | None]]:
    """Of every batch the model gets from now on: the positions of its sequences, and which rows may be fast."""
    seen: list[tuple[list[Int32Array], list[bool] | None]] = []

    def record(batch: ForwardBatch) -> None:
        sequences = [batch.positions[a:b].copy() for a, b in pairwise(batch.query_start_loc)]
        seen.append((sequences, None if batch.fast_rows is None else batch.fast_rows.tolist()))

    assert isinstance(engine.model, MockModel)
    engine.model.on_forward = record
    return seen


@pytest.mark.parametrize("method", ["off", "ngram"])
@pytest.mark.parametrize("budget", [12, 40, 256])
def test_only_prompt_rows_are_fast_recomputed_ones_too(budget: int, method: SpeculativeMethod) -> None:
    """Guesses are rows behind the prompt, too."""
    engine = make_engine(
        precision="fast", max_num_batched_tokens=budget, max_model_len=96, num_blocks=9, speculative_method=method
    )
    seen = batches_of(engine)
    run(engine, {str(i): (prompt, ANSWER) for i, prompt in enumerate(PROMPTS)})
    assert engine.stats.num_preemptions > 0
    recomputed_answers = num_fast = 0
    for sequences, fast in seen:
        expected: list[bool] = []
        for positions in sequences:
            prompt_rows = int((positions < PROMPT_LENGTH).sum())
            is_fast = prompt_rows >= MIN_FAST_ROWS
            expected += [is_fast] * prompt_rows + [False] * (len(positions) - prompt_rows)
            recomputed_answers += len(positions) > 1 and len(positions) > prompt_rows
        assert fast == expected
        num_fast += sum(expected)
    assert recomputed_answers > 0
    assert (num_fast > 0) == (budget >= MIN_FAST_ROWS)


def test_exact_marks_nothing() -> None:
    engine = make_engine()
    seen = batches_of(engine)
    one(engine, PROMPTS[0], max_tokens=3)
    assert all(fast is None for _, fast in seen)


def test_fast_and_exact_blocks_have_different_cache_keys() -> None:
    keys = []
    for precision in PRECISIONS:
        engine = make_engine(precision=precision)
        engine.add_request("r", PROMPTS[0], ANSWER)
        keys.append(engine.scheduler.waiting[0].cache_key)
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"precision": "bf16"}, r"precision is 'bf16', but must be one of exact, fast"),
        ({"precision": "fast", "backend": "reference"}, r"precision fast needs backend native, not reference"),
    ],
)
def test_what_cannot_be_fast_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        EngineArgs(**fields)


def test_the_default_model_fast_for_prompts_and_exact_for_answers(smollm2_path: Path) -> None:
    """A long prompt's logprobs move a little; a prompt below the least size keeps its bits."""
    exact = LLM(str(smollm2_path), threads=1)
    fast = LLM.from_engine(
        LLMEngine(exact.engine.model, exact.engine.tokenizer, EngineArgs(model=str(smollm2_path), precision="fast"))
    )
    text = "The sea was calm that morning, and the baker walked down to the harbour to see whether the boats were back."
    params = SamplingParams(temperature=0, seed=1, max_tokens=4, logprobs=0, prompt_logprobs=0)

    def prompt_logprobs(llm: LLM, prompt: str) -> list[float]:
        given = llm.generate([prompt], params)[0].prompt_logprobs
        assert given is not None
        return [next(iter(row.values())).logprob for row in given if row is not None]

    apart = np.array(prompt_logprobs(fast, text)) - np.array(prompt_logprobs(exact, text))
    assert 0 < np.abs(apart).max() < 0.5
    short = "Once upon a time"
    one_way, other_way = (llm.generate([short], params)[0] for llm in (exact, fast))
    assert one_way.outputs == other_way.outputs
