"""Level 3 on a small model: what is told of a layer is what the layer did."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import drain
from trace_checks import check_parts, of_type, valid

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.tracing import tracer
from pellucid.engine.tracing.layers import attention_weights, layer_records, strongest
from pellucid.kernels.backend import AttentionParams
from pellucid.kernels.reference import ReferenceBackend
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.sampling_params import SamplingParams
from pellucid.trace.probe import Recorder

PROMPT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer"


def make(path: Path, **fields: Any) -> LLMEngine:
    return LLMEngine.from_args(EngineArgs(model=str(path), seed=0, threads=2, max_model_len=512, **fields))


def rms(rows: np.ndarray) -> np.ndarray:
    return np.sqrt((rows.astype(np.float64) ** 2).mean(axis=-1))


@pytest.fixture(scope="module")
def traced(tiny_model: Path) -> tuple[LLMEngine, list[dict[str, Any]], Recorder]:
    """An engine, the events of a request, and all tensors of its first step."""
    engine = make(tiny_model)
    reader = engine.tracer.reader()
    recorder = engine.runner.probe = Recorder()
    engine.add_request("x", PROMPT, SamplingParams(max_tokens=4, seed=1, ignore_eos=True), trace_level=3)
    engine.step()
    engine.runner.probe = None
    drain(engine)
    return engine, valid(reader.lines()), recorder


def test_norms_are_those_of_the_tensors(traced: tuple[LLMEngine, list[dict[str, Any]], Recorder]) -> None:
    engine, events, recorder = traced
    tensors = recorder.tensors
    before = tensors["embedding"]
    for layer in range(engine.config.num_layers):
        after = tensors[f"layers.{layer}.residual"]
        added = tensors[f"layers.{layer}.attn.added"]
        told = of_type(events, "layer", step=0, layer=layer)
        assert [e["i"] for e in told] == list(range(len(after)))
        np.testing.assert_allclose([e["resid_rms"] for e in told], rms(after), rtol=1e-5)
        np.testing.assert_allclose([e["attn_rms"] for e in told], rms(added - before), rtol=1e-5)
        np.testing.assert_allclose([e["mlp_rms"] for e in told], rms(after - added), rtol=1e-5)
        np.testing.assert_allclose([e["absmax"] for e in told], np.abs(after).max(axis=1))
        assert {e["nonfinite"] for e in told} == {0}
        before = after


def test_attention_weights_give_the_layers_own_attention(
    traced: tuple[LLMEngine, list[dict[str, Any]], Recorder],
) -> None:
    """Recomputed weights times the values are what the kernels gave, as far as the cache's type allows."""
    engine, events, recorder = traced
    heads, groups, dim = engine.config.num_heads, engine.config.num_kv_heads, engine.config.head_dim
    count = len(recorder.tensors["embedding"])
    for layer in range(engine.config.num_layers):
        part = {n: recorder.tensors[f"layers.{layer}.attn.{n}"].reshape(count, -1, dim) for n in ("q", "k", "v", "out")}
        params = engine.model.attention_params(layer)
        weights = attention_weights(part["q"], part["k"].swapaxes(0, 1), np.arange(count), params)
        np.testing.assert_allclose(weights.sum(axis=2), 1.0, rtol=1e-5)
        values = np.repeat(part["v"], heads // groups, axis=1)
        np.testing.assert_allclose(np.einsum("rhn,nhd->rhd", weights, values), part["out"], atol=2e-3)
        for event in of_type(events, "layer", step=0, layer=layer):
            if event["i"] < count - 32:
                assert event["attn"] is None
                continue
            assert [one["head"] for one in event["attn"]] == list(range(heads))
            for one in event["attn"]:
                assert len(one["idx"]) == min(16, event["i"] + 1)
                assert max(one["idx"]) <= event["i"]
                assert one["w"] == sorted(one["w"], reverse=True)
                assert sum(one["w"]) + one["other"] == pytest.approx(1.0, abs=1e-5)
                own = weights[event["i"], one["head"]]
                np.testing.assert_allclose(one["w"], own[one["idx"]], atol=2e-3)


def test_the_last_layers_lens_is_the_distribution_itself(
    traced: tuple[LLMEngine, list[dict[str, Any]], Recorder],
) -> None:
    engine, events, _ = traced
    samples = of_type(events, "sample")
    assert len(samples) == 4
    for sample in samples:
        last = engine.config.num_layers - 1
        [event] = of_type(events, "layer", i=sample["i"] - 1, layer=last)
        raw = sample["stages"][0]
        assert event["lens"]["ids"] == [token_id for token_id, _, _ in raw["top"][:5]]
        np.testing.assert_allclose(event["lens"]["p"], [p for _, _, p in raw["top"][:5]], atol=1e-6)
        assert event["lens"]["entropy"] == pytest.approx(raw["entropy"], abs=1e-4)
    with_lens = {e["i"] for e in of_type(events, "layer") if e["lens"] is not None}
    assert with_lens == {sample["i"] - 1 for sample in samples}


def test_a_step_has_the_time_that_its_layers_took_to_be_told(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    took: dict[int, int] = {}

    def timed(*args: Any) -> Any:
        began = time.monotonic_ns()
        records = layer_records(*args)
        took[args[5]] = time.monotonic_ns() - began
        return records

    monkeypatch.setattr(tracer, "layer_records", timed)
    engine = make(tiny_model)
    reader = engine.tracer.reader()
    engine.add_request("x", PROMPT, SamplingParams(max_tokens=4, seed=1, ignore_eos=True), trace_level=3)
    drain(engine)
    steps = of_type(valid(reader.lines()), "step")
    assert [step["step"] for step in steps] == sorted(took) == [0, 1, 2, 3]
    for step in steps:
        assert step["ns"]["tracing"] >= took[step["step"]]
        assert sum(step["ns"].values()) == step["t1_ns"] - step["t0_ns"]


def test_parts_add_up_at_every_level(tiny_model: Path) -> None:
    for level in (1, 2, 3):
        engine = make(tiny_model)
        reader = engine.tracer.reader()
        for i in range(3):
            engine.add_request(str(i), PROMPT[i:], SamplingParams(max_tokens=3), trace_level=level)
        drain(engine)
        finishes = of_type(valid(reader.lines()), "finish")
        assert len(finishes) == 3
        for finish in finishes:
            check_parts(finish)


def test_tokens_are_the_same_at_every_level_and_in_any_batch(tiny_model: Path) -> None:
    params = [SamplingParams(max_tokens=8, seed=i, temperature=0.9, top_p=0.9, logprobs=1) for i in range(4)]
    said = []
    for level in (0, 1, 2, 3):
        for fields in ({}, {"max_num_batched_tokens": 32, "speculative_method": "ngram", "num_speculative_tokens": 3}):
            engine = make(tiny_model, **fields)
            for i, one in enumerate(params):
                engine.add_request(str(i), PROMPT[: 20 * (i + 1)], one, trace_level=level if i != 2 else 0)
            outputs = drain(engine)
            said.append([(outputs[str(i)].outputs[0].token_ids, outputs[str(i)].outputs[0].logprobs) for i in range(4)])
    assert all(one == said[0] for one in said)


def test_refused_drafts_are_not_told(tiny_model: Path) -> None:
    engine = make(tiny_model, speculative_method="ngram", num_speculative_tokens=3)
    reader = engine.tracer.reader()
    prompt = "abc abc abc abc abc"
    engine.add_request("x", prompt, SamplingParams(max_tokens=24, temperature=0, ignore_eos=True), trace_level=3)
    [answer] = drain(engine)["x"].outputs
    events = valid(reader.lines())
    assert of_type(events, "spec")
    told = [e["i"] for e in of_type(events, "layer", layer=0)]
    assert told == list(range(told[0], told[0] + len(told)))
    assert told[-1] == of_type(events, "request")[0]["tokens"][-1]["pos"] + len(answer.token_ids) - 1


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("extra", [None, "sinks", "slopes"])
def test_attention_weights_follow_the_reference_kernels(
    window: int | None, softcap: float | None, extra: str | None
) -> None:
    """The definition's attention of random rows, from the recomputed weights."""
    from pellucid.forward_batch import ForwardBatch

    random = np.random.default_rng(3)
    heads, groups, dim, count, size = 4, 2, 8, 20, 16
    params = AttentionParams(
        scale=0.3,
        window=window,
        softcap=softcap,
        sinks=random.standard_normal(heads).astype(np.float32) if extra == "sinks" else None,
        slopes=np.float32([0.5, 0.25, 0.125, 0.0625]) if extra == "slopes" else None,
    )
    backend = ReferenceBackend()
    cache = backend.layer_cache(KVCacheStorage(1, 2, groups, dim, size, "float32").layers[0])
    positions = np.arange(count, dtype=np.int32)
    batch = ForwardBatch(
        token_ids=positions,
        positions=positions,
        slot_mapping=np.arange(count, dtype=np.int64),
        query_start_loc=np.int32([0, count]),
        seq_lens=np.int32([count]),
        block_table=np.int32([[0, 1]]),
    )
    step = backend.step(batch)
    qkv = random.standard_normal((count, (heads + 2 * groups) * dim)).astype(np.float32)
    none = np.zeros((count, 0), dtype=np.float32)
    backend.rotate_and_store(qkv, heads, None, None, 0.0, none, none, step, cache)
    out = np.zeros((count, heads * dim), dtype=np.float32)
    backend.attention(qkv, heads, params, step, cache, out)
    per_head = qkv.reshape(count, -1, dim)
    weights = attention_weights(
        per_head[:, :heads], per_head[:, heads : heads + groups].swapaxes(0, 1), np.arange(count), params
    )
    seen = np.einsum("rhn,nhd->rhd", weights, np.repeat(per_head[:, heads + groups :], heads // groups, axis=1))
    np.testing.assert_allclose(seen.reshape(count, -1), out, atol=1e-5)
    ids, kept, rest = strongest(weights)
    np.testing.assert_allclose(kept.sum(axis=2) + rest, 1.0, atol=1e-5)
    assert (ids[0, :, 1:] == -1).all()


def test_long_prompts_in_chunks_have_attention_at_their_end_only(tiny_model: Path) -> None:
    engine = make(tiny_model, max_num_batched_tokens=16)
    reader = engine.tracer.reader()
    engine.add_request("x", PROMPT, SamplingParams(max_tokens=2, ignore_eos=True), trace_level=3)
    engine.add_request("y", PROMPT[5:], SamplingParams(max_tokens=2, ignore_eos=True), trace_level=3)
    drain(engine)
    events = valid(reader.lines())
    for name in "xy":
        length = len(of_type(events, "request", req=name)[0]["tokens"])
        told = of_type(events, "layer", req=name, layer=1)
        first = told[0]["i"]  # what the prefix cache had is not computed
        assert [e["i"] for e in told] == list(range(first, length + 1))
        assert [e["i"] for e in told if e["attn"]] == list(range(max(first, length - 32), length + 1))
        assert [e["i"] for e in told if e["lens"]] == [length - 1, length]
