"""File → config → packed weights → `Decoder`.

The file stays memory-mapped only while it is packed; each tensor's pages are dropped once its matrix is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from pellucid.config import BLOCK_SIZE, ModelConfig, RopeConfig
from pellucid.errors import ModelFileError, UnsupportedModelError, shown
from pellucid.formats.dequantize import dequantize
from pellucid.formats.gguf import GGUFFile, GGUFTensor
from pellucid.kernels.backend import Backend, Float32Array, Matrix, WeightPart
from pellucid.models.architectures.base import Architecture, Metadata, half_split_rows
from pellucid.models.architectures.registry import find_architecture
from pellucid.models.decoder import Decoder, DecoderWeights, LayerWeights
from pellucid.models.rotary import inverse_frequencies

_SUFFIX = ".weight"


def load_model(path: str | Path, backend: Backend) -> Decoder:
    """Open a GGUF file and pack its weights. Raises `ModelFileError` or `UnsupportedModelError`, naming the tensor."""
    with GGUFFile.open(path) as file:
        return load_gguf(file, backend)


def load_gguf(file: GGUFFile, backend: Backend) -> Decoder:
    """The same from a file that is already open."""
    architecture, config = read_config(file)
    _check_cache(config, backend, Path(file.path).name)
    weights = _Loader(file, architecture, config, backend).load()
    return Decoder(config, weights, backend)


def read_config(file: GGUFFile) -> tuple[Architecture, ModelConfig]:
    """What the file says about its model; no weights are read.

    Raises `UnsupportedModelError` for a family, scaling or split file we do not know, `ModelFileError` for keys that
    are missing, out of range or contradict the tensors.
    """
    name = file.metadata.get("general.architecture")
    file_name = Path(file.path).name
    parts = file.metadata.get("split.count", 1)
    if not isinstance(parts, int) or parts not in (0, 1):
        raise UnsupportedModelError(
            f"{file_name}: split.count is {shown(parts)}, so this is one part of a split model, which is not supported "
            "yet; join the parts into one file"
        )
    architecture = find_architecture(name, file_name)
    metadata = Metadata(file.metadata, architecture.gguf_name, file_name)
    config = architecture.config(metadata)
    names = architecture.tensors
    embedding = file.tensors.get(names.embedding + _SUFFIX)
    if embedding is None or len(embedding.shape) != 2:
        raise metadata.refuse(f"tensor {names.embedding}{_SUFFIX} is missing or is no matrix")
    if config.num_heads % config.num_kv_heads:
        raise metadata.refuse(f"{config.num_heads} heads can not share {config.num_kv_heads} KV heads evenly")
    if config.rope.dim % 2 or config.rope.dim > config.head_dim:
        raise metadata.refuse(
            f"rope.dimension_count is {config.rope.dim}, but must be even and at most {config.head_dim}"
        )
    rope = _with_factors(config.rope, file.tensors.get("rope_freqs" + _SUFFIX), metadata)
    for kind in (rope, config.rope_sliding):
        _check_frequencies(kind, metadata)
    return architecture, dataclasses.replace(
        config,
        rope=rope,
        vocab_size=embedding.shape[0],
        qk_norm=names.q_norm is not None,
        post_norms=names.post_mlp_norm is not None,
        tie_word_embeddings=names.head + _SUFFIX not in file.tensors,
        weight_bytes=sum(t.nbytes for t in file.tensors.values()),
    )


def _with_factors(rope: RopeConfig, factors: GGUFTensor | None, metadata: Metadata) -> RopeConfig:
    """The llama3 scaling, which converters write as a tensor of divisors."""
    if factors is None:
        return rope
    if factors.shape != (rope.dim // 2,):
        raise metadata.refuse(f"tensor {factors.name} has shape {factors.shape}, but must have ({rope.dim // 2},)")
    _check_type(factors, metadata.file_name)
    divisors = dequantize(factors.data, factors.type, factors.shape)
    if not (np.isfinite(divisors) & (divisors > 0)).all():
        raise metadata.refuse(f"tensor {factors.name} has a factor that is not finite or not above 0")
    return dataclasses.replace(rope, inv_freq_divisors=tuple(float(d) for d in divisors))


def _check_frequencies(rope: RopeConfig | None, metadata: Metadata) -> None:
    """Refuse a base or scaling at the edge of float32: every rotated key would be NaN."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if rope is not None and not np.isfinite(inverse_frequencies(rope)).all():
            raise metadata.refuse(
                f"rope.freq_base {rope.theta:g}, rope.scaling.factor {rope.linear_factor:g} and tensor rope_freqs give "
                "frequencies that are not finite"
            )


def _check_cache(config: ModelConfig, backend: Backend, file_name: str) -> None:
    """Whether the backend can keep heads of this size: better now than after the weights, at the first token."""
    keys = np.zeros((1, config.num_kv_heads, config.head_dim, BLOCK_SIZE), dtype=np.float16)
    try:
        backend.layer_cache(keys, np.ascontiguousarray(keys.swapaxes(2, 3)))
    except UnsupportedModelError as error:
        raise UnsupportedModelError(
            f"{file_name}: head_dim is {config.head_dim}: {error} (the reference backend takes any)"
        ) from None


def _check_type(tensor: GGUFTensor, file_name: str) -> None:
    if not tensor.type.served:
        raise UnsupportedModelError(
            f"{file_name}: tensor {shown(tensor.name)} is of type {tensor.type.name}, which is not supported"
        )


class _Loader:
    """Takes the tensors of one file, each exactly once, and checks shapes on the way."""

    def __init__(self, file: GGUFFile, architecture: Architecture, config: ModelConfig, backend: Backend) -> None:
        self.file_name = Path(file.path).name
        self.left = dict(file.tensors)
        self.names = architecture.tensors
        self.architecture = architecture
        self.config = config
        self.backend = backend

    def load(self) -> DecoderWeights:
        config, names = self.config, self.names
        embedding = self.matrix([(names.embedding, config.vocab_size, None)], config.hidden_size)
        layers = tuple(self.layer(i) for i in range(config.num_layers))
        final_norm = self.vector(names.final_norm, config.hidden_size)
        head = embedding
        if not config.tie_word_embeddings:
            head = self.matrix([(names.head, config.vocab_size, None)], config.hidden_size)
        unknown = sorted(set(self.left) - {name + _SUFFIX for name in names.ignored})
        if unknown:
            raise ModelFileError(
                f"{self.file_name}: tensor {shown(unknown[0])} is unknown to architecture {self.architecture.gguf_name}"
                + (f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else "")
            )
        return DecoderWeights(embedding, layers, final_norm, head)

    def layer(self, i: int) -> LayerWeights:
        config, names = self.config, self.names
        q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        return LayerWeights(
            attention_norm=self.vector(names.attention_norm, config.hidden_size, i),
            qkv=self.matrix(
                [
                    (names.query, q_rows, self.row_order(config.num_heads)),
                    (names.key, kv_rows, self.row_order(config.num_kv_heads)),
                    (names.value, kv_rows, None),
                ],
                config.hidden_size,
                i,
            ),
            q_norm=self.optional_vector(names.q_norm, config.head_dim, i),
            k_norm=self.optional_vector(names.k_norm, config.head_dim, i),
            attention_output=self.matrix([(names.attention_output, config.hidden_size, None)], q_rows, i),
            post_attention_norm=self.optional_vector(names.post_attention_norm, config.hidden_size, i),
            mlp_norm=self.vector(names.mlp_norm, config.hidden_size, i),
            gate_up=self.matrix(
                [(names.gate, config.intermediate_size, None), (names.up, config.intermediate_size, None)],
                config.hidden_size,
                i,
            ),
            down=self.matrix([(names.down, config.hidden_size, None)], config.intermediate_size, i),
            post_mlp_norm=self.optional_vector(names.post_mlp_norm, config.hidden_size, i),
        )

    def row_order(self, heads: int) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
        if not self.architecture.interleaved_rope_rows:
            return None
        order: np.ndarray[tuple[int], np.dtype[np.int32]] = half_split_rows(
            heads, self.config.head_dim, self.config.rope.dim
        )
        return order

    def take(self, name: str, shape: tuple[int, ...], i: int) -> GGUFTensor:
        full = name.format(i=i) + _SUFFIX
        tensor = self.left.pop(full, None)
        if tensor is None:
            raise ModelFileError(f"{self.file_name}: tensor {full} is missing")
        if tensor.shape != shape:
            raise ModelFileError(f"{self.file_name}: tensor {full} has shape {tensor.shape}, but must have {shape}")
        _check_type(tensor, self.file_name)
        return tensor

    def matrix(
        self,
        parts: Iterable[tuple[str, int, np.ndarray[tuple[int], np.dtype[np.int32]] | None]],
        columns: int,
        i: int = 0,
    ) -> Matrix:
        tensors = [(self.take(name, (rows, columns), i), order) for name, rows, order in parts]
        packed = self.backend.matrix(
            [WeightPart(t.name, t.data, t.type, t.shape[0], columns, order, mapped=True) for t, order in tensors]
        )
        for tensor, _ in tensors:
            tensor.release()
        return packed

    def vector(self, name: str, length: int, i: int = 0) -> Float32Array:
        tensor = self.take(name, (length,), i)
        return np.ascontiguousarray(dequantize(tensor.data, tensor.type, tensor.shape))

    def optional_vector(self, name: str | None, length: int, i: int) -> Float32Array | None:
        return None if name is None else self.vector(name, length, i)
