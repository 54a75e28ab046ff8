"""How many KV blocks an engine has, and how long a request may become: the numbers, and clear refusals."""

from __future__ import annotations

import os

from pellucid.config import EngineArgs, ModelConfig
from pellucid.errors import InvalidParameterError

DEFAULT_REQUESTS = 4
"""Requests of max_model_len that the default pool has room for …"""
DEFAULT_MEMORY_LIMIT = 2 * 1024**3
"""… unless that would be more bytes than this."""


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
    config: ModelConfig, args: EngineArgs, max_model_len: int, draft_config: ModelConfig | None = None
) -> int:
    """Blocks of the pool; always room for one request of max_model_len, so that every admitted request can end.

    A draft model keeps its keys and values beside the model's, block for block.

    Raises `InvalidParameterError` when kv_cache_memory_bytes is too small for that or more than the machine's
    memory, or when it is unset and the machine has less memory than one request needs.
    """
    bytes_per_token = config.kv_bytes_per_token(args.kv_cache_dtype)
    if draft_config is not None:
        bytes_per_token += draft_config.kv_bytes_per_token(args.kv_cache_dtype)
    block_bytes = bytes_per_token * args.block_size
    one_request = -(-max_model_len // args.block_size)
    budget = args.kv_cache_memory_bytes
    if budget is None:
        if one_request * block_bytes > machine_memory_bytes():
            raise InvalidParameterError(
                "max_model_len",
                f"a request of max_model_len {max_model_len} needs {one_request * block_bytes} bytes of KV cache "
                f"({bytes_per_token} a token), more than this machine's memory of {machine_memory_bytes()}: "
                f"set max_model_len to {machine_memory_bytes() // bytes_per_token} or less",
            )
        return max(one_request, min(DEFAULT_REQUESTS * one_request, DEFAULT_MEMORY_LIMIT // block_bytes))
    if budget > machine_memory_bytes():
        raise InvalidParameterError(
            "kv_cache_memory_bytes",
            f"kv_cache_memory_bytes is {budget}, but must be at most this machine's memory, {machine_memory_bytes()}",
        )
    num_blocks = budget // block_bytes
    if num_blocks < one_request:
        raise InvalidParameterError(
            "kv_cache_memory_bytes",
            f"kv_cache_memory_bytes is {budget}, room for {num_blocks * args.block_size} tokens of {bytes_per_token} "
            f"bytes, but a request of max_model_len {max_model_len} needs {one_request * block_bytes}: raise "
            f"kv_cache_memory_bytes or lower max_model_len",
        )
    return num_blocks


def machine_memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
