"""Two traces of the same prompt: where they first differ, with the values on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pellucid.glass.view import TraceView
from pellucid.trace.jsonl import number

MODEL_FIELDS = ("arch", "n_layers", "vocab", "quant", "weight_bytes")
"""What tells two models apart, whatever they are called."""
ENGINE_FIELDS = ("kv_cache_dtype", "precision", "isa", "backend", "quantization", "rope_scaling", "rope_theta")
"""Settings of an engine on which numbers depend; no other may change them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that is not the same."""

    what: str
    """In words: a parameter, a prompt token, a layer, a stage, a token drawn."""
    ours: Any
    theirs: Any
    position: int | None = None
    """The token it concerns."""


def first_difference(ours: TraceView, theirs: TraceView, tolerance: float = 0.0) -> Difference | None:
    """The first difference in the order of the journey; None where there is none.

    Numbers of layers and stages that differ by at most `tolerance` times their size are the same. Times, blocks and
    names are never compared.
    """
    found = _settings(ours, theirs) or _tokens(ours, theirs)
    if found is not None:
        return found
    for position in sorted(_told(ours) & _told(theirs)):
        found = _layers(ours, theirs, position, tolerance) or _sample(ours, theirs, position + 1, tolerance)
        if found is not None:
            return found
    return _ends(ours, theirs)


def _told(view: TraceView) -> set[int]:
    """Positions of rows of which the layers or the token drawn are told."""
    return {*view.layers, *(int(sample["i"]) - 1 for sample in view.samples)}


def _settings(ours: TraceView, theirs: TraceView) -> Difference | None:
    for name in MODEL_FIELDS:
        a, b = ours.header["model"].get(name), theirs.header["model"].get(name)
        if a != b:
            return Difference(f"the model's {name}", a, b)
    if ours.header["tokenizer"]["sha256"] != theirs.header["tokenizer"]["sha256"]:
        return Difference(
            "the tokenizer (sha256)", ours.header["tokenizer"]["sha256"], theirs.header["tokenizer"]["sha256"]
        )
    for name in ENGINE_FIELDS:
        a, b = ours.header["engine"].get(name), theirs.header["engine"].get(name)
        if a != b:
            return Difference(f"the engine's {name}", a, b)
    return None


def _tokens(ours: TraceView, theirs: TraceView) -> Difference | None:
    for position in range(max(ours.num_prompt, theirs.num_prompt)):
        a = ours.token_id(position) if position < ours.num_prompt else None
        b = theirs.token_id(position) if position < theirs.num_prompt else None
        if a != b:
            shown = [_named(view, one) for view, one in ((ours, a), (theirs, b))]
            return Difference(f"prompt token {position}", shown[0], shown[1], position)
    greedy = all(view.request["params"].get("temperature", {}).get("value") == 0 for view in (ours, theirs))
    for name, value in ours.request["params"].items():
        if name == "seed" and greedy:
            continue  # nothing is drawn with it
        other = theirs.request["params"].get(name, {}).get("value")
        if value["value"] != other:
            return Difference(f"the parameter {name}", value["value"], other)
    return None


def _named(view: TraceView, token_id: int | None) -> str:
    return "none" if token_id is None else f"{token_id} {view.text_of(token_id)}"


def _layers(ours: TraceView, theirs: TraceView, position: int, tolerance: float) -> Difference | None:
    mine, others = ours.layers.get(position, {}), theirs.layers.get(position, {})
    for layer in sorted(mine.keys() & others.keys()):
        for name in ("resid_rms", "attn_rms", "mlp_rms", "absmax", "nonfinite"):
            a, b = mine[layer][name], others[layer][name]
            if not _same(a, b, tolerance):
                words = {"resid_rms": "residual RMS", "attn_rms": "attention RMS", "mlp_rms": "MLP RMS"}
                what = f"{words.get(name, name)} of layer {layer} at position {position}"
                return Difference(what, a, b, position)
    return None


def _sample(ours: TraceView, theirs: TraceView, position: int, tolerance: float) -> Difference | None:
    pair = []
    for view in (ours, theirs):
        sample = view.sample_at(position)
        if sample is None:
            return None
        pair.append(sample)
    mine, other = pair
    for stage, against in zip(mine["stages"], other["stages"], strict=False):
        where = f"stage {stage['name']} of token {position}"
        if stage["name"] != against["name"]:
            return Difference(f"the stages of token {position}", stage["name"], against["name"], position)
        if stage["alive"] != against["alive"]:
            return Difference(f"tokens left after {where}", stage["alive"], against["alive"], position)
        if not _same(stage["entropy"], against["entropy"], tolerance):
            return Difference(f"entropy after {where}", stage["entropy"], against["entropy"], position)
        for (one, _, p), (two, _, q) in zip(stage["top"], against["top"], strict=False):
            if one != two or not _same(p, q, tolerance):
                shown = [f"{view.text_of(i)} {x:.6g}" for view, i, x in ((ours, one, p), (theirs, two, q))]
                return Difference(f"candidates after {where}", shown[0], shown[1], position)
    if mine["rng"]["u"] != other["rng"]["u"]:
        return Difference(f"the random number of token {position}", mine["rng"]["u"], other["rng"]["u"], position)
    if mine["id"] != other["id"]:
        shown = [_named(view, one["id"]) for view, one in ((ours, mine), (theirs, other))]
        return Difference(f"token {position}", shown[0], shown[1], position)
    return None


def _ends(ours: TraceView, theirs: TraceView) -> Difference | None:
    if len(ours.samples) != len(theirs.samples):
        return Difference("the number of tokens drawn", len(ours.samples), len(theirs.samples))
    reasons = [None if view.finish is None else view.finish["reason"] for view in (ours, theirs)]
    return Difference("why it stopped", *reasons) if reasons[0] != reasons[1] else None


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if a == b:
        return True
    x, y = number(a), number(b)
    return abs(x - y) <= tolerance * max(abs(x), abs(y))
