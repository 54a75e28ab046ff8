"""What a family declares: its name, how its configuration is read, and what its tensors are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pellucid.config import ModelConfig
from pellucid.models.architectures.keys import JSONConfig, Metadata

Int32Array = npt.NDArray[np.int32]
RowOrder = Callable[[ModelConfig], Int32Array]
"""[rows] which row of the stored matrix becomes row i."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where rows of a matrix lie: a tensor [rows, columns], in a file's own order.

    In names {i} is the layer and {e} the expert. The bias, where the file has one, is `name` + ".bias".
    """

    name: str
    order: RowOrder | None = None
    """How the rows are put in our order; None: they are."""
    transposed: bool = False
    """[columns, rows] in the file (GPT-2's Conv1D)."""
    stacked: bool = False
    """All experts in one tensor [experts, …]; {e} does not occur in the name."""
    suffix: str = ".weight"
    bias_suffix: str = ".bias"


def stored(*names: str) -> tuple[Stored, ...]:
    """Tensors that lie one below the other, as they are."""
    return tuple(Stored(name) for name in names)


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Tensors of a mixture of experts."""

    router: Stored
    gate_up: tuple[Stored, ...]
    """[gate; up] of expert {e}."""
    down: Stored
    score_bias: str | None = None
    """[experts] added to the scores for choosing only (DeepSeek-V3); a whole tensor name."""
    shared_gate_up: tuple[Stored, ...] = ()
    shared_down: Stored | None = None


@dataclass(frozen=True, slots=True)
class LatentNames:
    """Tensors of multi-head latent attention."""

    query_down: Stored
    query_norm: str
    query_up: Stored
    query: Stored
    """Where queries are not compressed."""
    key_value_down: Stored
    """[latent; rotated key]."""
    key_value_norm: str
    key_value_up: Stored
    """Head by head: keys without position, then values; or, where a file has it in two, …"""
    key_up: str | None = None
    """[heads, rank, nope_dim] a whole tensor name, and …"""
    value_up: str | None = None
    """[heads, value_dim, rank]."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names of a family's tensors, without ".weight"; {i} is the layer. None: the family has none.

    A norm's bias, where the family has LayerNorm, is its name + ".bias".
    """

    embedding: str = "token_embd"
    position_embedding: str | None = None
    token_type_embedding: str | None = None
    """A table of kinds of segments, whose first row belongs to every token (BERT)."""
    embedding_norm: str | None = None
    project_in: str | None = None
    """From an embedding narrower than the layers, and …"""
    project_out: str | None = None
    """… back to it; both only where the sizes differ."""
    final_norm: str | None = "output_norm"
    head: str = "output"
    attention_norm: str | None = "blk.{i}.attn_norm"
    qkv: tuple[Stored, ...] = stored("blk.{i}.attn_q", "blk.{i}.attn_k", "blk.{i}.attn_v")
    """[q; k; v], in one tensor or three."""
    q_norm: str | None = None
    k_norm: str | None = None
    sinks: str | None = None
    """[heads] a whole tensor name."""
    latent: LatentNames | None = None
    attention_output: Stored = Stored("blk.{i}.attn_output")
    post_attention_norm: str | None = None
    mlp_norm: str | None = "blk.{i}.ffn_norm"
    gate_up: tuple[Stored, ...] = stored("blk.{i}.ffn_gate", "blk.{i}.ffn_up")
    """[gate; up], in one tensor or two; one half alone where the MLP is not gated."""
    down: Stored = Stored("blk.{i}.ffn_down")
    experts: ExpertNames | None = None
    post_mlp_norm: str | None = None
    ignored: tuple[str, ...] = ()
    """Regular expressions of whole tensor names that may be present and are no weights of the decoder; {n} is the
    number of layers."""


GGUF_NAMES = TensorNames(ignored=(r"rope_freqs\.weight", r"rope_factors_(long|short)\.weight"))
"""Llama's names in llama.cpp; the ignored ones are parts of the rotary scaling."""

GGUF_EXPERTS = ExpertNames(
    router=Stored("blk.{i}.ffn_gate_inp"),
    gate_up=(Stored("blk.{i}.ffn_gate_exps", stacked=True), Stored("blk.{i}.ffn_up_exps", stacked=True)),
    down=Stored("blk.{i}.ffn_down_exps", stacked=True),
    score_bias="blk.{i}.exp_probs_b.bias",
    shared_gate_up=stored("blk.{i}.ffn_gate_shexp", "blk.{i}.ffn_up_shexp"),
    shared_down=Stored("blk.{i}.ffn_down_shexp"),
)

HF_NAMES = TensorNames(
    embedding="embed_tokens",
    final_norm="norm",
    head="lm_head",
    attention_norm="layers.{i}.input_layernorm",
    qkv=stored(
        "layers.{i}.self_attn.q_proj",
        "layers.{i}.self_attn.k_proj",
        "layers.{i}.self_attn.v_proj",
    ),
    attention_output=Stored("layers.{i}.self_attn.o_proj"),
    mlp_norm="layers.{i}.post_attention_layernorm",
    gate_up=stored("layers.{i}.mlp.gate_proj", "layers.{i}.mlp.up_proj"),
    down=Stored("layers.{i}.mlp.down_proj"),
    ignored=(r".*rotary_emb\.inv_freq",),
)
"""Llama's names in transformers, which most later families keep; without the leading "model."."""


@dataclass(frozen=True, slots=True)
class GGUFForm:
    """A family as GGUF files hold it."""

    name: str
    """The value of `general.architecture`."""
    config: Callable[[Metadata], ModelConfig]
    tensors: TensorNames = field(default_factory=TensorNames)
    interleaved_rope_rows: bool = False
    """The rows of q and k are in the order of interleaved pairs; they are put back to half-split order."""


@dataclass(frozen=True, slots=True)
class HFForm:
    """A family as transformers writes it: config.json and safetensors."""

    name: str
    """The value of `model_type`."""
    config: Callable[[JSONConfig], ModelConfig]
    tensors: TensorNames = HF_NAMES
    prefixes: tuple[str, ...] = ("model.",)
    """What tensor names may begin with, beside the head's; it is cut off."""
    norm_offset: float = 0.0
    """Added to the weights of RMSNorm (Gemma stores them around 0)."""
    interleaved_rope_rows: bool = False
    """As in `GGUFForm`: the family itself rotates pairs of neighbours (Cohere)."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One family, in the forms it comes in."""

    gguf: tuple[GGUFForm, ...] = ()
    hf: tuple[HFForm, ...] = ()
