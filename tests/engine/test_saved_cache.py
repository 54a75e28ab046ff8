"""The prefix cache over restarts: what is found again gives the same bits, and other engines do not take it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from engine_driver import run
from mock_model import ByteTokenizer, MockModel

from pellucid.config import EngineArgs
from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.llm import LLM
from pellucid.engine.llm_engine import LLMEngine
from pellucid.errors import InvalidParameterError, KVCacheFileError, PellucidWarning
from pellucid.sampling_params import SamplingParams

PROMPT = [ord(c) for c in "abcdefg" * 10]
PARAMS = SamplingParams(temperature=0, max_tokens=20, logprobs=2, ignore_eos=True)


def engine(path: Path, **fields: Any) -> LLMEngine:
    return LLMEngine(MockModel(), ByteTokenizer(), EngineArgs(model="mock", kv_cache_save=str(path), **fields))


def test_a_warm_start_gives_the_same_bits(tmp_path: Path) -> None:
    first = engine(tmp_path / "cache")
    cold = run(first, {"r": (PROMPT, PARAMS)})["r"]
    assert first.save_kv_cache() == len(first.kv.cache) > 4
    second = engine(tmp_path / "cache")
    second.check_integrity()
    warm = run(second, {"r": (PROMPT, PARAMS)})["r"]
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 64)
    assert warm.outputs[0].token_ids == cold.outputs[0].token_ids
    assert warm.outputs[0].logprobs == cold.outputs[0].logprobs


def test_llm_saves_when_it_closes_and_says_once_why_a_file_is_not_used(tmp_path: Path) -> None:
    with LLM.from_engine(engine(tmp_path / "cache")) as llm:
        llm.generate(PROMPT, PARAMS)
    with LLM.from_engine(engine(tmp_path / "cache")) as llm:
        assert llm.generate(PROMPT, PARAMS)[0].num_cached_tokens == 64
    with pytest.warns(PellucidWarning, match="saved with another --kv-cache-dtype") as caught:
        llm = LLM.from_engine(engine(tmp_path / "cache", kv_cache_dtype="float32"))
    assert len(caught) == 1
    assert llm.generate(PROMPT, PARAMS)[0].num_cached_tokens == 0


@pytest.mark.parametrize("other", [{"rope_theta": 500.0}, {"rope_scaling": {"rope_type": "linear", "factor": 2}}])
def test_other_positions_are_named(tmp_path: Path, other: dict[str, Any]) -> None:
    engine(tmp_path / "cache").save_kv_cache()
    saved = engine(tmp_path / "cache", **other).saved_cache
    assert saved is not None
    [name] = other
    assert f"saved with another --{name.replace('_', '-')}" in (saved.note or "")


def test_other_arithmetic_is_noticed(tmp_path: Path) -> None:
    first = engine(tmp_path / "cache")
    run(first, {"r": (PROMPT, PARAMS)})
    first.save_kv_cache()
    model = MockModel()
    forward = model.forward

    def other(batch: Any, kv: Any, probe: Any = None) -> Any:
        output = forward(batch, kv, probe)
        kv.layers[0].values[kv.num_blocks - 1] += 1
        return output

    model.forward = other  # type: ignore[method-assign]
    second = LLMEngine(model, ByteTokenizer(), first.args)
    assert second.saved_cache is not None
    assert "arithmetic" in (second.saved_cache.note or "")
    assert len(second.kv.cache) == 0


def test_async_llm_saves_when_it_closes(tmp_path: Path) -> None:
    async def use(path: Path) -> tuple[int | None, AsyncLLM]:
        llm = AsyncLLM(engine(path))
        outputs = [output async for output in llm.generate(PROMPT, PARAMS)]
        await llm.close()
        return outputs[-1].num_cached_tokens, llm

    assert asyncio.run(use(tmp_path / "cache"))[0] == 0
    assert asyncio.run(use(tmp_path / "cache"))[0] == 64
    found, llm = asyncio.run(use(tmp_path / "no folder" / "cache"))
    assert found == 0
    assert "cannot be saved" in (llm.closing_note or "")


def test_what_cannot_be_saved_is_an_error_of_close(tmp_path: Path) -> None:
    llm = LLM.from_engine(engine(tmp_path / "no folder" / "cache"))
    with pytest.raises(KVCacheFileError, match="cannot be saved"):
        llm.close()


def test_without_a_prefix_cache_there_is_nothing_to_save() -> None:
    with pytest.raises(InvalidParameterError, match="needs enable_prefix_caching"):
        EngineArgs(kv_cache_save="x", enable_prefix_caching=False)
    with pytest.raises(InvalidParameterError, match="name of a file"):
        EngineArgs(kv_cache_save="")
    assert LLMEngine(MockModel(), ByteTokenizer(), EngineArgs(model="mock")).save_kv_cache() is None


def test_the_default_model_warm_from_a_file(smollm2_path: Path, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=1)
    text = "The quick brown fox jumps over the lazy dog. " * 8
    outputs = []
    for _ in range(2):
        with LLM(str(smollm2_path), max_model_len=256, kv_cache_save=str(tmp_path / "cache")) as llm:
            outputs += llm.generate(text, params)
    cold, warm = outputs
    assert cold.num_cached_tokens == 0
    assert (warm.num_cached_tokens or 0) >= 64
    assert warm.outputs[0].logprobs == cold.outputs[0].logprobs


def test_a_cache_of_other_settings_is_kept_aside_once(tmp_path: Path) -> None:
    path, aside = tmp_path / "cache", tmp_path / "cache.old"
    with LLM.from_engine(engine(path)) as llm:
        llm.generate(PROMPT, PARAMS)
    first = path.read_bytes()
    with pytest.warns(PellucidWarning, match=r"this file is kept as .*cache\.old"):
        llm = LLM.from_engine(engine(path, kv_cache_dtype="float32"))
    assert path.read_bytes() == first
    llm.save_kv_cache()
    second = path.read_bytes()
    assert (aside.read_bytes(), second != first) == (first, True)
    llm.generate(PROMPT, PARAMS)
    llm.close()
    assert aside.read_bytes() == first, "its own file is no other's"
    assert path.read_bytes() != second


@pytest.mark.parametrize("content", [b"GGUF and a model", b"P", b"notes\n"])
def test_what_is_no_cache_is_never_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(InvalidParameterError, match="is no saved KV cache, and saving one would replace it"):
        engine(path)
    with pytest.raises(InvalidParameterError, match="is no saved KV cache"):
        LLMEngine.from_args(EngineArgs(model="/there/is/none.gguf", kv_cache_save=str(path)))
    assert path.read_bytes() == content
    with pytest.raises(InvalidParameterError, match="cannot be read: Is a directory"):
        engine(tmp_path)


def test_an_empty_file_is_a_new_cache(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.touch()
    with LLM.from_engine(engine(path)) as llm:
        llm.generate(PROMPT, PARAMS)
    assert path.stat().st_size > 0
    assert not (tmp_path / "cache.old").exists()
