"""What is refused when an engine is set up or a request handed in, before any work; and when a request arrived."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.mock_model import ByteTokenizer, MockModel, make_engine
from models.small_models import llama_metadata, llama_tensors, write_llama
from tokenizer.small_tokenizers import byte_level_metadata

from pellucid.config import EngineArgs
from pellucid.engine.llm import LLM
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.overflow import FittedPrompt
from pellucid.errors import InvalidParameterError, ModelFileError
from pellucid.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": 10**6}, "threads is 1000000, but must be a whole number from 1 to 1024"),
        ({"threads": 0}, "threads is 0, but must be a whole number from 1 to 1024"),
        ({"threads": 2.0}, "threads is 2.0, but must be"),
        ({"max_num_seqs": 10**9}, "max_num_seqs is 1000000000, but must be a whole number from 1 to 65536"),
        ({"max_num_batched_tokens": 10**12}, "but must be a whole number from 1 to 1048576"),
        ({"max_num_batched_tokens": None}, "max_num_batched_tokens is None, but must be"),
        ({"max_model_len": 1}, "max_model_len is 1, but must be a whole number of at least 2"),
        ({"max_model_len": 10**5000}, "max_model_len is a number too long to show, but must be"),
        ({"kv_cache_memory_bytes": 2**63}, "kv_cache_memory_bytes is 9223372036854775808, but must be"),
        ({"kv_cache_memory_bytes": -1}, "kv_cache_memory_bytes is -1, but must be a whole number of at least 1"),
        ({"block_size": 8}, "block_size is 8, but only 16 is supported"),
        ({"block_size": 16.0}, "block_size is 16.0, but only 16 is supported"),
        ({"seed": -1}, "seed is -1, but must be a whole number from 0 to 9223372036854775807"),
        ({"seed": True}, "seed is True, but must be"),
        (
            {"kv_cache_dtype": "int9"},
            "kv_cache_dtype is 'int9', but must be one of int16, float16, float32, int8, int4",
        ),
        ({"backend": "cuda"}, "backend is 'cuda', but must be one of native, reference"),
        ({"model": ""}, "model is '', but must be"),
    ],
)
def test_engine_args_out_of_range_name_the_field_and_the_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        EngineArgs(**changes)
    assert message in str(caught.value)
    assert caught.value.field == next(iter(changes))


def test_engine_args_have_one_default_each() -> None:
    assert EngineArgs() == EngineArgs(**{f.name: f.default for f in dataclasses.fields(EngineArgs)})


def test_a_kv_cache_larger_than_the_machine_is_refused() -> None:
    args = EngineArgs(model="mock", kv_cache_memory_bytes=10**18)
    with pytest.raises(
        InvalidParameterError, match=r"kv_cache_memory_bytes is 10.*, but must be at most the memory that this"
    ):
        LLMEngine(MockModel(), ByteTokenizer(), args)


def test_tokenizer_and_weights_of_different_sizes_are_refused(tmp_path: Path) -> None:
    """Otherwise the model could draw an id that is no token, in the middle of an answer."""
    path = write_llama(tmp_path / "m.gguf", llama_metadata() | byte_level_metadata())
    with pytest.raises(ModelFileError, match=r"m.gguf: the tokenizer has 267 tokens, but the embedding has 96 rows"):
        LLM(model=str(path))
    tensors = llama_tensors(np.random.default_rng(0))
    shape, kind, _ = tensors["token_embd.weight"]
    rows = np.random.default_rng(1).standard_normal((267, shape[1])).astype(np.float32)
    tensors["token_embd.weight"] = (rows.shape, kind, rows.view(np.uint8))
    with LLM(model=str(write_llama(tmp_path / "m.gguf", llama_metadata() | byte_level_metadata(), tensors))) as llm:
        answer = llm.generate("hello", SamplingParams(max_tokens=5, ignore_eos=True))[0].outputs[0]
    assert (len(answer.token_ids), answer.finish_reason) == (5, "length")


@pytest.mark.parametrize("bad", [5, None, "mask", [None], [lambda ids, logits: logits, 3]])
def test_logits_processors_that_are_none_are_refused_before_any_work(bad: Any) -> None:
    engine = make_engine()
    with pytest.raises(InvalidParameterError, match="logits_processors must be a list of functions"):
        engine.add_request("a", "abc", logits_processors=bad)
    assert not engine.has_unfinished_requests()
    engine.check_integrity()


@pytest.mark.parametrize("bad", [None, "high", 1.5, True])
def test_a_priority_that_is_no_whole_number_is_refused_before_any_work(bad: Any) -> None:
    engine = make_engine()
    with pytest.raises(InvalidParameterError, match=r"priority is .*, but must be a whole number"):
        engine.add_request("a", "abc", priority=bad)
    assert not engine.has_unfinished_requests()
    engine.check_integrity()


def test_a_request_arrives_when_the_caller_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """TTFT counts the rendering of the template and the encoding of the prompt, not only the engine's share."""
    llm = LLM.from_engine(make_engine())
    began: list[float] = []

    def slow(self: ByteTokenizer, text: str, **_: Any) -> list[int]:
        began.append(time.monotonic())
        return list(text.encode())

    monkeypatch.setattr(ByteTokenizer, "encode", slow)
    params = SamplingParams(max_tokens=2)
    for output in (llm.generate("abc", params)[0], list(llm.stream("abc", params))[-1]):
        assert output.metrics.arrival_time <= began[-1]
        assert output.metrics.ttft is not None
        assert 0 < output.metrics.ttft < time.monotonic() - output.metrics.arrival_time
    monkeypatch.setattr(LLM, "_fitted_chat", lambda *_: FittedPrompt(slow(ByteTokenizer(), "abc"), "abc"))
    message = [{"role": "user", "content": "x"}]
    for output in (llm.chat(message, params)[0], list(llm.stream(message, params))[-1]):
        assert output.metrics.arrival_time <= began[-1]
