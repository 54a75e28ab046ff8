"""The shape of a model in words, for `pellucid inspect`: sizes, attention, positions, norms, experts."""

from __future__ import annotations

from collections.abc import Sequence

from pellucid.cli.console import plural
from pellucid.config import ModelConfig, RopeConfig, RopeScaling

Rows = list[tuple[str, str]]


def shape_rows(config: ModelConfig) -> Rows:
    """(name, text) of every line; lines that say nothing of this model are left out."""
    rows = [("layers", str(config.num_layers)), ("hidden size", _sizes(config)), ("attention", _attention(config))]
    if config.latent is not None:
        latent = config.latent
        query = f"queries from {latent.query_rank}, " if latent.query_rank else ""
        dims = f"keys {latent.nope_dim} + {latent.rope_dim} rotated, values {latent.value_dim} a head"
        rows.append(("latent", f"{query}keys and values from {latent.rank}; {dims}"))
    rows += _position_rows(config)
    sliding = [layer for layer in range(config.num_layers) if config.window(layer) is not None]
    if sliding:
        rows.append(("sliding window", f"{config.sliding_window} tokens in {_layers(sliding, config.num_layers)}"))
    if config.experts is not None:
        rows.append(("experts", _experts(config)))
    rows.append(("RMSNorm" if config.norm == "rms" else "LayerNorm", _norm(config)))
    caps = [("scores", config.attention_softcap), ("logits", config.final_softcap)]
    if any(cap is not None for _, cap in caps):
        rows.append(("soft caps", ", ".join(f"{name} {cap:g}" for name, cap in caps if cap is not None)))
    tied = "the embedding (tied)" if config.tie_word_embeddings else "a tensor of its own"
    rows.append(("LM head", f"{tied}, {config.vocab_size} rows"))
    return rows


def _sizes(config: ModelConfig) -> str:
    halves = "" if config.gated_mlp else ", one half"
    embedding = "" if config.embedding_size == config.hidden_size else f", embedding {config.embedding_size}"
    return f"{config.hidden_size}, MLP {config.intermediate_size} ({config.activation}{halves}){embedding}"


def _attention(config: ModelConfig) -> str:
    heads = f"{plural(config.num_heads, 'head')}, {plural(config.num_kv_heads, 'KV head')}, head_dim {config.head_dim}"
    return heads if config.causal else heads + ", every token sees all"


def _position_rows(config: ModelConfig) -> Rows:
    if config.positions == "learned":
        return [("positions", f"learned, a table of {config.context_length}")]
    if config.positions == "alibi":
        return [("positions", "ALiBi: scores fall with distance, no limit of their own")]
    if config.positions != "rope":
        return [("positions", config.positions)]
    rows = [("rope", _rope(config.rope, config))]
    if config.rope_sliding is not None:
        rows.append(("rope, sliding", _rope(config.rope_sliding, config)))
    still = [layer for layer in range(config.num_layers) if config.layer_rope(layer) is None]
    if still:
        rows.append(("no positions", f"in {_layers(still, config.num_layers)}"))
    return rows


def _rope(rope: RopeConfig, config: ModelConfig) -> str:
    of = config.head_dim if config.latent is None else config.latent.key_dim
    text = f"theta {rope.theta:g} on {rope.dim} of {of} numbers per head"
    return text if rope.scaling is None else f"{text}; {_scaling(rope.scaling, config.context_length)}"


def _scaling(scaling: RopeScaling, context_length: int) -> str:
    parts: list[str] = [scaling.kind if scaling.kind != "divisors" else "llama3 (divisors in the file)"]
    if scaling.factor != 1.0:
        parts.append(f"factor {scaling.factor:g}")
    if scaling.original_context:
        parts.append(f"from {scaling.original_context} tokens to {context_length}")
    if scaling.attention_factor != 1.0:
        parts.append(f"angles times {scaling.attention_factor:.4g}")
    return "scaling " + ", ".join(parts)


def _experts(config: ModelConfig) -> str:
    experts = config.experts
    assert experts is not None
    text = f"{experts.num_chosen} of {experts.num_experts}, {experts.intermediate_size} wide, by {experts.scores}"
    if experts.num_groups > 1:
        text += f", from {experts.num_chosen_groups} of {experts.num_groups} groups"
    if experts.shared_intermediate_size:
        text += f"; one shared, {experts.shared_intermediate_size} wide"
    dense = [layer for layer in range(config.num_layers) if config.is_dense(layer)]
    return text + (f"; none in {_layers(dense, config.num_layers)}" if dense else "")


def _norm(config: ModelConfig) -> str:
    places = {"sequential": "", "parallel": ", attention and MLP side by side", "post_norm": ", after each sum"}
    text = f"epsilon {config.norm_eps:g}" + (", q and k normed" if config.qk_norm else "")
    return text + (", also after attention and MLP" if config.post_norms else "") + places[config.block]


def _layers(layers: Sequence[int], count: int) -> str:
    """`all layers`, or how many of them and the first few by number."""
    if len(layers) == count:
        return "all layers"
    first = ", ".join(str(layer) for layer in layers[:6]) + (", …" if len(layers) > 6 else "")
    return f"{plural(len(layers), 'layer')} ({first})"
