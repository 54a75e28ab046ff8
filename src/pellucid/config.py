"""Every default stands here once: the shape of a model, and how an engine is set up.

`ModelConfig` is what a model file says about itself, in the field's terms, whatever format it came from.
`EngineArgs` is what a user may choose; the command line and the server are generated from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from pellucid.errors import InvalidParameterError, shown
from pellucid.sampling_params import MAX_INTEGER, MAX_SEED

DEFAULT_MODEL = "smollm2:135m"
BLOCK_SIZE = 16
"""Tokens in one KV block; the kernels are written for it."""

Activation = Literal["silu", "gelu_tanh"]
KVCacheDType = Literal["float16", "float32"]
BackendName = Literal["native", "reference"]

KV_CACHE_DTYPES: tuple[KVCacheDType, ...] = ("float16", "float32")
KV_DTYPE_BYTES: dict[KVCacheDType, int] = {"float16": 2, "float32": 4}
BACKENDS: tuple[BackendName, ...] = ("native", "reference")

# Arrays and threads are made for these many: a slip of the keyboard must not take the machine down.
_WHOLE_NUMBERS: dict[str, tuple[int, int | None]] = {
    "max_model_len": (2, None),
    "max_num_seqs": (1, 65_536),
    "max_num_batched_tokens": (1, 1_048_576),
    "kv_cache_memory_bytes": (1, None),
    "threads": (1, 1024),
    "seed": (0, MAX_SEED),
}
"""Least and greatest value of the fields of `EngineArgs` that are whole numbers; the files and the machine bound the
others (kv_cache/sizing.py)."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021, RoFormer, section 3.4) of one kind of layer.

    The first `dim` numbers of each head are rotated, in pairs (i, i + dim / 2): the half-split form.
    Weights stored for the interleaved form are re-ordered when they are loaded.
    """

    theta: float
    """Base of the geometric series of frequencies."""
    dim: int
    """How many of a head's numbers are rotated; even, at most head_dim."""
    inv_freq_divisors: tuple[float, ...] | None = None
    """Per-pair divisors [dim / 2] of the inverse frequencies (llama3 scaling as GGUF stores it)."""
    linear_factor: float = 1.0
    """Linear scaling (Chen et al. 2023, position interpolation): positions are divided by it."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one decoder. Sizes are counts of numbers, not bytes."""

    architecture: str
    """The family, as GGUF calls it."""
    name: str
    """What the file calls itself."""
    vocab_size: int
    """Tokens, and rows of the embedding."""
    hidden_size: int
    """Numbers in the vector of one token between layers (d_model)."""
    num_layers: int
    num_heads: int
    """Query heads of a layer."""
    num_kv_heads: int
    """Key and value heads of a layer; num_heads is a multiple of it."""
    head_dim: int
    """Numbers in one head."""
    intermediate_size: int
    """Numbers inside the MLP."""
    context_length: int
    """Positions the model was trained for."""
    norm_eps: float
    """Added to the mean square in RMSNorm."""
    rope: RopeConfig
    """Positions of full-attention layers."""
    rope_sliding: RopeConfig | None = None
    """Positions of sliding-window layers, where they differ (Gemma 3)."""
    activation: Activation = "silu"
    """What opens or closes the MLP's other half."""
    attention_scale: float = 0.0
    """Factor on q · k; 0 stands for head_dim ** −0.5 and is resolved on construction."""
    embedding_scale: float = 1.0
    """Factor on the embedding (Gemma: sqrt(hidden_size))."""
    qk_norm: bool = False
    """RMSNorm over each head of q and k before the rotation."""
    post_norms: bool = False
    """RMSNorm on the outputs of attention and MLP before they are added (Gemma 2 and 3)."""
    sliding_window: int | None = None
    """A sliding layer's row sees this many positions, itself included."""
    sliding_layers: tuple[bool, ...] = ()
    """[num_layers] True where the layer is a sliding-window layer; empty when none is."""
    tie_word_embeddings: bool = True
    """Whether the LM head is the embedding itself."""
    weight_bytes: int = 0
    """Bytes of the tensors in the model file."""

    def __post_init__(self) -> None:
        if self.attention_scale == 0.0:
            object.__setattr__(self, "attention_scale", self.head_dim**-0.5)

    def window(self, layer: int) -> int | None:
        """Window of a layer in positions, or None for full attention."""
        if self.sliding_window is not None and self.sliding_layers and self.sliding_layers[layer]:
            return self.sliding_window
        return None

    def layer_rope(self, layer: int) -> RopeConfig:
        """The rotary parameters of a layer."""
        if self.rope_sliding is not None and self.window(layer) is not None:
            return self.rope_sliding
        return self.rope

    def kv_bytes_per_token(self, dtype: KVCacheDType) -> int:
        """KV cache bytes one token takes: 2 (K and V) · layers · KV heads · head_dim · bytes per number."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * KV_DTYPE_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """How an engine is set up. Names are vLLM's where vLLM has one. Checked on construction."""

    model: str = field(
        default=DEFAULT_MODEL, metadata={"help": "Alias, Hugging Face repository id, GGUF file or folder."}
    )
    max_model_len: int | None = field(
        default=None,
        metadata={"help": "Longest prompt and answer together, in tokens; the model's trained length when unset."},
    )
    max_num_seqs: int = field(default=64, metadata={"help": "Most requests in one step."})
    max_num_batched_tokens: int = field(default=512, metadata={"help": "Token budget of one step."})
    block_size: int = field(default=BLOCK_SIZE, metadata={"help": f"Tokens in one KV block; only {BLOCK_SIZE}."})
    kv_cache_dtype: KVCacheDType = field(default="float16", metadata={"help": "Type of keys and values in the cache."})
    kv_cache_memory_bytes: int | None = field(
        default=None,
        metadata={
            "help": "Bytes reserved for the KV cache; when unset, room for 4 requests of max_model_len, at most 2 GiB."
        },
    )
    enable_prefix_caching: bool = field(
        default=True,
        metadata={"help": "Keep the KV blocks of finished requests, and do not compute again what a prompt shares."},
    )
    threads: int | None = field(
        default=None, metadata={"help": "Worker threads; the cores this process may use when unset."}
    )
    backend: BackendName = field(default="native", metadata={"help": "Kernels: native is C++, reference is NumPy."})
    seed: int | None = field(default=None, metadata={"help": "Seed from which requests without one are given theirs."})

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise InvalidParameterError(
                "model", f"model is {shown(self.model)}, but must be a name or a path as a string"
            )
        for name, (low, high) in _WHOLE_NUMBERS.items():
            self._check_whole_number(name, low, high)
        if type(self.block_size) is not int or self.block_size != BLOCK_SIZE:
            raise InvalidParameterError(
                "block_size", f"block_size is {shown(self.block_size)}, but only {BLOCK_SIZE} is supported"
            )
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise InvalidParameterError(
                "kv_cache_dtype",
                f"kv_cache_dtype is {shown(self.kv_cache_dtype)}, but must be one of {', '.join(KV_CACHE_DTYPES)}",
            )
        if not isinstance(self.enable_prefix_caching, bool):
            raise InvalidParameterError(
                "enable_prefix_caching",
                f"enable_prefix_caching is {shown(self.enable_prefix_caching)}, but must be True or False",
            )
        if self.backend not in BACKENDS:
            raise InvalidParameterError(
                "backend", f"backend is {shown(self.backend)}, but must be one of {', '.join(BACKENDS)}"
            )

    def _check_whole_number(self, name: str, low: int, high: int | None) -> None:
        value: Any = getattr(self, name)
        if value is None and self.__dataclass_fields__[name].default is None:
            return
        if type(value) is not int or not low <= value <= (MAX_INTEGER if high is None else high):
            span = f"of at least {low}" if high is None else f"from {low} to {high}"
            raise InvalidParameterError(name, f"{name} is {shown(value)}, but must be a whole number {span}")


def engine_arg_names() -> tuple[str, ...]:
    """The names that `LLM(...)` and the command line accept."""
    return tuple(f.name for f in fields(EngineArgs))
