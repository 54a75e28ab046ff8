"""What a GGUF file's metadata says about its vocabulary, checked and in one place."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal

import numpy as np

from pellucid.errors import InvalidParameterError, ModelFileError, UnsupportedModelError, shown
from pellucid.tokenizer.pre_tokenizers import PreTokenizer, pre_tokenizer_named

# Kinds of token, `tokenizer.ggml.token_type`.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MODELS = ("gpt2", "llama", "t5", "bert")
SPACE_MARK = "▁"
"""A space, in SentencePiece's vocabularies."""
Spelling = Literal["bytes", "marks", "words", "suffix", "plain"]

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


def is_text(value: Any) -> bool:
    """Whether it is a string of Unicode: JSON and GGUF can spell half a surrogate pair."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


@dataclass(frozen=True, slots=True)
class Rules:
    """An engine of the `tokenizers` library, in the terms of tokenizer.json."""

    normalizer: Mapping[str, Any] | None
    pre_tokenizer: Mapping[str, Any] | None
    model: Mapping[str, Any]
    """Its type and options, without vocabulary and merges."""
    place: str = "the tokenizer's "
    """Where they stand, as an error's sentence begins."""


@dataclass(frozen=True, slots=True)
class Matching:
    """How a special or added token is found in text, where that is not just by its letters."""

    strips_before: bool = False
    """White space before it goes …"""
    strips_after: bool = False
    """… and white space after it."""
    single_word: bool = False
    """Only where no letter, digit or underscore touches it."""


@dataclass(slots=True)
class Vocabulary:
    """The pieces of a model and their kinds; indices are token ids.

    tokens: the pieces as the file spells them; index: the way back.
    spelling: the byte-level alphabet, `▁` marks for spaces, WordPiece (`##` where a word goes on), a suffix where a
    word ends, or plain text.
    kinds: one of NORMAL … BYTE for each.
    scores: SentencePiece scores, higher merges first; None where the file has none.
    rules: the engine, where it is neither byte-level BPE of GGUF nor SentencePiece BPE.
    normalized: added tokens that are looked for after the rules' normalizer.
    prefix_ids, suffix_ids: what goes before and after a text.
    """

    model: str
    spelling: Spelling
    pre_tokenizer: PreTokenizer
    tokens: list[str]
    index: dict[str, int]
    kinds: MutableSequence[int]
    scores: np.ndarray[Any, np.dtype[np.float32]] | None
    merges: list[str] | None
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    eos_ids: frozenset[int]
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    add_space_prefix: bool
    chat_templates: dict[str, str]
    matching: dict[int, Matching] = field(default_factory=dict)
    rules: Rules | None = None
    normalized: dict[int, Matching] = field(default_factory=dict)
    continuation: str = "##"
    """words: what a piece begins with that goes on with a word; suffix: what a piece ends with that ends one."""

    def ids_of_kinds(self, *kinds: int) -> list[int]:
        """The ids of all tokens of these kinds, ascending."""
        return _ids_of_kinds(self.kinds, *kinds)

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


def _ids_of_kinds(all_kinds: MutableSequence[int], *kinds: int) -> list[int]:
    wanted = np.zeros(256, np.bool_)
    wanted[list(kinds)] = True
    ids: list[int] = np.flatnonzero(wanted[np.frombuffer(bytes(all_kinds), np.uint8)]).tolist()
    return ids


def no_token_for(character: str) -> InvalidParameterError:
    """The refusal of a text with a character that no tokens can spell: nothing of a prompt is dropped in silence."""
    return InvalidParameterError(
        "prompt",
        f"the text has the character {character!a} (U+{ord(character):04X}), for which the model's vocabulary has no "
        f"tokens: take it out",
    )


def check_bytes(text: str, lost: frozenset[int]) -> None:
    """Refuse a text with bytes that have no token, which the engine would drop (SmolLM2 lacks a few controls)."""
    data = text.encode()
    if any(byte in data for byte in lost):
        raise no_token_for(next(c for c in text if not lost.isdisjoint(c.encode())))


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
    if model == "bert":
        tokens = [_without_phantom_space(token, kind) for token, kind in zip(tokens, kinds, strict=True)]
    # Only the byte-level models are cut by rules that differ from file to file.
    pre_name = _text(metadata, "tokenizer.ggml.pre") or "default"
    pre_tokenizer = pre_tokenizer_named(pre_name) if model == "gpt2" else PreTokenizer("none")
    index = dict(zip(tokens, range(len(tokens)), strict=True))
    ids = _SpecialIds(metadata, tokens, kinds)
    defaults = _DEFAULT_IDS[model]
    bos_id, eos_id = ids.read(_BEGIN_KEYS[model][0], defaults[0]), ids.read(_BEGIN_KEYS[model][1], defaults[1])
    add_bos = _flag(metadata, "add_bos_token", model in ("llama", "bert") or pre_tokenizer.add_bos)
    add_eos = _flag(metadata, "add_eos_token", model in ("t5", "bert"))
    return Vocabulary(
        model=model,
        spelling=_SPELLINGS[model],
        pre_tokenizer=pre_tokenizer,
        tokens=tokens,
        index=index,
        kinds=kinds,
        scores=_scores(metadata, len(tokens)) if model in ("llama", "t5") else None,
        merges=_merges(metadata, required=model == "gpt2"),
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=ids.read("unknown", defaults[2]),
        pad_id=ids.read("padding", None),
        eos_ids=_end_ids(metadata, ids, index, kinds, eos_id),
        prefix_ids=(bos_id,) if add_bos and bos_id is not None else (),
        suffix_ids=(eos_id,) if add_eos and eos_id is not None else (),
        add_space_prefix=_space_prefix(metadata, model),
        chat_templates=_chat_templates(metadata),
        matching=_matching(metadata, tokens, kinds),
        rules=_rules(metadata, model, tokens),
    )


def _without_phantom_space(token: str, kind: int) -> str:
    """llama.cpp's converter marks the pieces that begin a word and drops the `##` of the others; here it comes back."""
    if kind != NORMAL or token.startswith(SPACE_MARK):
        return token.removeprefix(SPACE_MARK)
    return "##" + token


def _space_prefix(metadata: Mapping[str, Any], model: str) -> bool:
    if model == "bert":
        return True
    return model != "gpt2" and _flag(metadata, "add_space_prefix", True)


def _rules(metadata: Mapping[str, Any], model: str, tokens: list[str]) -> Rules | None:
    """The library's rules for a Unigram or WordPiece vocabulary."""
    if model == "bert":
        # Older files say nothing of case and accents: both are dropped.
        lowercase = _flag(metadata, "normalizer.lowercase", True)
        strip_accents = _flag(metadata, "normalizer.strip_accents", lowercase)
        return wordpiece_rules({"do_lower_case": lowercase, "strip_accents": strip_accents})
    if model == "gpt2":
        return None
    charsmap = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if charsmap is not None and (not isinstance(charsmap, np.ndarray) or charsmap.dtype.kind not in "iu"):
        raise ModelFileError("tokenizer.ggml.precompiled_charsmap is not an array of bytes")
    steps = _sentencepiece_steps(
        b"" if charsmap is None else charsmap.astype(np.uint8).tobytes(),
        squeezes_spaces=_flag(metadata, "remove_extra_whitespaces", model == "t5"),
    )
    if model != "t5":
        return Rules({"type": "Sequence", "normalizers": steps}, None, {"type": "SentencePiece"}) if steps else None
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK})
    if _flag(metadata, "add_space_prefix", True):
        steps.append({"type": "Prepend", "prepend": SPACE_MARK})
    # Where a piece goes over the end of a word, a text is one word.
    crosses = any(SPACE_MARK in token[1:] for token in tokens)
    words = {"type": "Metaspace", "replacement": SPACE_MARK, "prepend_scheme": "never", "split": not crosses}
    return Rules({"type": "Sequence", "normalizers": steps}, words, {"type": "Unigram", "hides_bytes": True})


def _sentencepiece_steps(charsmap: bytes, *, squeezes_spaces: bool) -> list[dict[str, Any]]:
    """SentencePiece's own normalisation (Kudo and Richardson 2018, section 3.2)."""
    import base64

    steps: list[dict[str, Any]] = []
    if charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    if squeezes_spaces:
        steps.append({"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return steps


def wordpiece_rules(settings: Mapping[str, Any]) -> Rules:
    """BERT's words (google-research/bert, tokenization.py), by the flags of its tokenizer_config.json."""
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
        "strip_accents": settings.get("strip_accents"),
        "lowercase": settings.get("do_lower_case", True),
    }
    return Rules(normalizer, {"type": "BertPreTokenizer"}, {"type": "WordPiece"})


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, (list, tuple)) or not tokens or set(map(type, tokens)) != {str}:
        raise ModelFileError("tokenizer.ggml.tokens is missing or is not a list of strings; the file has no vocabulary")
    return list(tokens)


def _kinds(metadata: Mapping[str, Any], count: int) -> bytearray:
    kinds = _per_token(metadata, "tokenizer.ggml.token_type", count)
    if kinds is None:
        return bytearray([NORMAL]) * count
    if kinds.dtype.kind not in "iu" or int(kinds.min()) < 0 or int(kinds.max()) > BYTE:
        raise ModelFileError(f"tokenizer.ggml.token_type is {shown(kinds)}, but must be whole numbers from 0 to {BYTE}")
    return bytearray(kinds.astype(np.uint8).tobytes())


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


def _check_byte_tokens(tokens: list[str], kinds: MutableSequence[int]) -> None:
    for token in map(tokens.__getitem__, _ids_of_kinds(kinds, BYTE)):
        if re.fullmatch("<0x[0-9A-Fa-f]{2}>", token) is None:
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


# Where a file does not say, ids of begin, end and unknown are SentencePiece's usual ones.
_DEFAULT_IDS: dict[str, tuple[int | None, int | None, int | None]] = {
    "gpt2": (None, None, None),
    "llama": (1, 2, 0),
    "t5": (None, 1, 2),
    "bert": (101, 102, 100),
}
_BEGIN_KEYS = {"gpt2": ("bos", "eos"), "llama": ("bos", "eos"), "t5": ("bos", "eos"), "bert": ("cls", "seperator")}
_SPELLINGS: dict[str, Spelling] = {"gpt2": "bytes", "llama": "marks", "t5": "marks", "bert": "words"}
_PHI3_KEEPS_SPACE_AFTER = ("<unk>", "<s>", "<|endoftext|>")


class _SpecialIds:
    """Reads `tokenizer.ggml.*_token_id`, refusing ids outside the vocabulary."""

    def __init__(self, metadata: Mapping[str, Any], tokens: list[str], kinds: MutableSequence[int]) -> None:
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
    metadata: Mapping[str, Any],
    ids: _SpecialIds,
    index: dict[str, int],
    kinds: MutableSequence[int],
    eos_id: int | None,
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
    return frozenset(named | known_end_ids(index, kinds))


def known_end_ids(index: Mapping[str, int], kinds: MutableSequence[int]) -> set[int]:
    """The end tokens known by their text; they become CONTROL in `kinds`."""
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
    return ends


def _matching(metadata: Mapping[str, Any], tokens: list[str], kinds: MutableSequence[int]) -> dict[int, Matching]:
    # Phi-3's added tokens swallow the white space after them; GGUF has no field for that, so llama.cpp goes by name.
    name = _text(metadata, "general.name").lower()
    if metadata.get("tokenizer.ggml.model") != "llama" or ("phi-3" not in name and "phi3" not in name):
        return {}
    swallows = Matching(strips_after=True)
    return {
        i: swallows
        for i, kind in enumerate(kinds)
        if kind in (CONTROL, UNKNOWN, USER_DEFINED) and tokens[i] not in _PHI3_KEEPS_SPACE_AFTER
    }


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    templates: dict[str, str] = {}
    for key in metadata:
        if key == "tokenizer.chat_template":
            templates["default"] = _text(metadata, key)
        elif key.startswith("tokenizer.chat_template."):
            templates[key.removeprefix("tokenizer.chat_template.")] = _text(metadata, key)
    return templates
