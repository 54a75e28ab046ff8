"""From EngineArgs to a model and its tokenizer."""

from __future__ import annotations

from typing import Any

from pellucid.config import EngineArgs
from pellucid.engine.model_runner import Model
from pellucid.engine.output_processor import TokenizerLike
from pellucid.errors import ModelFileError


def load_parts(args: EngineArgs, progress: Any = None) -> tuple[Model, TokenizerLike]:
    """Resolve the model's name to a file, load its weights for the backend, and build its tokenizer.

    Raises `ModelStoreError`, `ModelFileError` (also where vocabulary and embedding have different sizes: an id would
    have no row, or a row no text), `UnsupportedModelError` or `BackendError`.
    """
    from pellucid.formats.gguf import GGUFFile
    from pellucid.kernels.dispatch import make_backend
    from pellucid.model_store.store import resolve
    from pellucid.models.loading import load_gguf
    from pellucid.tokenizer.tokenizer import Tokenizer

    path = resolve(args.model, progress=progress)
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
        model = load_gguf(file, make_backend(args.backend, args.threads))
    if tokenizer.vocab_size != model.config.vocab_size:
        raise ModelFileError(
            f"{path.name}: the tokenizer has {tokenizer.vocab_size} tokens, but the embedding has "
            f"{model.config.vocab_size} rows: the two do not belong together"
        )
    return model, tokenizer


def needed_bytes(args: EngineArgs, progress: Any = None) -> int:
    """What weights and KV cache will take, read from the model's header: the tensors in the file, and the pool.

    Raises as `load_parts`, and `InvalidParameterError` as `LLMEngine`.
    """
    from pellucid.formats.gguf import GGUFFile
    from pellucid.kv_cache.sizing import resolve_max_model_len, resolve_num_blocks
    from pellucid.model_store.store import resolve
    from pellucid.models.loading import read_config

    with GGUFFile.open(resolve(args.model, progress=progress)) as file:
        config = read_config(file)[1]
    num_blocks = resolve_num_blocks(config, args, resolve_max_model_len(config, args))
    return config.weight_bytes + num_blocks * args.block_size * config.kv_bytes_per_token(args.kv_cache_dtype)
