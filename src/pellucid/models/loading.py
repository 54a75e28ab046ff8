"""File → config → packed weights → `Decoder`: GGUF files, and folders with config.json and safetensors.

Files stay memory-mapped only while they are packed; each tensor's pages are dropped once its matrix is made.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from pellucid.config import ModelConfig, Quantization, RopeConfig, RopeScaling
from pellucid.errors import ModelFileError, NotEnoughMemoryError, UnsupportedModelError, shown
from pellucid.formats.dequantize import dequantize
from pellucid.formats.gguf import GGUFFile
from pellucid.formats.gguf_split import open_gguf
from pellucid.formats.json_file import read_json
from pellucid.kernels.backend import Backend
from pellucid.kv_cache.memory import free_memory, total_memory
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.models.architectures.base import GGUFForm, HFForm
from pellucid.models.architectures.keys import JSONConfig, Keys, Metadata
from pellucid.models.architectures.registry import find_gguf, find_hf
from pellucid.models.decoder import Decoder
from pellucid.models.pooling_files import shortening
from pellucid.models.rotary import inverse_frequencies
from pellucid.models.sources import StoredTensor, TensorSource, gguf_source, safetensors_source
from pellucid.models.weight_loader import WeightLoader

CONFIG_NAME = "config.json"


def load_model(path: str | Path, backend: Backend, max_model_len: int | None = None) -> Decoder:
    """Open a GGUF file, or a folder of safetensors, and pack its weights.

    max_model_len: the longest context in use, for rotary scalings that depend on it; the file's own where None.
    Raises `ModelFileError` or `UnsupportedModelError`, naming the file and the tensor.
    """
    if Path(path).is_dir():
        return load_folder(path, backend, max_model_len)
    with open_gguf(path) as file:
        return load_gguf(file, backend, max_model_len)


def load_gguf(file: GGUFFile, backend: Backend, max_model_len: int | None = None) -> Decoder:
    """The same from a GGUF file that is already open."""
    form, config = read_config(file)
    return pack_model(form, config, gguf_source(file), backend, max_model_len)


def load_folder(folder: str | Path, backend: Backend, max_model_len: int | None = None) -> Decoder:
    """The same from a folder with config.json and one safetensors file or several."""
    form, config, source = read_folder_config(folder)
    return pack_model(form, config, source, backend, max_model_len)


def pack_model(
    form: GGUFForm | HFForm,
    config: ModelConfig,
    source: TensorSource,
    backend: Backend,
    max_model_len: int | None = None,
    quantization: Quantization | None = None,
) -> Decoder:
    """The same from tensors whose configuration is known; quantization: what float matrices become."""
    _check_cache(config, backend, source.label)
    quantizer = None
    if quantization is not None:
        from pellucid.models.quantization import Quantizer  # some milliseconds of a start that few need

        quantizer = Quantizer(quantization, form.tensors)
    _check_memory(source if quantizer is None else quantizer.planned(source), backend)
    loader = WeightLoader(
        source,
        form.tensors,
        config,
        backend,
        interleaved=form.interleaved_rope_rows,
        norm_offset=form.norm_offset if isinstance(form, HFForm) else 0.0,
        quantizer=quantizer,
    )
    return Decoder(config, loader.load(), backend, max_model_len or config.context_length)


def read_config(file: GGUFFile) -> tuple[GGUFForm, ModelConfig]:
    """What a GGUF file says about its model; no weights are read.

    Raises `UnsupportedModelError` for a family, scaling or split file we do not know, `ModelFileError` for keys that
    are missing, out of range or contradict the tensors.
    """
    name = file.metadata.get("general.architecture")
    file_name = Path(file.path).name
    parts = file.metadata.get("split.count", 1)
    if not isinstance(parts, int) or parts not in (0, 1):
        raise UnsupportedModelError(
            f"{file_name}: split.count is {shown(parts)}, so this is one part of a split model, but its name does not "
            "say so: parts are named like name-00001-of-00002.gguf"
        )
    form = find_gguf(name, file_name)
    metadata = Metadata(file.metadata, form.name, file_name)
    source = gguf_source(file)
    config = form.config(metadata)
    rope = _with_factors(config.rope, source, metadata)
    tied = form.tensors.head + ".weight" not in source
    return form, _completed(config, form, source, metadata, rope=rope, tie_word_embeddings=tied)


def read_folder_config(folder: str | Path) -> tuple[HFForm, ModelConfig, TensorSource]:
    """The same of a folder of safetensors, and its tensors."""
    from pellucid.formats.safetensors import read_folder

    folder = Path(folder)
    keys = JSONConfig(read_json(folder / CONFIG_NAME), CONFIG_NAME)
    form = find_hf(keys.get("model_type"), CONFIG_NAME)
    tensors = read_folder(folder)
    source = safetensors_source(folder.name, tensors, form.prefixes)
    config = form.config(keys)
    if not config.tie_word_embeddings and form.tensors.head + ".weight" not in source:
        raise ModelFileError(
            f"{source.label}: tensor {form.tensors.head}.weight is missing, and tie_word_embeddings is false"
        )
    return form, _completed(config, form, source, keys, **shortening(keys)), source


def _completed(
    config: ModelConfig, form: GGUFForm | HFForm, source: TensorSource, keys: Keys, **known: object
) -> ModelConfig:
    """The config with what only the tensors tell; refused where the two contradict each other."""
    names = form.tensors
    embedding = source.shape(names.embedding + ".weight")
    if embedding is None or len(embedding) != 2:
        raise keys.refuse(f"tensor {names.embedding}.weight is missing or is no matrix")
    if config.num_heads % config.num_kv_heads:
        raise keys.refuse(f"{config.num_heads} heads can not share {config.num_kv_heads} KV heads evenly")
    if config.experts is not None and config.experts.num_experts % config.experts.num_groups:
        raise keys.refuse(
            f"{config.experts.num_experts} experts can not be in {config.experts.num_groups} groups of one size"
        )
    if config.rope.dim % 2 or config.rope.dim > config.head_dim:
        raise keys.refuse(f"rope.dimension_count is {config.rope.dim}, but must be even and at most {config.head_dim}")
    changed = dataclasses.replace(
        config,
        vocab_size=embedding[0],
        qk_norm=names.q_norm is not None,
        post_norms=names.post_mlp_norm is not None,
        weight_bytes=source.num_bytes,
        weight_type=source.main_type,
        **known,  # type: ignore[arg-type]
    )
    for rope in (changed.rope, changed.rope_sliding):
        _check_frequencies(rope, keys, changed.context_length)
    return changed


def _with_factors(rope: RopeConfig, source: TensorSource, keys: Metadata) -> RopeConfig:
    """Scalings that llama.cpp's converter writes as tensors: llama3's divisors, longrope's two lists."""
    divisors = source.look("rope_freqs.weight")
    long, short = source.look("rope_factors_long.weight"), source.look("rope_factors_short.weight")
    if divisors is not None:
        return dataclasses.replace(rope, scaling=RopeScaling("divisors", factors=_factors(divisors, rope, keys)))
    if long is None or short is None:
        return rope
    original = keys.integer("rope.scaling.original_context_length", high=1 << 30)
    factor = keys.number("rope.scaling.attn_factor", default=1.0)
    scaling = RopeScaling(
        "longrope",
        original_context=original,
        factors=_factors(long, rope, keys),
        short_factors=_factors(short, rope, keys),
        attention_factor=factor,
    )
    return dataclasses.replace(rope, scaling=scaling)


def _factors(tensor: StoredTensor, rope: RopeConfig, keys: Metadata) -> tuple[float, ...]:
    if tensor.shape != (rope.dim // 2,):
        raise keys.refuse(f"tensor {tensor.name} has shape {tensor.shape}, but must have ({rope.dim // 2},)")
    if not tensor.type.served:
        raise keys.unsupported(f"tensor {tensor.name} is of type {tensor.type.name}, which is not supported")
    divisors = dequantize(tensor.data, tensor.type, tensor.shape)
    if not (np.isfinite(divisors) & (divisors > 0)).all():
        raise keys.refuse(f"tensor {tensor.name} has a factor that is not finite or not above 0")
    return tuple(float(d) for d in divisors)


def _check_frequencies(rope: RopeConfig | None, keys: Keys, context_length: int) -> None:
    """Refuse a base or scaling at the edge of float32: every rotated key would be NaN."""
    with np.errstate(all="ignore"):
        try:
            sound = rope is None or bool(np.isfinite(inverse_frequencies(rope, context_length)).all())
        except (ArithmeticError, ValueError):
            sound = False
    if rope is not None and not sound:
        scaling = "" if rope.scaling is None else f" and its {rope.scaling.kind} scaling by {rope.scaling.factor:g}"
        raise keys.refuse(f"rope.freq_base {rope.theta:g}{scaling} give frequencies that are not finite")


def _check_memory(source: TensorSource, backend: Backend) -> None:
    """Refuse weights that do not fit before anything is allocated for them: later the system would end the process."""
    needed, free = source.packed_bytes(backend), free_memory()
    if needed > free:
        raise NotEnoughMemoryError(
            f"{source.label}: the weights take {needed} bytes in memory, but {free} of the {total_memory()} bytes that "
            "this process may have are free: free some, or take a smaller model or smaller weight types"
        )


def _check_cache(config: ModelConfig, backend: Backend, file_name: str) -> None:
    """Whether the backend can keep heads of this size: better now than after the weights, at the first token."""
    try:
        backend.layer_cache(KVCacheStorage.for_model(config, 1, dtype="float16").layers[0])
    except UnsupportedModelError as error:
        raise UnsupportedModelError(
            f"{file_name}: head_dim is {config.head_dim}: {error} (the reference backend takes any)"
        ) from None
