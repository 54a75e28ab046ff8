"""What a GGUF file's metadata says about its vocabulary, checked and in one place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from pellucid.errors import InvalidParameterError, ModelFileError, UnsupportedModelError, shown
from pellucid.tokenizer.pre_tokenizers import PreTokenizer, pre_tokenizer_named

# Kinds of token, `tokenizer.ggml.token_type`.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MODELS = ("gpt2", "llama")

# GPT-2's printable spelling of bytes (openai/gpt-2, src/encoder.py, `bytes_to_unicode`).
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_OF_CHARACTER = {byte: byte for byte in _PRINTABLE}
BYTE_OF_CHARACTER |= {256 + n: byte for n, byte in enumerate(b for b in range(256) if b not in set(_PRINTABLE))}

# End-of-turn and end-of-text tokens known by their text, because many files name only one of theirs
# (the list of llama.cpp, src/llama-vocab.cpp).
END_TEXTS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
)
_END_ID_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id", "eos_token_ids")


@dataclass(slots=True)
class Vocabulary:
    """The pieces of a model and their kinds; indices are token ids.

    tokens: the pieces as the file spells them (byte-level alphabet or `▁` for a space); index: the way back.
    kinds: one of NORMAL … BYTE for each.
    scores: SentencePiece scores, higher merges first; None where the file has none.
    """

    model: str
    pre_tokenizer: PreTokenizer
    tokens: list[str]
    index: dict[str, int]
    kinds: list[int]
    scores: np.ndarray[Any, np.dtype[np.float32]] | None
    merges: list[str] | None
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    strips_after_special: bool
    chat_templates: dict[str, str]

    def ids_of_kinds(self, *kinds: int) -> list[int]:
        """The ids of all tokens of these kinds, ascending."""
        wanted: list[int] = np.flatnonzero(np.isin(np.asarray(self.kinds), kinds)).tolist()
        return wanted

    def pieces_without(self, *kinds: int) -> dict[str, int]:
        """Text to id of all tokens but those of these kinds."""
        pieces = dict(self.index)
        for token_id in self.ids_of_kinds(*kinds):
            pieces.pop(self.tokens[token_id], None)
        return pieces

    def difference(self, other: Vocabulary) -> str | None:
        """The first thing that keeps the other's ids from meaning the same, in words; None when they do."""
        if self.model != other.model:
            return f"its tokenizer is {other.model}, not {self.model}"
        if len(self.tokens) != len(other.tokens):
            return f"it has {len(other.tokens)} tokens, not {len(self.tokens)}"
        for token_id, (token, other_token) in enumerate(zip(self.tokens, other.tokens, strict=True)):
            if token != other_token:
                return f"token {token_id} is {shown(other_token)}, not {shown(token)}"
        return None


def no_token_for(character: str) -> InvalidParameterError:
    """The refusal of a text with a character that no tokens can spell: nothing of a prompt is dropped in silence."""
    return InvalidParameterError(
        "prompt",
        f"the text has the character {character!a} (U+{ord(character):04X}), for which the model's vocabulary has no "
        f"tokens: take it out",
    )


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Check the `tokenizer.*` keys of `metadata` and gather them.

    Raises UnsupportedModelError for a tokenizer or pre-tokenizer we do not know, ModelFileError for keys that are
    missing or contradict each other; both name the key.
    """
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model not in MODELS:
        raise UnsupportedModelError(
            f"tokenizer.ggml.model is {shown(model)}, which is not supported; supported are: {', '.join(MODELS)}"
        )
    tokens = _tokens(metadata)
    kinds = _kinds(metadata, len(tokens))
    _check_byte_tokens(tokens, kinds)
    # Only the byte-level models are cut by rules that differ from file to file.
    sentencepiece = model == "llama"
    pre_name = _text(metadata, "tokenizer.ggml.pre") or "default"
    pre_tokenizer = PreTokenizer("none") if sentencepiece else pre_tokenizer_named(pre_name)
    index = dict(zip(tokens, range(len(tokens)), strict=True))
    ids = _SpecialIds(metadata, tokens, kinds)
    defaults = (1, 2, 0) if sentencepiece else (None, None, None)
    eos_id = ids.read("eos", defaults[1])
    end_ids = _end_ids(metadata, ids, index, kinds, eos_id)
    return Vocabulary(
        model=model,
        pre_tokenizer=pre_tokenizer,
        tokens=tokens,
        index=index,
        kinds=kinds,
        scores=_scores(metadata, len(tokens)) if sentencepiece else None,
        merges=_merges(metadata, required=not sentencepiece),
        bos_id=ids.read("bos", defaults[0]),
        eos_id=eos_id,
        unk_id=ids.read("unknown", defaults[2]),
        pad_id=ids.read("padding", None),
        eos_ids=end_ids,
        add_bos=_flag(metadata, "add_bos_token", sentencepiece or pre_tokenizer.add_bos),
        add_eos=_flag(metadata, "add_eos_token", False),
        add_space_prefix=_flag(metadata, "add_space_prefix", True) if sentencepiece else False,
        strips_after_special=_strips_after_special(metadata),
        chat_templates=_chat_templates(metadata),
    )


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, (list, tuple)) or not tokens or set(map(type, tokens)) != {str}:
        raise ModelFileError("tokenizer.ggml.tokens is missing or is not a list of strings; the file has no vocabulary")
    return list(tokens)


def _kinds(metadata: Mapping[str, Any], count: int) -> list[int]:
    kinds = _per_token(metadata, "tokenizer.ggml.token_type", count)
    if kinds is None:
        return [NORMAL] * count
    if kinds.dtype.kind not in "iu" or int(kinds.min()) < 0 or int(kinds.max()) > BYTE:
        raise ModelFileError(f"tokenizer.ggml.token_type is {shown(kinds)}, but must be whole numbers from 0 to {BYTE}")
    listed: list[int] = kinds.tolist()
    return listed


def _per_token(metadata: Mapping[str, Any], key: str, count: int) -> np.ndarray[Any, np.dtype[Any]] | None:
    """An array with one number for each token, or None where the file has none."""
    values = metadata.get(key)
    if values is None:
        return None
    is_plain = isinstance(values, np.ndarray) or (isinstance(values, list) and set(map(type, values)) <= {int, float})
    array = np.asarray(values if is_plain else "")
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ModelFileError(f"{key} is {shown(values)}, but must be an array of numbers")
    if len(array) != count:
        raise ModelFileError(f"{key} has {len(array)} entries, but there are {count} tokens")
    return array


def _check_byte_tokens(tokens: list[str], kinds: list[int]) -> None:
    if BYTE in kinds:
        for token, kind in zip(tokens, kinds, strict=True):
            if kind == BYTE and re.fullmatch("<0x[0-9A-Fa-f]{2}>", token) is None:
                raise ModelFileError(f"tokenizer.ggml.tokens has the byte token {token!r}; it must look like <0x0A>")


def _scores(metadata: Mapping[str, Any], count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    scores = _per_token(metadata, "tokenizer.ggml.scores", count)
    if scores is None:
        raise ModelFileError("tokenizer.ggml.scores is missing, but a 'llama' tokenizer merges by score")
    if np.isnan(scores).any():
        raise ModelFileError("tokenizer.ggml.scores has NaN, but a 'llama' tokenizer merges by score")
    return np.asarray(scores, dtype=np.float32)


def _merges(metadata: Mapping[str, Any], required: bool) -> list[str] | None:
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is None:
        if required:
            raise ModelFileError("tokenizer.ggml.merges is missing, but a 'gpt2' tokenizer needs its merges")
        return None
    is_empty = isinstance(merges, (list, tuple, np.ndarray)) and len(merges) == 0
    if not is_empty and (not isinstance(merges, (list, tuple)) or set(map(type, merges)) != {str}):
        raise ModelFileError("tokenizer.ggml.merges is not a list of strings")
    return list(merges)


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise ModelFileError(f"tokenizer.ggml.{key} is {shown(value)}, but must be true or false")
    return value


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key, "")
    if not isinstance(value, str):
        raise ModelFileError(f"{key} is {shown(value)}, but must be a string")
    return value


class _SpecialIds:
    """Reads `tokenizer.ggml.*_token_id`, refusing ids outside the vocabulary."""

    def __init__(self, metadata: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> None:
        self._metadata, self._tokens, self._kinds = metadata, tokens, kinds

    def read(self, name: str, default: int | None) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is None:
            # llama.cpp's defaults are SentencePiece's usual places; they hold only where such a token stands there.
            usable = default is not None and default < len(self._kinds) and self._kinds[default] in (UNKNOWN, CONTROL)
            return default if usable else None
        return self.checked(f"{name}_token_id", value)

    def checked(self, key: str, value: Any) -> int:
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_whole or not 0 <= value < len(self._tokens):
            raise ModelFileError(
                f"tokenizer.ggml.{key} is {shown(value)}, but the vocabulary has {len(self._tokens)} tokens (0 to "
                f"{len(self._tokens) - 1})"
            )
        return int(value)


def _end_ids(
    metadata: Mapping[str, Any], ids: _SpecialIds, index: dict[str, int], kinds: list[int], eos_id: int | None
) -> frozenset[int]:
    """Every id that ends generation: those the file names and those known by their text.

    Tokens known by their text become CONTROL where a converter left them normal, as llama.cpp does.
    """
    named: set[int] = set() if eos_id is None else {eos_id}
    for key in _END_ID_KEYS:
        value = metadata.get(f"tokenizer.ggml.{key}")
        if value is not None:
            listed = value.tolist() if isinstance(value, np.ndarray) else value
            named.update(ids.checked(key, item) for item in (listed if isinstance(listed, list) else [listed]))
    known = {text: index[text] for text in END_TEXTS if text in index}
    # In the harmony format `<|end|>` closes a message, not the answer (also solar-open).
    if "<|end|>" in known and (
        {"<|return|>", "<|call|>"} <= known.keys() or {"<|flush|>", "<|calls|>"} <= known.keys()
    ):
        del known["<|end|>"]
    # Gemma 4 and PLaMo have a plain-text `</s>`.
    if "</s>" in known and ("<|tool_response>" in known or "<|plamo:eos|>" in index):
        del known["</s>"]
    # `</s>` is also the HTML tag in Gemma's vocabulary: only texts that mean nothing else count whatever their kind.
    ends = {i for text, i in known.items() if kinds[i] == CONTROL or text.startswith(("<|", "<｜", "<end_of"))}
    for token_id in ends:
        kinds[token_id] = CONTROL
    return frozenset(named | ends)


def _strips_after_special(metadata: Mapping[str, Any]) -> bool:
    # Phi-3's added tokens swallow the white space after them; GGUF has no field for that, so llama.cpp goes by name.
    name = _text(metadata, "general.name").lower()
    return metadata.get("tokenizer.ggml.model") == "llama" and ("phi-3" in name or "phi3" in name)


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    templates: dict[str, str] = {}
    for key in metadata:
        if key == "tokenizer.chat_template":
            templates["default"] = _text(metadata, key)
        elif key.startswith("tokenizer.chat_template."):
            templates[key.removeprefix("tokenizer.chat_template.")] = _text(metadata, key)
    return templates
