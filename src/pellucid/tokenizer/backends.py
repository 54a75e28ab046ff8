"""The two engines that turn a stretch of plain text into ids.

Byte-level BPE runs on the `tokenizers` library, SentencePiece by scores in sentencepiece.py. They see text without
special tokens only: those are taken out before (special_tokens.py), so that the caller decides whether a control
string in the text is a token or just text.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from operator import contains
from typing import TYPE_CHECKING, Any

from pellucid.errors import ModelFileError
from pellucid.tokenizer.guard import applied
from pellucid.tokenizer.pre_tokenizers import DIGIT_RUNS, EACH_DIGIT, GPT2_WORDS, PUNCTUATION, PreTokenizer, linear
from pellucid.tokenizer.sentencepiece import ScoreMerger
from pellucid.tokenizer.vocabulary import (
    BYTE,
    BYTE_OF_CHARACTER,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    check_bytes,
    is_text,
)

if TYPE_CHECKING:
    import tokenizers

Encode = Callable[[str, bool], list[int]]
"""(plain text, whether it stands at the very beginning) → ids."""


def build_backend(vocabulary: Vocabulary) -> Encode:
    """The engine for a vocabulary: plain text to ids."""
    if vocabulary.model == "llama":
        return _sentencepiece_encode(vocabulary)
    if vocabulary.rules is not None:
        from pellucid.tokenizer.library import LibraryEngine

        return LibraryEngine(vocabulary, vocabulary.rules).encode
    engine = _byte_level(vocabulary)
    pieces = vocabulary.pieces_without(CONTROL, UNKNOWN)
    lost = frozenset(byte for code, byte in BYTE_OF_CHARACTER.items() if chr(code) not in pieces)

    def encode(text: str, _at_start: bool) -> list[int]:
        check_bytes(text, lost)
        return applied(lambda: list(engine.encode(text, add_special_tokens=False).ids))

    return encode


def _byte_level(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Byte-level BPE (GPT-2): cut by the model's rules, bytes spelled as printable characters, merges by rank."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers

    rules = vocabulary.pre_tokenizer
    # Control tokens stay out of the merging vocabulary: text must never merge into one.
    pieces = vocabulary.pieces_without(CONTROL, UNKNOWN)
    merges = _merge_pairs(vocabulary.merges or [])
    engine = Tokenizer(_bpe(pieces, merges, ignore_merges=rules.ignore_merges))
    engine.pre_tokenizer = pre_tokenizers.Sequence(_steps(rules))
    if rules.nfc:
        engine.normalizer = normalizers.NFC()
    return engine


def _steps(rules: PreTokenizer) -> list[tokenizers.pre_tokenizers.PreTokenizer]:
    from tokenizers import Regex, pre_tokenizers

    named: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
        GPT2_WORDS: lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        EACH_DIGIT: lambda: pre_tokenizers.Digits(individual_digits=True),
        DIGIT_RUNS: lambda: pre_tokenizers.Digits(individual_digits=False),
        PUNCTUATION: lambda: pre_tokenizers.Punctuation("contiguous"),
    }
    steps = [
        named[step]() if step in named else pre_tokenizers.Split(Regex(linear(step)), behavior="isolated")
        for step in rules.steps
    ]
    if GPT2_WORDS not in rules.steps:
        # The bytes must be spelled once, by whichever step does it.
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return steps


def _sentencepiece_encode(vocabulary: Vocabulary) -> Encode:
    merger = _sentencepiece(vocabulary)
    prefix = " " if vocabulary.add_space_prefix else ""
    if vocabulary.rules is None:
        return lambda text, _at_start: merger.encode_ids(prefix + text)
    from pellucid.tokenizer.library import normalizer_of

    normalize = normalizer_of(vocabulary.rules)

    def encode(text: str, _at_start: bool) -> list[int]:
        normal = normalize(text)
        return merger.encode_ids(prefix + normal) if normal else []

    return encode


def _sentencepiece(vocabulary: Vocabulary) -> ScoreMerger:
    """SentencePiece BPE: spaces become `▁`, joins by score, what is no piece falls back to its UTF-8 bytes."""
    assert vocabulary.scores is not None  # read_vocabulary refuses a file without them
    tokens = vocabulary.tokens
    is_one_to_one = len(vocabulary.index) == len(tokens)
    return ScoreMerger(
        pieces=vocabulary.index if is_one_to_one else {tokens[i]: i for i in vocabulary.ids_of_kinds(NORMAL)},
        scores=vocabulary.scores.data,
        byte_ids={int(tokens[i][3:5], 16): i for i in vocabulary.ids_of_kinds(BYTE)},
        unk_id=vocabulary.unk_id,
        others=frozenset(vocabulary.ids_of_kinds(0, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE)),
    )


def _merge_pairs(merges: list[str]) -> list[tuple[str, str]]:
    """`"a b"` to `("a", "b")`; a piece may begin with a space."""
    words = " ".join(merges).split(" ")
    if len(words) == 2 * len(merges) and all(map(contains, merges, repeat(" "))) and all(words[::2]):
        return list(zip(words[::2], words[1::2], strict=True))  # one space in each: cut together, as they are many
    malformed = next((merge for merge in merges if " " not in merge[1:]), None)
    if malformed is not None:
        raise ModelFileError(f"tokenizer.ggml.merges has {malformed!r}, which is not two pieces with a space between")
    places = [merge.index(" ", 1) for merge in merges]
    return [(merge[:at], merge[at + 1 :]) for merge, at in zip(merges, places, strict=True)]


def _bpe(pieces: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> tokenizers.models.BPE:
    """The library's model, without merges that touch a token which is not a piece (a control token)."""
    from tokenizers.models import BPE

    try:
        return BPE(vocab=pieces, merges=merges, **options)
    except BaseException as error:
        # The library raises bare Exceptions, and panics at a merge that is longer than every token.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        # Pieces that are no UTF-8 text cannot be found in a text either.
        texts = {piece: token_id for piece, token_id in pieces.items() if is_text(piece)}
        kept = [(left, right) for left, right in merges if {left, right, left + right} <= texts.keys()]
    try:
        return BPE(vocab=texts, merges=kept, **options)
    except Exception as error:
        raise ModelFileError(f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: {error}") from None
