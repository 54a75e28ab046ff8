"""GGUF bytes put together by hand, so that a test can write what no honest writer would."""

from __future__ import annotations

import struct
from collections.abc import Sequence

UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def array(item_type: int, count: int, payload: bytes) -> bytes:
    return u32(item_type) + u64(count) + payload


def kv(key: str | bytes, type_id: int, payload: bytes) -> bytes:
    return string(key) + u32(type_id) + payload


def tensor(name: str | bytes, ne: Sequence[int], type_id: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    """`ne` is ggml's order: the row length first."""
    dims = b"".join(map(u64, ne))
    return string(name) + u32(len(ne) if n_dims is None else n_dims) + dims + u32(type_id) + u64(offset)


def gguf(
    kvs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    tensor_count: int | None = None,
    kv_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; the counts are the true ones unless given."""
    head = b"GGUF" + u32(version)
    head += u64(len(tensors) if tensor_count is None else tensor_count)
    head += u64(len(kvs) if kv_count is None else kv_count)
    head += b"".join(kvs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def small_file(version: int = 3) -> bytes:
    """One of everything: scalars, a string, arrays of numbers, bools, strings and arrays, three tensors."""
    kvs = [
        kv("general.architecture", STRING, string("llama")),
        kv("llama.block_count", UINT32, u32(2)),
        kv("llama.rope.freq_base", FLOAT32, struct.pack("<f", 1e4)),
        kv("tokenizer.ggml.add_bos_token", BOOL, b"\x01"),
        kv("tokenizer.ggml.tokens", ARRAY, array(STRING, 3, string("a") + string("é") + string(""))),
        kv("tokenizer.ggml.scores", ARRAY, array(FLOAT32, 2, struct.pack("<2f", -1.0, 0.5))),
        kv("flags", ARRAY, array(BOOL, 2, b"\x00\x01")),
        kv("nested", ARRAY, array(ARRAY, 2, array(0, 2, b"\x01\x02") + array(STRING, 1, string("x")))),
        kv("general.alignment", UINT32, u32(32)),
    ]
    tensors = [
        tensor("norm.weight", [8], 0, 0),
        tensor("embed.weight", [32, 2], 2, 32),
        tensor("bias", [3], 0, 96),
    ]
    data = struct.pack("<8f", *range(8)) + bytes(range(36)) + bytes(28) + struct.pack("<3f", 1, 2, 3)
    return gguf(kvs, tensors, data, version=version)
