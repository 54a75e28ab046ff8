"""From EngineArgs to a model and its tokenizer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pellucid.config import EngineArgs, ModelConfig
from pellucid.engine.model_runner import Model
from pellucid.engine.output_processor import TokenizerLike
from pellucid.errors import InvalidParameterError, shown


def load_parts(args: EngineArgs, progress: Any = None) -> tuple[Model, TokenizerLike]:
    """Resolve the model's name to a file or folder, load its weights for the backend, and build its tokenizer.

    Raises `ModelStoreError`, `ModelFileError` (also where the tokenizer has tokens that the embedding has no row for),
    `UnsupportedModelError` or `BackendError`.
    """
    from pellucid.kernels.dispatch import make_backend
    from pellucid.model_store.store import resolve
    from pellucid.models.model_files import open_model

    with open_model(resolve(args.model, progress=progress)) as files, _collector_paused():
        tokenizer = files.tokenizer
        model = (
            files.without_padding()
            .with_rope(args.rope_scaling, args.rope_theta)
            .load(make_backend(args.backend, args.threads), args.max_model_len, args.quantization)
        )
    return model, tokenizer


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Vocabularies are a hundred thousand objects that stay: looking for garbage among them takes a tenth of a load."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def needed_bytes(args: EngineArgs, progress: Any = None) -> int:
    """What weights and KV cache will take, read from the model's header: the tensors in the file, and the pool.

    Raises as `load_parts`, and `InvalidParameterError` as `LLMEngine`.
    """
    from pellucid.kv_cache.memory import total_memory
    from pellucid.kv_cache.sizing import resolve_max_model_len, resolve_num_blocks
    from pellucid.model_store.store import resolve
    from pellucid.models.model_files import open_model

    def config_of(name: str, scaling: Any = None, theta: float | None = None) -> ModelConfig:
        with open_model(resolve(name, progress=progress)) as files:
            config = files.with_rope(scaling, theta).config
            return replace(config, weight_bytes=files.quantized_bytes(args.quantization))

    config = config_of(args.model, args.rope_scaling, args.rope_theta)
    draft = None if args.speculative_model is None else config_of(args.speculative_model)
    models = [config] if draft is None else [config, draft]
    free = total_memory() - sum(m.weight_bytes for m in models)  # as if others had been closed for it
    num_blocks = resolve_num_blocks(config, args, resolve_max_model_len(config, args), draft, free=free)
    return sum(
        m.weight_bytes + num_blocks * args.block_size * m.kv_bytes_per_token(args.kv_cache_dtype) for m in models
    )


def load_draft_model(args: EngineArgs, model: Model, tokenizer: TokenizerLike, progress: Any = None) -> Model | None:
    """Load `args.speculative_model` on the model's own backend; None where none is asked for.

    Raises as `load_parts` does, and `InvalidParameterError` for a draft model whose tokens are not the model's: an id
    would mean something else to it.
    """
    if args.speculative_model is None:
        return None
    from pellucid.model_store.store import resolve
    from pellucid.models.decoder import Decoder
    from pellucid.models.model_files import open_model
    from pellucid.tokenizer.tokenizer import Tokenizer

    if not isinstance(model, Decoder) or not isinstance(tokenizer, Tokenizer):
        raise AssertionError("a draft model is loaded beside a model that was")
    with open_model(resolve(args.speculative_model, progress=progress)) as files:
        difference = tokenizer.vocabulary.difference(files.vocabulary)
        if difference is not None:
            raise InvalidParameterError(
                "speculative_model",
                f"speculative_model {shown(args.speculative_model)} has another vocabulary than the model: "
                f"{difference}",
            )
        return files.without_padding().load(model.backend, args.max_model_len, args.quantization)
