"""Vocabularies small enough to see through, as GGUF metadata."""

from __future__ import annotations

from typing import Any

from pellucid.tokenizer.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def byte_alphabet() -> list[str]:
    """GPT-2's printable characters for the 256 bytes, in order of the bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(rest)) for byte in range(256)]


def byte_level_metadata(
    merges: tuple[str, ...] = ("h e", "l l", "he ll", "hell o", "Ġ hello"),
    control: tuple[str, ...] = ("<|bos|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    user_defined: tuple[str, ...] = ("<think>", "</think>"),
    **extra: Any,
) -> dict[str, Any]:
    """Control tokens first (ids 0 …), then user-defined ones, then the 256 bytes, then the merged pieces.

    extra: further `tokenizer.ggml.*` keys, without that prefix; None removes one.
    """
    pieces = [*byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    tokens = [*control, *user_defined, *pieces]
    kinds = [CONTROL] * len(control) + [USER_DEFINED] * len(user_defined) + [NORMAL] * len(pieces)
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": kinds, "merges": list(merges)}
    keys |= {"bos_token_id": 0, "eos_token_id": control.index("<|endoftext|>")} | extra
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def sentencepiece_metadata(
    pieces: dict[str, float] | None = None,
    user_defined: tuple[str, ...] = (),
    **extra: Any,
) -> dict[str, Any]:
    """<unk>, <s>, </s>, [INST] (ids 0 to 3), the user-defined tokens, 256 bytes, then `pieces` with their scores."""
    words = {"▁": -10.0, "h": -11.0, "e": -12.0, "l": -13.0, "o": -14.0, "he": -1.0, "ll": -2.0, "llo": -3.0}
    words |= {"hello": -4.0, "▁hello": -5.0}
    words = words if pieces is None else pieces
    heads = ["<unk>", "<s>", "</s>", "[INST]", *user_defined]
    tokens = [*heads, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    kinds = [UNKNOWN, CONTROL, CONTROL, CONTROL] + [USER_DEFINED] * len(user_defined)
    kinds += [BYTE] * 256 + [NORMAL] * len(words)
    keys = {"model": "llama", "tokens": tokens, "token_type": kinds}
    keys |= {"scores": [0.0] * (len(heads) + 256) + list(words.values())} | extra
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def byte_level(**keywords: Any) -> Tokenizer:
    """A tokenizer over `byte_level_metadata`."""
    return Tokenizer.from_gguf(byte_level_metadata(**keywords))


def sentencepiece(**keywords: Any) -> Tokenizer:
    """A tokenizer over `sentencepiece_metadata`."""
    return Tokenizer.from_gguf(sentencepiece_metadata(**keywords))


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Each token as text."""
    return [tokenizer.token_text(token_id) for token_id in ids]


# RFC 3629, section 4.
NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}


def bytes_without_a_token(tokenizer: Tokenizer) -> set[int]:
    """Bytes that no text may have, because the vocabulary has no token for them."""
    single = {tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
    return {byte for byte in range(256) if bytes([byte]) not in single and byte not in NEVER_IN_UTF8}


def spellable(text: str, lost: set[int]) -> str:
    """The text without the characters that have one of those bytes."""
    return "".join(c for c in text if not lost.intersection(c.encode()))
