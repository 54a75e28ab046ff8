"""The two engines that turn a stretch of plain text into ids, built on the `tokenizers` library.

They see text without special tokens only: those are taken out before (special_tokens.py), so that the caller decides
whether a control string in the text is a token or just text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .merges import merges_from_scores
from .vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Vocabulary

if TYPE_CHECKING:
    import tokenizers

SPACE_MARK = "▁"


def build_backend(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The engine for `vocabulary.model`."""
    return _sentencepiece(vocabulary) if vocabulary.model == "llama" else _byte_level(vocabulary)


def _byte_level(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Byte-level BPE (GPT-2): cut by the model's rules, bytes spelled as printable characters, merges by rank."""
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    rules = vocabulary.pre_tokenizer
    # Control tokens stay out of the merging vocabulary: text must never merge into one.
    pieces = {t: i for i, t in enumerate(vocabulary.tokens) if vocabulary.kinds[i] in (NORMAL, BYTE, USER_DEFINED, UNUSED)}
    engine = Tokenizer(
        BPE(vocab=pieces, merges=_merge_pairs(vocabulary.merges or [], pieces), ignore_merges=rules.ignore_merges)
    )
    steps: list[pre_tokenizers.PreTokenizer] = []
    if rules.punctuation:
        steps.append(pre_tokenizers.Punctuation("contiguous"))
    if rules.individual_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rules.gpt2_words and rules.splits:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    steps.extend(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rules.splits)
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rules.gpt2_words and not rules.splits))
    engine.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if rules.nfc:
        engine.normalizer = normalizers.NFC()
    return engine


def _merge_pairs(merges: list[str], pieces: dict[str, int]) -> list[tuple[str, str]]:
    """`"a b"` to `("a", "b")`, without those that touch a token which is not a piece (a control token)."""
    pairs = []
    for merge in merges:
        # A piece may begin with a space in odd vocabularies, never be empty: look for the space after the first place.
        at = merge.find(" ", 1)
        left, right = merge[:at], merge[at + 1 :]
        if left in pieces and right in pieces and left + right in pieces:
            pairs.append((left, right))
    return pairs


def _sentencepiece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """SentencePiece BPE: spaces become `▁`, merges by score, what is no piece falls back to its UTF-8 bytes."""
    from tokenizers import Tokenizer, normalizers
    from tokenizers.models import BPE

    kinds, tokens = vocabulary.kinds, vocabulary.tokens
    mergeable = [i for i, kind in enumerate(kinds) if kind == NORMAL]
    pieces = {tokens[i]: i for i, kind in enumerate(kinds) if kind in (NORMAL, BYTE)}
    has_bytes = BYTE in kinds
    unknown = tokens[vocabulary.unk_id] if vocabulary.unk_id is not None else None
    if unknown is not None and kinds[vocabulary.index[unknown]] in (UNKNOWN, CONTROL):
        pieces[unknown] = vocabulary.index[unknown]
    assert vocabulary.scores is not None
    if vocabulary.merges:
        merges = _merge_pairs(vocabulary.merges, pieces)
    else:
        merges = merges_from_scores(tokens, vocabulary.scores, mergeable)
    engine = Tokenizer(
        BPE(vocab=pieces, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)
    )
    engine.normalizer = normalizers.Replace(" ", SPACE_MARK)
    return engine
