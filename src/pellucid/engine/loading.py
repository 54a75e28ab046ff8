"""From EngineArgs to a model and its tokenizer."""

from __future__ import annotations

from typing import Any

from pellucid.config import EngineArgs, ModelConfig
from pellucid.engine.model_runner import Model
from pellucid.engine.output_processor import TokenizerLike
from pellucid.errors import InvalidParameterError, ModelFileError, shown


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

    def config_of(name: str) -> ModelConfig:
        with GGUFFile.open(resolve(name, progress=progress)) as file:
            return read_config(file)[1]

    config = config_of(args.model)
    draft = None if args.speculative_model is None else config_of(args.speculative_model)
    num_blocks = resolve_num_blocks(config, args, resolve_max_model_len(config, args), draft)
    models = [config] if draft is None else [config, draft]
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
    from pellucid.formats.gguf import GGUFFile
    from pellucid.model_store.store import resolve
    from pellucid.models.decoder import Decoder
    from pellucid.models.loading import load_gguf
    from pellucid.tokenizer.tokenizer import Tokenizer
    from pellucid.tokenizer.vocabulary import read_vocabulary

    if not isinstance(model, Decoder) or not isinstance(tokenizer, Tokenizer):
        raise AssertionError("a draft model is loaded beside a model that was")
    path = resolve(args.speculative_model, progress=progress)
    with GGUFFile.open(path) as file:
        difference = tokenizer.vocabulary.difference(read_vocabulary(file.metadata))
        if difference is not None:
            raise InvalidParameterError(
                "speculative_model",
                f"speculative_model {shown(args.speculative_model)} has another vocabulary than the model: "
                f"{difference}",
            )
        return load_gguf(file, model.backend)
