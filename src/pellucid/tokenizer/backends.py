"""The two engines that turn a stretch of plain text into ids, built on the `tokenizers` library.

They see text without special tokens only: those are taken out before (special_tokens.py), so that the caller decides
whether a control string in the text is a token or just text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .merges import merges_from_scores
from .pre_tokenizers import DIGIT_RUNS, EACH_DIGIT, GPT2_WORDS, PUNCTUATION, PreTokenizer
from .vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Vocabulary

if TYPE_CHECKING:
    import tokenizers

SPACE_MARK = "▁"


def build_backend(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The engine for `vocabulary.model`."""
    return _sentencepiece(vocabulary) if vocabulary.model == "llama" else _byte_level(vocabulary)


def _byte_level(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Byte-level BPE (GPT-2): cut by the model's rules, bytes spelled as printable characters, merges by rank."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    rules = vocabulary.pre_tokenizer
    # Control tokens stay out of the merging vocabulary: text must never merge into one.
    pieces = vocabulary.pieces_without(CONTROL, UNKNOWN)
    engine = Tokenizer(
        BPE(vocab=pieces, merges=_merge_pairs(vocabulary.merges or [], pieces), ignore_merges=rules.ignore_merges)
    )
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
        named[step]() if step in named else pre_tokenizers.Split(Regex(step), behavior="isolated")
        for step in rules.steps
    ]
    if GPT2_WORDS not in rules.steps:
        # The bytes must be spelled once, by whichever step does it.
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return steps


def _merge_pairs(merges: list[str], pieces: dict[str, int]) -> list[tuple[str, str]]:
    """`"a b"` to `("a", "b")`, without those that touch a token which is not a piece (a control token)."""
    halves = (merge.split(" ", 1) if merge[0] != " " else [" ", merge[2:]] for merge in merges if merge)
    return [(left, right) for left, right in halves if left in pieces and right in pieces and left + right in pieces]


def _sentencepiece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """SentencePiece BPE: spaces become `▁`, merges by score, what is no piece falls back to its UTF-8 bytes."""
    from tokenizers import Tokenizer, normalizers
    from tokenizers.models import BPE

    kinds, tokens = vocabulary.kinds, vocabulary.tokens
    mergeable = vocabulary.ids_of_kinds(NORMAL)
    pieces = vocabulary.pieces_without(UNKNOWN, CONTROL, USER_DEFINED, UNUSED)
    has_bytes = BYTE in kinds
    unknown = tokens[vocabulary.unk_id] if vocabulary.unk_id is not None else None
    if unknown is not None and kinds[vocabulary.index[unknown]] in (UNKNOWN, CONTROL):
        pieces[unknown] = vocabulary.index[unknown]
    assert vocabulary.scores is not None
    if vocabulary.merges:
        merges = _merge_pairs(vocabulary.merges, pieces)
    else:
        merges = merges_from_scores(tokens, vocabulary.scores, mergeable)
    engine = Tokenizer(BPE(vocab=pieces, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes))
    engine.normalizer = normalizers.Replace(" ", SPACE_MARK)
    return engine
