"""tokenizer.model: SentencePiece's own file, a protobuf message, read into the terms of GGUF metadata.

Field numbers are those of sentencepiece_model.proto (google/sentencepiece). The file is untrusted: a field lies within
its message, what is not known is skipped, and there are at most `MAX_PIECES` pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.formats.json_file import read_bytes
from pellucid.tokenizer.tokenizer_json import filled_tokens, kinds_of
from pellucid.tokenizer.vocabulary import BYTE, NORMAL, UNUSED

MAX_PIECES: Final = 1 << 21
_MODELS: Final = {1: "t5", 2: "llama"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _DamagedError(Exception):
    pass


def read_sentencepiece(path: Path, added: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """`tokenizer.ggml.*` keys of the file, with the `added` tokens (id, content, special) behind or among its pieces.

    Raises ModelFileError for a damaged file, UnsupportedModelError for models that are neither BPE nor Unigram.
    """
    data = memoryview(read_bytes(path))
    try:
        return _metadata(data, added, path.name)
    except (_DamagedError, UnicodeDecodeError):
        raise ModelFileError(f"{path.name}: is cut, damaged, or no SentencePiece model") from None


def _metadata(data: memoryview, added: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    tokens: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1 and isinstance(value, memoryview):
            piece = dict(_fields(value))
            tokens.append(_text(piece.get(1, b"")))
            scores.append(_float(piece.get(2, b"\0\0\0\0")))
            kinds.append(_whole(piece.get(3, NORMAL)))
        elif number == 2 and isinstance(value, memoryview):
            trainer = dict(_fields(value))
        elif number == 3 and isinstance(value, memoryview):
            normalizer = dict(_fields(value))
    if not tokens or len(tokens) > MAX_PIECES or not all(NORMAL <= kind <= BYTE for kind in kinds):
        raise _DamagedError
    model = _MODELS.get(_whole(trainer.get(3, 1)))
    if model is None:
        raise UnsupportedModelError(f"{name}: neither a BPE nor a Unigram model, which is not supported")
    if _whole(trainer.get(24, 0)):
        raise UnsupportedModelError(f"{name}: white space as a suffix is not supported")
    pieces = {token: i for i, token in enumerate(tokens)}
    if len(pieces) != len(tokens):
        raise ModelFileError(f"{name}: two pieces have the same text")
    all_tokens = filled_tokens(pieces, added, name)
    all_kinds = kinds_of(all_tokens, pieces, added)
    for i, kind in enumerate(kinds):
        all_kinds[i] = kind if all_kinds[i] == NORMAL else all_kinds[i]
    metadata: dict[str, Any] = {
        "model": model,
        "tokens": all_tokens,
        "token_type": all_kinds,
        "scores": np.array(scores + [0.0] * (len(all_tokens) - len(tokens)), dtype=np.float32),
        "add_space_prefix": bool(_whole(normalizer.get(3, 1))),
        "remove_extra_whitespaces": bool(_whole(normalizer.get(4, 1))),
        "precompiled_charsmap": np.frombuffer(normalizer.get(2, b""), dtype=np.uint8),
    }
    for key, field, default in (("unknown", 40, 0), ("bos", 41, 1), ("eos", 42, 2), ("padding", 43, -1)):
        token_id = _whole(trainer.get(field, default))
        if token_id < len(tokens) and all_kinds[token_id] != UNUSED:  # -1, which the model has none, is 2**64 - 1 here
            metadata[f"{key}_token_id"] = token_id if token_id >= 0 else None
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, whole number or bytes) of one message."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise _DamagedError
        if size > end - at:
            raise _DamagedError
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _DamagedError


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise _DamagedError
    return value


def _text(value: Any) -> str:
    if isinstance(value, int):
        raise _DamagedError
    return bytes(value).decode("utf-8")


def _float(value: Any) -> float:
    if isinstance(value, int) or len(value) != 4:
        raise _DamagedError
    number = float(struct.unpack("<f", value)[0])
    if not abs(number) < 1e30:
        raise _DamagedError
    return number
