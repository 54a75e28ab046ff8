"""Level 3 against transformers in float32: residuals, attention weights and logit lens of small models, stored by
tools/make_layer_goldens.py."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.families import BY_NAME, write_folder
from parity.ours import load_ours
from trace_checks import of_type, valid

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.sampling_params import SamplingParams
from pellucid.trace.probe import Recorder

GOLDEN = Path(__file__).parent / "golden_layers.npz"
with np.load(GOLDEN) as _stored:
    STORED = dict(_stored)
FAMILIES = sorted({name.split(".")[0] for name in STORED if "." in name})


class Letters:
    """Token i is the character i + 32."""

    eos_ids = frozenset((2,))
    add_space_prefix = False
    chat_template = None

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id + 32])

    def token_text(self, token_id: int) -> str:
        return chr(token_id + 32)

    def is_special(self, token_id: int) -> bool:
        return token_id < 3

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        return [ord(character) - 32 for character in text]

    def least_tokens(self, text: str) -> int:
        return len(text)


def traced(name: str, backend: str, folder: Path, **fields: Any) -> tuple[list[dict[str, Any]], Recorder]:
    small = BY_NAME[name]
    ids = small.token_ids()
    args = EngineArgs(model=name, max_model_len=len(ids) + 4, seed=0, **fields)
    engine = LLMEngine(load_ours(write_folder(small, folder), backend, max_model_len=len(ids)), Letters(), args)
    reader = engine.tracer.reader()
    recorder = engine.runner.probe = Recorder()
    engine.add_request("x", ids, SamplingParams(temperature=0, max_tokens=1), trace_level=3)
    while engine.has_unfinished_requests():
        engine.step()
    events = valid(reader.lines())
    pieces = {int(i): data for e in of_type(events, "pieces") for i, data in e["bytes_b64"].items()}
    for event in of_type(events, "layer"):
        assert all(base64.b64decode(pieces[i]) == bytes([i + 32]) for i in (event["lens"] or {"ids": ()})["ids"])
    return events, recorder


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_layers_do(name: str, backend: str, tmp_path: Path) -> None:
    events, recorder = traced(name, backend, tmp_path, kv_cache_dtype="float32")
    hidden, attention, lens = STORED[f"{name}.hidden"], STORED[f"{name}.attention"], STORED.get(f"{name}.lens")
    for place, position in enumerate(STORED["positions"].tolist()):
        np.testing.assert_allclose(recorder.tensors["embedding"][position], hidden[0, place], rtol=1e-5, atol=1e-5)
        for layer in range(len(hidden) - 1):
            expected = hidden[layer + 1, place].astype(np.float64)
            scale = np.abs(expected).max()
            assert np.abs(recorder.tensors[f"layers.{layer}.residual"][position] - expected).max() < 2e-4 * scale
            [event] = of_type(events, "layer", i=position, layer=layer)
            assert event["resid_rms"] == pytest.approx(np.sqrt((expected**2).mean()), rel=2e-4)
            assert event["absmax"] == pytest.approx(scale, rel=2e-4)
        for layer in range(len(attention)):
            [event] = of_type(events, "layer", i=position, layer=layer)
            for head in event["attn"]:
                weights = attention[layer, head["head"], place]
                np.testing.assert_allclose(head["w"], weights[head["idx"]], atol=2e-5)
                assert head["other"] == pytest.approx(1.0 - weights[head["idx"]].sum(), abs=5e-5)
                assert min(head["w"]) >= np.delete(weights, head["idx"]).max(initial=0.0) - 2e-5
    if lens is not None:
        for layer, p in enumerate(lens):
            [event] = of_type(events, "layer", i=int(STORED["positions"][-1]), layer=layer)
            np.testing.assert_allclose(event["lens"]["p"], p[event["lens"]["ids"]], atol=1e-4)
            assert event["lens"]["p"][0] == pytest.approx(p.max(), abs=1e-4)
            assert event["lens"]["entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-3)


@pytest.mark.parametrize("kind", ["int16", "float16", "int8"])
def test_keys_are_read_as_they_are_stored(kind: str, tmp_path: Path) -> None:
    """Of every type of cache: the weights differ from float32's by what the type rounds off."""
    bound = {"int16": 1e-3, "float16": 1e-3, "int8": 3e-2}[kind]
    events, _ = traced("llama", "native", tmp_path, kv_cache_dtype=kind)
    attention = STORED["llama.attention"]
    worst = 0.0
    for place, position in enumerate(STORED["positions"].tolist()):
        for layer in range(len(attention)):
            [event] = of_type(events, "layer", i=position, layer=layer)
            for head in event["attn"]:
                weights = attention[layer, head["head"], place][head["idx"]]
                worst = max(worst, float(np.abs(weights - head["w"]).max()))
    assert worst < bound


def test_experts_are_told(tmp_path: Path) -> None:
    events, _ = traced("qwen3moe", "native", tmp_path)
    for event in of_type(events, "layer"):
        moe = event["moe"]
        assert len(moe["ids"]) == len(moe["w"]) == 3
        assert sum(moe["w"]) == pytest.approx(1.0, abs=1e-4)
        assert 0 < moe["router_entropy"] < np.log(8) + 1e-6
    dense, _ = traced("llama", "native", tmp_path / "dense")
    assert all(event["moe"] is None for event in of_type(dense, "layer"))
