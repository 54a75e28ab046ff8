"""How many KV blocks an engine has, and how long a request may become: the numbers, and clear refusals."""

from __future__ import annotations

from pellucid.config import EngineArgs, ModelConfig
from pellucid.errors import InvalidParameterError
from pellucid.kv_cache.memory import free_memory, total_memory

DEFAULT_REQUESTS = 4
"""Requests of max_model_len that the default pool has room for …"""
DEFAULT_MEMORY_LIMIT = 2 * 1024**3
"""… unless that would be more bytes than this …"""
DEFAULT_SHARE = 0.5
"""… or more than this share of the free memory: what is left is for the system, and for others that come later."""


def resolve_max_model_len(config: ModelConfig, args: EngineArgs) -> int:
    """Longest prompt and answer together, in tokens.

    More than the model was trained for must be asked for, and is warned of (`beyond_training`).
    Raises `InvalidParameterError` where the model has no such positions: a learned one is a row of a table.
    """
    if args.max_model_len is None:
        return config.context_length
    if args.max_model_len > config.context_length and config.positions == "learned":
        raise InvalidParameterError(
            "max_model_len",
            f"max_model_len is {args.max_model_len}, but the model has a table of {config.context_length} positions: "
            f"set max_model_len to {config.context_length} or less",
        )
    return args.max_model_len


def beyond_training(config: ModelConfig, max_model_len: int) -> str | None:
    """What to warn of where requests may become longer than the texts the model was trained on; else None."""
    if max_model_len <= config.context_length:
        return None
    return (
        f"max_model_len is {max_model_len}, but the model was trained for {config.context_length} positions: what it "
        "answers beyond them is likely to be worse"
    )


def resolve_num_blocks(
    config: ModelConfig,
    args: EngineArgs,
    max_model_len: int,
    draft_config: ModelConfig | None = None,
    *,
    free: int | None = None,
) -> int:
    """Blocks of the pool; always room for one request of max_model_len, so that every admitted request can end.

    When kv_cache_memory_bytes is unset: room for DEFAULT_REQUESTS such requests, at most DEFAULT_MEMORY_LIMIT bytes and
    DEFAULT_SHARE of the `free` bytes (what is free now, with the weights in memory, when None). A draft model keeps its
    keys and values beside the model's, block for block.

    Raises `InvalidParameterError` when kv_cache_memory_bytes is too small for one request or more than the process may
    have, or when it is unset and one request does not fit into the free memory.
    """
    bytes_per_token = kv_bytes_per_token(config, args, draft_config)
    block_bytes = bytes_per_token * args.block_size
    one_request = -(-max_model_len // args.block_size)
    budget = args.kv_cache_memory_bytes
    if budget is None:
        free = free_memory() if free is None else free
        if one_request * block_bytes > free:
            raise InvalidParameterError(
                "max_model_len",
                f"a request of max_model_len {max_model_len} needs {one_request * block_bytes} bytes of KV cache "
                f"({bytes_per_token} a token), but {max(free, 0)} bytes of memory are free: set max_model_len to "
                f"{largest_context(config, args, free, draft_config)} or less"
                + ("" if args.kv_cache_dtype in ("int8", "int4") else ", or kv_cache_dtype to int8 or int4"),
            )
        limit = min(DEFAULT_MEMORY_LIMIT, int(DEFAULT_SHARE * free))
        return max(one_request, min(DEFAULT_REQUESTS * one_request, limit // block_bytes))
    if budget > total_memory():
        raise InvalidParameterError(
            "kv_cache_memory_bytes",
            f"kv_cache_memory_bytes is {budget}, but must be at most the memory that this process may have, "
            f"{total_memory()}",
        )
    num_blocks = budget // block_bytes
    if num_blocks < one_request:
        raise InvalidParameterError(
            "kv_cache_memory_bytes",
            f"kv_cache_memory_bytes is {budget}, room for {num_blocks * args.block_size} tokens of {bytes_per_token} "
            f"bytes, but a request of max_model_len {max_model_len} needs {one_request * block_bytes}: raise "
            f"kv_cache_memory_bytes or lower max_model_len to {num_blocks * args.block_size}",
        )
    return num_blocks


def kv_bytes_per_token(config: ModelConfig, args: EngineArgs, draft_config: ModelConfig | None = None) -> int:
    """KV cache bytes of one token in the model and in the draft model."""
    models = [config] if draft_config is None else [config, draft_config]
    return sum(model.kv_bytes_per_token(args.kv_cache_dtype) for model in models)


def largest_context(config: ModelConfig, args: EngineArgs, free: int, draft_config: ModelConfig | None = None) -> int:
    """Tokens of the longest request whose keys and values fit into `free` bytes."""
    return max(free, 0) // (kv_bytes_per_token(config, args, draft_config) * args.block_size) * args.block_size
