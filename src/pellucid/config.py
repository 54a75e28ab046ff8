"""Every default stands here once: the shape of a model, and how an engine is set up.

`ModelConfig` is what a model file says about itself, in the field's terms, whatever format it came from.
`EngineArgs` is what a user may choose; the command line and the server are generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from pellucid.errors import InvalidParameterError, shown
from pellucid.rope_scaling import ROPE_SCALINGS, checked_rope_scaling
from pellucid.sampling_params import MAX_INTEGER, MAX_SEED

DEFAULT_MODEL = "smollm2:135m"
BLOCK_SIZE = 16
"""Tokens in one KV block; the kernels are written for it."""

Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "swiglu_clamped"]
NormKind = Literal["rms", "layer"]
PositionKind = Literal["rope", "learned", "sinusoidal", "alibi", "none"]
BlockKind = Literal["sequential", "parallel", "post_norm"]
RopeScalingKind = Literal["divisors", "linear", "ntk", "dynamic", "llama3", "yarn", "longrope"]
KVCacheDType = Literal["int16", "float16", "float32", "int8", "int4"]
BackendName = Literal["native", "reference"]
SpeculativeMethod = Literal["auto", "ngram", "draft_model", "off"]
Precision = Literal["exact", "fast"]
Quantization = Literal["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"]

KV_CACHE_DTYPES: tuple[KVCacheDType, ...] = ("int16", "float16", "float32", "int8", "int4")
DEFAULT_KV_CACHE_DTYPE: KVCacheDType = "int16"
KV_DTYPE_BITS: dict[KVCacheDType, int] = {"int16": 16, "float16": 16, "float32": 32, "int8": 8, "int4": 4}
KV_FACTOR_GROUP = 16
"""int4: numbers of a head that share a factor."""
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
BACKENDS: tuple[BackendName, ...] = ("native", "reference")
SPECULATIVE_METHODS: tuple[SpeculativeMethod, ...] = ("auto", "ngram", "draft_model", "off")
PRECISIONS: tuple[Precision, ...] = ("exact", "fast")
PRECISION_KL: dict[Precision, str] = {"exact": "1e-7", "fast": "2e-3"}
"""Mean KL(float32 ‖ ours) in nats on the default model with int16 KV: benchmarks/fidelity.py, docs/performance.md."""

# Arrays and threads are made for these many: a slip of the keyboard must not take the machine down.
_WHOLE_NUMBERS: dict[str, tuple[int, int | None]] = {
    "max_model_len": (2, None),
    "max_num_seqs": (1, 65_536),
    "max_num_batched_tokens": (1, 1_048_576),
    "kv_cache_memory_bytes": (1, None),
    "max_step_ms": (1, 600_000),
    "num_speculative_tokens": (1, 31),
    "threads": (1, 1024),
    "seed": (0, MAX_SEED),
}
"""Least and greatest value of the fields of `EngineArgs` that are whole numbers; the files and the machine bound the
others (kv_cache/sizing.py)."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How a model trained for `original_context` positions reaches further; `models/rotary.py` has the formulas.

    divisors: each pair's frequency is divided by `factors` (llama3 scaling as GGUF stores it).
    linear: all are divided by `factor` (Chen et al. 2023, position interpolation).
    ntk, dynamic: theta grows by `factor`, or with the context in use (bloc97 2023, NTK-aware scaling).
    llama3: low frequencies are divided by `factor`, high ones kept, those between blended (Llama 3.1).
    yarn: the same by rotations in the original context, with a factor on the angles' cosines (Peng et al. 2023).
    longrope: `factors` for contexts beyond the original one, `short_factors` within (Ding et al. 2024).
    """

    kind: RopeScalingKind
    factor: float = 1.0
    original_context: int = 0
    factors: tuple[float, ...] = ()
    """[dim / 2] divisors of the frequencies."""
    short_factors: tuple[float, ...] = ()
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """yarn: whether the bounds of the blended pairs are rounded to whole pairs."""
    attention_factor: float = 1.0
    """Factor on cosines and sines, so that scores grow by its square."""


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
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts: which MLPs a token goes through (Shazeer et al. 2017; Fedus et al. 2021)."""

    num_experts: int
    num_chosen: int
    """Experts of one token."""
    intermediate_size: int
    """Numbers inside one expert's MLP."""
    scores: Literal["softmax", "softmax_of_chosen", "sigmoid"] = "softmax"
    """softmax over all experts; over the chosen ones alone; or each expert's own sigmoid (DeepSeek-V3)."""
    normalize: bool = False
    """Whether the chosen weights are divided by their sum."""
    scale: float = 1.0
    """Factor on the chosen weights."""
    num_groups: int = 1
    num_chosen_groups: int = 1
    """Experts are chosen from the best groups only (DeepSeek-V2, section 2.1.2)."""
    group_score: Literal["max", "top2"] = "max"
    """How a group is judged: by its best expert, or by the sum of its two best."""
    shared_intermediate_size: int = 0
    """Numbers inside the MLP that every token goes through beside its experts; 0: there is none."""
    dense_layers: tuple[bool, ...] = ()
    """[num_layers] True where a layer has a plain MLP; empty when none has."""


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): keys and values of all heads from one latent vector."""

    query_rank: int
    """Numbers in the compressed query; 0: queries are not compressed."""
    rank: int
    """Numbers in the compressed key and value."""
    nope_dim: int
    """Numbers of a head's key that come from the latent and carry no position."""
    rope_dim: int
    """Numbers of a head's key that are rotated; one key for all heads."""
    value_dim: int
    """Numbers in a head's value."""

    @property
    def key_dim(self) -> int:
        """Numbers of a head's key, both parts."""
        return self.nope_dim + self.rope_dim


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
    """Positions the model was trained for, or reaches with its scaling."""
    norm_eps: float
    """Added to the mean square in RMSNorm, to the variance in LayerNorm."""
    rope: RopeConfig
    """Positions of full-attention layers; of none where `positions` is not "rope"."""
    embedding_size: int = 0
    """Numbers in the embedding of one token, where they are projected to hidden_size; 0: hidden_size."""
    rope_sliding: RopeConfig | None = None
    """Positions of sliding-window layers, where they differ (Gemma 3)."""
    positions: PositionKind = "rope"
    position_offset: int = 0
    """learned, sinusoidal: position 0 is this row of the table (OPT, XGLM: 2)."""
    rope_layers: tuple[bool, ...] = ()
    """[num_layers] False where a layer rotates nothing (SmolLM3); empty when every layer does."""
    norm: NormKind = "rms"
    block: BlockKind = "sequential"
    """sequential: attention, then MLP; parallel: both from the same input (GPT-NeoX); post_norm: each sum is
    normalised, not each input (GPT-1)."""
    activation: Activation = "silu"
    """What opens or closes the MLP's other half, or stands alone in it."""
    gated_mlp: bool = True
    """Whether the MLP has two halves, one of which gates the other."""
    attention_scale: float = 0.0
    """Factor on q · k; 0 stands for head_dim ** −0.5 and is resolved on construction."""
    attention_softcap: float | None = None
    """c in c · tanh(score / c) (Gemma 2)."""
    final_softcap: float | None = None
    """The same for the logits."""
    embedding_scale: float = 1.0
    """Factor on the embedding (Gemma: sqrt(hidden_size))."""
    residual_scale: float = 1.0
    """Factor on what a branch adds (Granite)."""
    logits_scale: float = 1.0
    """Factor on the logits (Granite)."""
    qk_norm: bool = False
    """Normalisation of q and k before the rotation: of each head, or of all heads together (OLMo 2)."""
    post_norms: bool = False
    """Normalisation of the outputs of attention and MLP before they are added (Gemma 2 and 3)."""
    sliding_window: int | None = None
    """A sliding layer's row sees this many positions, itself included."""
    sliding_layers: tuple[bool, ...] = ()
    """[num_layers] True where the layer is a sliding-window layer; empty when none is."""
    causal: bool = True
    """Whether a token sees only itself and those before it; an encoder's tokens see all."""
    pooling: Literal["last", "mean", "cls"] = "last"
    """How the vectors of a text's tokens become the text's: the last one, their mean, or the first."""
    normalize_embeddings: bool = True
    """Whether the text's vector is divided by its length, where a request does not say."""
    can_shorten_embeddings: bool = False
    """Whether the first numbers of a text's vector are a vector themselves (Kusupati et al. 2022, Matryoshka) …"""
    embedding_sizes: tuple[int, ...] = ()
    """… and which counts of them the model was trained for; empty: any."""
    experts: ExpertsConfig | None = None
    latent: LatentConfig | None = None
    tie_word_embeddings: bool = True
    """Whether the LM head is the embedding itself."""
    weight_bytes: int = 0
    """Bytes of the tensors in the model file."""
    weight_type: str = ""
    """Type in which most of these bytes are, as GGUF names it."""

    def __post_init__(self) -> None:
        if self.attention_scale == 0.0:
            object.__setattr__(self, "attention_scale", self.head_dim**-0.5)
        if self.embedding_size == 0:
            object.__setattr__(self, "embedding_size", self.hidden_size)

    def window(self, layer: int) -> int | None:
        """Window of a layer in positions, or None for full attention."""
        if self.sliding_window is not None and self.sliding_layers and self.sliding_layers[layer]:
            return self.sliding_window
        return None

    def layer_rope(self, layer: int) -> RopeConfig | None:
        """The rotary parameters of a layer; None where it rotates nothing."""
        if self.positions != "rope" or (self.rope_layers and not self.rope_layers[layer]):
            return None
        if self.rope_sliding is not None and self.window(layer) is not None:
            return self.rope_sliding
        return self.rope

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has one MLP rather than experts."""
        return self.experts is None or (bool(self.experts.dense_layers) and self.experts.dense_layers[layer])

    @property
    def kv_value_dim(self) -> int:
        """Numbers of a value in the KV cache; head_dim are those of a key. A latent has no rotated part as a value."""
        return self.head_dim if self.latent is None else self.latent.rank

    def kv_bytes_per_token(self, dtype: KVCacheDType) -> int:
        """KV cache bytes one token takes: layers · KV heads · bytes of a key and of a value (`kv_head_bytes`)."""
        head = kv_head_bytes(dtype, self.head_dim) + kv_head_bytes(dtype, self.kv_value_dim)
        return self.num_layers * self.num_kv_heads * head


def kv_head_bytes(dtype: KVCacheDType, head_dim: int) -> int:
    """Bytes of one head's key (or value) of one token: its numbers; for integers a float32 scale besides; for int4
    also a byte for each KV_FACTOR_GROUP numbers."""
    numbers = head_dim * KV_DTYPE_BITS[dtype] // 8
    scale = 0 if dtype.startswith("float") else 4
    return numbers + scale + (head_dim // KV_FACTOR_GROUP if dtype == "int4" else 0)


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """How an engine is set up. Names are vLLM's where vLLM has one. Checked on construction."""

    model: str = field(
        default=DEFAULT_MODEL, metadata={"help": "Alias, Hugging Face repository id, GGUF file or folder."}
    )
    quantization: Quantization | None = field(
        default=None,
        metadata={
            "help": "Make blocks of the model's float weights while it is loaded; embedding and head become q8_0, "
            "blocks that the file has stay as they are."
        },
    )
    max_model_len: int | None = field(
        default=None,
        metadata={"help": "Longest prompt and answer together, in tokens; the model's trained length when unset."},
    )
    rope_scaling: str | Mapping[str, Any] | None = field(
        default=None,
        metadata={
            "help": "Scaling of the rotary positions in place of the model's own, as JSON with transformers' names: "
            '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}. Types: '
            f"{', '.join(ROPE_SCALINGS)}."
        },
    )
    rope_theta: float | None = field(
        default=None, metadata={"help": "Base of the rotary positions' frequencies in place of the model's own."}
    )
    max_num_seqs: int = field(default=64, metadata={"help": "Most requests in one step."})
    max_num_batched_tokens: int = field(default=512, metadata={"help": "Token budget of one step."})
    max_step_ms: int = field(
        default=250,
        metadata={
            "help": "What a step may take while answers stream, in milliseconds: prompts are cut into chunks that fit."
        },
    )
    block_size: int = field(default=BLOCK_SIZE, metadata={"help": f"Tokens in one KV block; only {BLOCK_SIZE}."})
    kv_cache_dtype: KVCacheDType = field(
        default=DEFAULT_KV_CACHE_DTYPE,
        metadata={
            "help": "Type of keys and values in the cache; integers have a scale per token and head. int8 and int4 "
            "take about half and a third of the memory and are less exact."
        },
    )
    kv_cache_memory_bytes: int | None = field(
        default=None,
        metadata={
            "help": "Bytes reserved for the KV cache, also as 2GiB or 512MB; when unset, room for 4 requests of "
            "max_model_len, at most 2 GiB and half of the free memory.",
            "unit": "bytes",
        },
    )
    enable_prefix_caching: bool = field(
        default=True,
        metadata={"help": "Keep the KV blocks of finished requests, and do not compute again what a prompt shares."},
    )
    kv_cache_save: str | None = field(
        default=None,
        metadata={
            "help": "File in which the prefix cache outlives the process: read at the start, written at the end."
        },
    )
    speculative_method: SpeculativeMethod = field(
        default="auto",
        metadata={
            "help": "Guess tokens and verify them in one step; no answer changes. auto: looked up in the text so far, "
            "and by the draft model if there is one, as far as it pays; ngram, draft_model: always."
        },
    )
    speculative_model: str | None = field(
        default=None, metadata={"help": "Draft model with the same vocabulary: named like the model."}
    )
    num_speculative_tokens: int = field(default=7, metadata={"help": "Most guesses of a request in one step."})
    threads: int | None = field(
        default=None, metadata={"help": "Worker threads; the cores this process may use when unset."}
    )
    backend: BackendName = field(default="native", metadata={"help": "Kernels: native is C++, reference is NumPy."})
    precision: Precision = field(
        default="exact",
        metadata={
            "help": "How products of prompt tokens are computed. fast is quicker and less faithful (mean KL from "
            f"float32 {PRECISION_KL['fast']} instead of {PRECISION_KL['exact']} on the default model), and may give "
            "other bits when batching or caching differ. What is generated is always computed exactly."
        },
    )
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
        if self.quantization is not None and self.quantization not in QUANTIZATIONS:
            raise InvalidParameterError(
                "quantization",
                f"quantization is {shown(self.quantization)}, but must be one of {', '.join(QUANTIZATIONS)}",
            )
        if self.rope_scaling is not None:
            object.__setattr__(self, "rope_scaling", checked_rope_scaling(self.rope_scaling))
        self._check_rope_theta()
        self._check_speculation()
        if self.kv_cache_save is not None:
            self._check_kv_cache_save()
        if self.backend not in BACKENDS:
            raise InvalidParameterError(
                "backend", f"backend is {shown(self.backend)}, but must be one of {', '.join(BACKENDS)}"
            )
        if self.precision not in PRECISIONS:
            raise InvalidParameterError(
                "precision", f"precision is {shown(self.precision)}, but must be one of {', '.join(PRECISIONS)}"
            )
        if self.precision == "fast" and self.backend != "native":
            raise InvalidParameterError("precision", f"precision fast needs backend native, not {self.backend}")

    def _check_rope_theta(self) -> None:
        theta: Any = self.rope_theta
        if theta is not None and (
            isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 1 < theta <= 1e12
        ):
            raise InvalidParameterError(
                "rope_theta", f"rope_theta is {shown(theta)}, but must be a number above 1 and at most 1e12"
            )

    def _check_kv_cache_save(self) -> None:
        if not isinstance(self.kv_cache_save, str) or not self.kv_cache_save or "\0" in self.kv_cache_save:
            raise InvalidParameterError(
                "kv_cache_save", f"kv_cache_save is {shown(self.kv_cache_save)}, but must be the name of a file"
            )
        if not self.enable_prefix_caching:
            raise InvalidParameterError(
                "kv_cache_save", "kv_cache_save needs enable_prefix_caching, which keeps the blocks that are saved"
            )

    def _check_speculation(self) -> None:
        method, model = self.speculative_method, self.speculative_model
        if method not in SPECULATIVE_METHODS:
            raise InvalidParameterError(
                "speculative_method",
                f"speculative_method is {shown(method)}, but must be one of {', '.join(SPECULATIVE_METHODS)}",
            )
        if model is not None and (not isinstance(model, str) or not model):
            raise InvalidParameterError(
                "speculative_model", f"speculative_model is {shown(model)}, but must be a name or a path as a string"
            )
        if method == "draft_model" and model is None:
            raise InvalidParameterError(
                "speculative_model", "speculative_model must name a model where speculative_method is draft_model"
            )
        if method in ("ngram", "off") and model is not None:
            raise InvalidParameterError(
                "speculative_model",
                f"speculative_model is {shown(model)}, but speculative_method {method} uses none: "
                "leave it out, or set speculative_method to auto or draft_model",
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
