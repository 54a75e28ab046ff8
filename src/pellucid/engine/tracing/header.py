"""The first event of a trace: which model, tokenizer and engine it is about."""

from __future__ import annotations

import hashlib
from importlib import metadata
from typing import Any, Protocol

from pellucid.config import EngineArgs, ModelConfig, RopeConfig
from pellucid.models.rotary import inverse_frequencies
from pellucid.trace.events import SCHEMA, Event

HIDDEN_ARGS = ("kv_cache_save",)
"""Fields of EngineArgs that name files of the machine."""


class Described(Protocol):
    """What the header tells of an engine."""

    args: EngineArgs
    config: ModelConfig
    tokenizer: Any
    model: Any
    max_model_len: int


def header_of(engine: Described, level: int) -> Event:
    """The header event; reads the whole vocabulary once for its checksum."""
    args = engine.args
    backend = getattr(engine.model, "backend", None)
    return {
        "type": "header",
        "schema": SCHEMA,
        "model": _model(engine),
        "tokenizer": _tokenizer(engine.tokenizer),
        "engine": {
            "name": "pellucid",
            "version": _version(),
            "max_model_len": engine.max_model_len,
            "isa": getattr(backend, "isa", None),
            **{name: getattr(args, name) for name in args.__dataclass_fields__ if name not in (*HIDDEN_ARGS, "model")}
            | {"threads": getattr(backend, "threads", args.threads), "max_model_len": engine.max_model_len},
        },
        "level": level,
        "redacted": False,
    }


def _model(engine: Described) -> dict[str, Any]:
    config, args = engine.config, engine.args
    return {
        "id": args.model,
        "name": config.name,
        "arch": config.architecture,
        "n_layers": config.num_layers,
        "d_model": config.hidden_size,
        "n_heads": config.num_heads,
        "n_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab": config.vocab_size,
        "rope": _rope(config, engine.max_model_len),
        "dtype": "float32",
        "quant": config.weight_type,
        "weight_bytes": config.weight_bytes,
        "kv_bytes_per_token": config.kv_bytes_per_token(args.kv_cache_dtype),
        "n_experts": None if config.experts is None else config.experts.num_experts,
        "sliding_window": config.sliding_window,
    }


def _rope(config: ModelConfig, max_model_len: int) -> dict[str, Any]:
    """Positions: of full-attention layers, where layers differ. `inv_freq` is radians per position of each pair."""
    rope = config.rope if config.positions == "rope" else None
    scaling = None if rope is None else rope.scaling
    told = _frequencies(rope, max_model_len)
    return {
        "type": config.positions if rope is None else told["type"],
        "theta": told["theta"],
        "factor": told["factor"],
        "orig_ctx": config.context_length if scaling is None else scaling.original_context or config.context_length,
        "max_pos": config.context_length,
        "dim": None if rope is None else rope.dim,
        "inv_freq": told["inv_freq"],
        "kinds": None if rope is None else _kinds(config, max_model_len),
    }


def _kinds(config: ModelConfig, max_model_len: int) -> list[dict[str, Any]] | None:
    """Layers by their rotation and their window (Gemma 3: local and global ones); None where all are alike."""
    layers: dict[tuple[RopeConfig | None, int | None], list[int]] = {}
    for layer in range(config.num_layers):
        layers.setdefault((config.layer_rope(layer), config.window(layer)), []).append(layer)
    if len(layers) < 2:
        return None
    return [
        {"layers": found, "window": window, **_frequencies(rope, max_model_len)}
        for (rope, window), found in layers.items()
    ]


def _frequencies(rope: RopeConfig | None, max_model_len: int) -> dict[str, Any]:
    if rope is None:
        return {"type": "none", "theta": None, "factor": None, "inv_freq": None}
    scaling = rope.scaling
    return {
        "type": "default" if scaling is None else scaling.kind,
        "theta": rope.theta,
        "factor": None if scaling is None else scaling.factor,
        "inv_freq": [float(f"{x:.7g}") for x in inverse_frequencies(rope, max_model_len).tolist()],
    }


def _tokenizer(tokenizer: Any) -> dict[str, Any]:
    template = getattr(tokenizer, "chat_template", None)
    return {
        "sha256": vocabulary_sha256(tokenizer),
        "add_bos": bool(getattr(tokenizer, "add_bos", False)),
        "bos_id": getattr(tokenizer, "bos_id", None),
        "eos_ids": sorted(tokenizer.eos_ids),
        "template_sha256": None if template is None else hashlib.sha256(template.encode()).hexdigest(),
    }


def vocabulary_sha256(tokenizer: Any) -> str | None:
    """Of all pieces in order, each with its length before it."""
    vocabulary = getattr(tokenizer, "vocabulary", None)
    if vocabulary is None:
        return None
    digest = hashlib.sha256()
    for token in vocabulary.tokens:
        data = token.encode("utf-8", "surrogateescape")
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()


def _version() -> str:
    try:
        return metadata.version("pellucid")
    except metadata.PackageNotFoundError:
        return "unknown"
