"""Engines of the `tokenizers` library by the rules of tokenizer.json: BPE, Unigram, WordPiece.

Only normalizer, pre-tokenizer and model run here. Special tokens are taken out of the text before and are no pieces
of the model, whatever the file says: text cannot become one. Truncation and padding that a file asks for are not done.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pellucid.errors import InvalidParameterError, ModelFileError, UnsupportedModelError, shown
from pellucid.tokenizer.guard import applied, guarded
from pellucid.tokenizer.pre_tokenizers import linear
from pellucid.tokenizer.vocabulary import (
    BYTE,
    BYTE_OF_CHARACTER,
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Rules,
    Vocabulary,
    check_bytes,
    no_token_for,
)
from pellucid.tokenizer.wordpiece import LIBRARY_LIMIT, WordPieces

MODEL_TYPES = ("BPE", "Unigram", "WordPiece")
_UNKNOWN_PIECE = "\ue000unknown\ue000"
"""Stands for the unknown token inside an engine, where its own text would be found in a text."""
_OUT_OF_REACH = -1e6
"""A score below that of any sum of pieces; not so low that others would lose digits beside it."""
_BPE_OPTIONS = ("continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges")


class LibraryEngine:
    """Plain text to ids. Raises ModelFileError for rules that the library does not take."""

    def __init__(self, vocabulary: Vocabulary, rules: Rules) -> None:
        self._unk_id = vocabulary.unk_id
        self._long_words = _long_words(vocabulary, rules)
        model = _model(vocabulary, rules)
        normalizer = None if rules.normalizer is None else _component("normalizer", rules.normalizer, rules.place)
        self._first = _engine(model, normalizer, rules.pre_tokenizer, rules.place, vocabulary)
        inner = _rewritten(rules.pre_tokenizer, _without_first_prefix)
        is_same = inner == rules.pre_tokenizer
        self._inner = self._first if is_same else _engine(model, normalizer, inner, rules.place, vocabulary)
        self._lost: frozenset[int] = frozenset()
        self._alphabet: frozenset[str] | None = None
        self._needs_unknown = rules.model["type"] == "Unigram" and vocabulary.unk_id is None
        if vocabulary.unk_id is None and rules.model["type"] == "BPE":
            singles = {token for token in vocabulary.pieces_without(CONTROL, UNKNOWN, UNUSED) if len(token) == 1}
            if vocabulary.spelling == "bytes":
                self._lost = frozenset(byte for code, byte in BYTE_OF_CHARACTER.items() if chr(code) not in singles)
            elif len(vocabulary.ids_of_kinds(BYTE)) < 256:
                self._alphabet = frozenset(singles)

    def encode(self, text: str, at_start: bool) -> list[int]:
        """The ids of `text`; at_start: whether it stands at the very beginning."""
        check_bytes(text, self._lost)
        engine = self._first if at_start else self._inner
        if self._alphabet is not None:
            self._check_characters(engine, text)
        if self._long_words is not None:
            words = applied(lambda: _words(engine, text))
            return [i for word in words for i in self._long_words.ids_of(word)]
        try:
            return applied(lambda: list(engine.encode(text, add_special_tokens=False).ids))
        except InvalidParameterError:
            if self._needs_unknown:
                raise no_token_for(text[0]) from None
            raise

    def _check_characters(self, engine: Any, text: str) -> None:
        """The library drops characters that have no piece, where there is no unknown token."""
        assert self._alphabet is not None
        normalizer = engine.normalizer
        normal = text if normalizer is None else applied(lambda: normalizer.normalize_str(text))
        missing = set(normal) - self._alphabet - {" "}
        if missing:
            raise no_token_for(min(missing))


def normalizer_of(rules: Rules) -> Callable[[str], str]:
    """The rules' normalizer alone."""
    normalize: Callable[[str], str] = _component("normalizer", rules.normalizer, rules.place).normalize_str
    return lambda text: applied(lambda: normalize(text))


def _component(name: str, value: Any, place: str) -> Any:
    """A normalizer or pre_tokenizer of the library; None for None."""
    from tokenizers import Tokenizer

    frame = {"version": "1.0", name: value, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    return guarded(lambda: getattr(Tokenizer.from_str(json.dumps(frame)), name), place + name)


def _words(engine: Any, text: str) -> list[str]:
    normal = text if engine.normalizer is None else engine.normalizer.normalize_str(text)
    return [normal] if engine.pre_tokenizer is None else [w for w, _ in engine.pre_tokenizer.pre_tokenize_str(normal)]


def _long_words(vocabulary: Vocabulary, rules: Rules) -> WordPieces | None:
    """WordPiece where words longer than usual are no unknown ones."""
    limit = rules.model.get("max_input_chars_per_word") or 0
    if rules.model["type"] != "WordPiece" or vocabulary.unk_id is None or limit <= LIBRARY_LIMIT:
        return None
    if vocabulary.normalized:
        raise UnsupportedModelError(
            f"tokenizer.json: model.max_input_chars_per_word is {shown(limit)}, but at most {LIBRARY_LIMIT} is "
            "supported together with added_tokens that are normalized"
        )
    pieces = vocabulary.pieces_without(CONTROL, UNKNOWN, UNUSED, USER_DEFINED)
    return WordPieces(pieces, vocabulary.unk_id, vocabulary.continuation, limit)


def _engine(model: Any, normalizer: Any, pre_tokenizer: Any, place: str, vocabulary: Vocabulary) -> Any:
    from tokenizers import AddedToken, Tokenizer

    engine = Tokenizer(model)
    if normalizer is not None:
        engine.normalizer = normalizer
    if pre_tokenizer is not None:
        engine.pre_tokenizer = _component("pre_tokenizer", _rewritten(pre_tokenizer, _with_linear_pattern), place)
    added = [
        AddedToken(
            vocabulary.tokens[token_id],
            lstrip=matching.strips_before,
            rstrip=matching.strips_after,
            single_word=matching.single_word,
            normalized=True,
        )
        for token_id, matching in vocabulary.normalized.items()
    ]
    if added:
        engine.add_tokens(added)
    return engine


def _model(vocabulary: Vocabulary, rules: Rules) -> Any:
    kind = rules.model["type"]
    if kind not in MODEL_TYPES:
        raise UnsupportedModelError(
            f"tokenizer.json: model.type is {shown(kind)}, which is not supported; supported are: "
            + ", ".join(MODEL_TYPES)
        )
    from tokenizers import models

    if kind == "Unigram":
        return guarded(lambda: _unigram(vocabulary, rules), rules.place + "model")
    outside = (CONTROL, UNKNOWN, UNUSED)
    pieces = vocabulary.pieces_without(*outside)
    for token_id in vocabulary.ids_of_kinds(USER_DEFINED):
        if token_id not in vocabulary.normalized:
            pieces.pop(vocabulary.tokens[token_id], None)
    unknown: dict[str, Any] = {}
    if vocabulary.unk_id is not None:
        pieces[_UNKNOWN_PIECE] = vocabulary.unk_id
        unknown = {"unk_token": _UNKNOWN_PIECE}
    options = rules.model
    if kind == "WordPiece":
        if not unknown:
            raise ModelFileError(f"{rules.place}model: a WordPiece vocabulary needs an unknown token, and has none")
        return guarded(
            lambda: models.WordPiece(
                pieces,
                max_input_chars_per_word=min(options.get("max_input_chars_per_word") or LIBRARY_LIMIT, LIBRARY_LIMIT),
                continuing_subword_prefix=vocabulary.continuation,
                **unknown,
            ),
            rules.place + "model",
        )
    if options.get("dropout"):
        raise UnsupportedModelError("tokenizer.json: model.dropout is set: such a tokenizer has no one answer")
    kept = {name: options[name] for name in _BPE_OPTIONS if options.get(name) is not None}
    merges = _merge_pairs(vocabulary, pieces, options.get("continuing_subword_prefix") or "")
    return guarded(lambda: models.BPE(vocab=pieces, merges=merges, **kept, **unknown), rules.place + "model")


def _merge_pairs(vocabulary: Vocabulary, pieces: dict[str, int], prefix: str) -> list[tuple[str, str]]:
    """The merges, without those that touch a token which is no piece of the engine (a control token).

    prefix: what pieces begin with that go on with a word; the library cuts off as many bytes without a look at them.
    """
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges or ())]
    kept = [
        (left, right)
        for left, right in pairs
        if left in pieces and right in pieces and right.startswith(prefix) and left + right[len(prefix) :] in pieces
    ]
    if len(kept) < len(pairs):
        for left, right in pairs:
            lost = next((text for text in (left, right) if text not in vocabulary.index), None)
            if lost is None and left + right.removeprefix(prefix) not in vocabulary.index:
                lost = left + right.removeprefix(prefix)
            if lost is not None or not right.startswith(prefix):
                reason = f"{shown(right)} does not begin so" if lost is None else f"{shown(lost)} is no piece"
                raise ModelFileError(
                    f"tokenizer.json: model.merges joins {shown(left)} and {shown(right)}, but {reason}"
                )
    return kept


def _unigram(vocabulary: Vocabulary, rules: Rules) -> Any:
    """The model's list of pieces is ordered by id: what is no piece is written as a second copy of the last one, and
    the library takes the id of the last copy."""
    from tokenizers import models

    assert vocabulary.scores is not None
    scores = vocabulary.scores.tolist()
    outside = set(vocabulary.ids_of_kinds(CONTROL, UNKNOWN, UNUSED, USER_DEFINED)) - set(vocabulary.normalized)
    last = max((i for i in range(len(scores)) if i not in outside), default=None)
    if last is None:
        raise ModelFileError("the vocabulary has no pieces of text")
    size = max(last, vocabulary.unk_id or 0) + 1
    tail = (vocabulary.tokens[last], scores[last])
    pieces = [
        tail if i in outside else (token, score)
        for i, (token, score) in enumerate(zip(vocabulary.tokens[:size], scores[:size], strict=True))
    ]
    if vocabulary.unk_id is not None and vocabulary.unk_id > last:
        raise UnsupportedModelError("a Unigram vocabulary whose unknown token comes last is not supported")
    fallback = len(vocabulary.ids_of_kinds(BYTE)) == 256
    if rules.model.get("hides_bytes"):
        # The fallback finds bytes by their texts, but a written `<0x0A>` is text to SentencePiece: out of reach.
        for i in vocabulary.ids_of_kinds(BYTE):
            pieces[i] = (vocabulary.tokens[i], _OUT_OF_REACH)
    return models.Unigram(pieces, unk_id=vocabulary.unk_id, byte_fallback=fallback)


def _rewritten(rules: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The same with a change to every object in it."""
    if isinstance(rules, dict):
        return {key: _rewritten(value, change) for key, value in change(rules).items()}
    return [_rewritten(value, change) for value in rules] if isinstance(rules, list) else rules


def _with_linear_pattern(rule: dict[str, Any]) -> dict[str, Any]:
    pattern = rule.get("Regex")
    return rule | {"Regex": linear(pattern)} if isinstance(pattern, str) else rule


def _without_first_prefix(rule: dict[str, Any]) -> dict[str, Any]:
    """For a text that goes on after a special token: what is prepended only to the first part is not."""
    is_first = rule.get("type") == "Metaspace" and rule.get("prepend_scheme") == "first"
    return rule | {"prepend_scheme": "never"} if is_first else rule
