"""Draft models on small random files: a model for itself, a copy with noise, and pairs that do not go together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from small_models import LLAMA_SHAPE, llama_metadata, llama_tensors, write_llama

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.loading import needed_bytes
from pellucid.engine.output_processor import add_delta
from pellucid.errors import InvalidParameterError, PellucidError
from pellucid.formats.block_types import BLOCK_TYPES_BY_NAME
from pellucid.formats.quantize import quantize
from pellucid.outputs import RequestOutput
from pellucid.sampling_params import SamplingParams

PROMPTS = [[5, 9, 33, 70, 2, 5, 9], list(range(3, 40)), [11]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.9, seed=4, max_tokens=30, ignore_eos=True, logprobs=0, top_p=0.9),
    SamplingParams(temperature=1.0, seed=8, max_tokens=25, ignore_eos=True, n=2, repetition_penalty=1.2),
]


def vocabulary(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary as large as the small model's."""
    tokens = [chr(0x21 + i) for i in range(94)] + ["<|a|>", "<|b|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 94 + [3, 3],
        "tokenizer.ggml.merges": ['! "'],
        "tokenizer.ggml.eos_token_id": 94,
        "tokenizer.ggml.bos_token_id": 94,
        **changes,
    }


def write(path: Path, *, noise: float = 0.0, **changes: Any) -> Path:
    """The small model, its weights moved by so much of their spread."""
    tensors = llama_tensors(np.random.default_rng(0))
    rng = np.random.default_rng(1)
    for name, (shape, kind, data) in tensors.items():
        values = data.view(np.float32).reshape(shape)
        moved = values + rng.standard_normal(shape).astype(np.float32) * np.float32(noise * values.std())
        tensors[name] = (shape, kind, quantize(moved, BLOCK_TYPES_BY_NAME["F32"]))
    return write_llama(path, llama_metadata(**vocabulary(**changes)), tensors)


def engine_of(path: Path, **fields: Any) -> LLMEngine:
    return LLMEngine.from_args(EngineArgs(model=str(path), threads=1, seed=0, **fields))


def answers(engine: LLMEngine) -> list[Any]:
    totals: dict[str, RequestOutput] = {}
    for i, params in enumerate(PARAMS):
        for j, prompt in enumerate(PROMPTS):
            engine.add_request(f"{i} {j}", prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            totals[output.request_id] = add_delta(totals.get(output.request_id), output)
    engine.check_integrity()
    return [
        [(a.text, a.token_ids, a.logprobs, a.cumulative_logprob) for a in totals[name].outputs]
        for name in sorted(totals)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "target.gguf")


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Any]:
    return answers(engine_of(model, speculative_method="off"))


def test_the_model_as_its_own_draft_is_always_right(model: Path, expected: list[Any]) -> None:
    engine = engine_of(model, speculative_method="draft_model", speculative_model=str(model), num_speculative_tokens=5)
    assert answers(engine) == expected
    assert engine.stats.spec_draft_tokens > 200
    assert engine.stats.spec_acceptance_rate == 1.0


@pytest.mark.parametrize("fields", [{}, {"max_num_batched_tokens": 17, "max_num_seqs": 3}], ids=str)
def test_a_copy_with_noise_is_right_at_times(
    model: Path, expected: list[Any], tmp_path: Path, fields: dict[str, Any]
) -> None:
    """At temperatures above 0 as well: both draw with the same numbers."""
    draft = write(tmp_path / "draft.gguf", noise=0.01)
    for method in ("draft_model", "auto"):
        engine = engine_of(model, speculative_method=method, speculative_model=str(draft), **fields)
        assert answers(engine) == expected
        assert method == "auto" or 50 < engine.stats.spec_accepted_tokens < engine.stats.spec_draft_tokens


def test_another_vocabulary_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    tokens = vocabulary()["tokenizer.ggml.tokens"]
    other = [*tokens[:40], "é", *tokens[41:]]
    draft = write(tmp_path / "draft.gguf", **{"tokenizer.ggml.tokens": other})
    with pytest.raises(
        InvalidParameterError, match=r"draft.gguf' has another vocabulary than the model: token 40 is 'é', not 'I'"
    ) as caught:
        engine_of(model, speculative_model=str(draft))
    assert caught.value.field == "speculative_model"


def test_a_draft_model_that_is_not_there_is_named(model: Path) -> None:
    with pytest.raises(PellucidError, match=r"nowhere\.gguf"):
        engine_of(model, speculative_model="./nowhere.gguf")


def test_its_keys_and_values_count_as_memory(model: Path) -> None:
    """The pool is smaller for the same bytes, and what is needed is told with both."""
    plain = engine_of(model, kv_cache_memory_bytes=2**20)
    both = engine_of(model, kv_cache_memory_bytes=2**20, speculative_model=str(model))
    assert both.stats.kv_blocks_total == plain.stats.kv_blocks_total // 2
    alone = needed_bytes(EngineArgs(model=str(model), kv_cache_memory_bytes=2**20))
    with_draft = EngineArgs(model=str(model), kv_cache_memory_bytes=2**20, speculative_model=str(model))
    assert both.kv_cache_bytes == 2 * both.storage.nbytes
    assert both.weight_bytes == 2 * plain.weight_bytes > 0
    one_block = 2**20 // both.stats.kv_blocks_total
    assert abs(needed_bytes(with_draft) - alone - plain.config.weight_bytes) < one_block
    assert LLAMA_SHAPE["vocab"] == both.config.vocab_size
