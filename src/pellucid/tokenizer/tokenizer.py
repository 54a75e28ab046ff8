"""Text to ids and ids to text, as the model's own tokenizer does it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pellucid.errors import InvalidParameterError
from pellucid.tokenizer.backends import build_backend
from pellucid.tokenizer.shielding import ControlStrings
from pellucid.tokenizer.special_tokens import SpecialTokenScanner
from pellucid.tokenizer.vocabulary import (
    BYTE,
    BYTE_OF_CHARACTER,
    CONTROL,
    SPACE_MARK,
    UNKNOWN,
    USER_DEFINED,
    Matching,
    Vocabulary,
    read_vocabulary,
)

_PLAIN_MATCHING = Matching()


class Piece(NamedTuple):
    """One token of a text: its id, its bytes and whether it is a special token."""

    token_id: int
    token_bytes: bytes
    special: bool


class Tokenizer:
    """A model's tokenizer. Immutable; may be used from several threads.

    vocab_size: number of tokens; ids run from 0 to vocab_size - 1.
    eos_ids: every id that ends generation, from all sources in the file.
    add_bos, add_eos: whether encode adds them by default.
    special_tokens: text to id of the control tokens.
    chat_template: Jinja source, or None where the model has none.
    vocabulary: what the file says; read it only.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._tokens, self._kinds = vocabulary.tokens, vocabulary.kinds
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id, self.eos_id = vocabulary.bos_id, vocabulary.eos_id
        self.unk_id, self.pad_id = vocabulary.unk_id, vocabulary.pad_id
        self.eos_ids = vocabulary.eos_ids
        self._prefix, self._suffix = list(vocabulary.prefix_ids), list(vocabulary.suffix_ids)
        self.add_bos = vocabulary.bos_id is not None and vocabulary.bos_id in vocabulary.prefix_ids
        self.add_eos = vocabulary.eos_id is not None and vocabulary.eos_id in vocabulary.suffix_ids
        self.add_space_prefix = vocabulary.add_space_prefix
        self.chat_templates = vocabulary.chat_templates
        self.chat_template = vocabulary.chat_templates.get("default")
        self.special_tokens = self._of_kinds(CONTROL, UNKNOWN)
        self._sentencepiece = vocabulary.model == "llama"
        user_defined = {t: i for t, i in self._of_kinds(USER_DEFINED).items() if i not in vocabulary.normalized}
        if self._sentencepiece:
            user_defined = {text.replace(SPACE_MARK, " "): i for text, i in user_defined.items()}
        # SentencePiece takes a written `▁` for a space, also where runs of spaces are tokens of their own (Gemma).
        self._marks_are_spaces = (
            self._sentencepiece
            and vocabulary.rules is None
            and not any(SPACE_MARK in text for text in self.special_tokens)
        )
        self._user_defined_scanner = SpecialTokenScanner(user_defined)
        self._scanner = SpecialTokenScanner(user_defined | self.special_tokens)
        self._encode_text = build_backend(vocabulary)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build from the metadata of a GGUF file.

        Raises UnsupportedModelError for a kind of tokenizer we do not know and ModelFileError for metadata that is
        incomplete or contradicts itself.
        """
        return cls(read_vocabulary(metadata))

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Build from a folder as Hugging Face has them: tokenizer.json, or else tokenizer.model, vocab.json with
        merges.txt, or vocab.txt; and the settings beside them.

        Raises UnsupportedModelError for a kind of tokenizer we do not know and ModelFileError for files that are
        missing, damaged or contradict each other; both name the file.
        """
        from pellucid.tokenizer.folder import read_folder_vocabulary

        return cls(read_folder_vocabulary(Path(folder)))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the pieces, their kinds, merges or scores and rules: equal ones give equal ids."""
        from pellucid.tokenizer.fingerprint import fingerprint

        return fingerprint(self.vocabulary)

    @cached_property
    def control_strings(self) -> ControlStrings:
        """The texts of the special tokens, as chat templates need them."""
        return ControlStrings(self.special_tokens)

    def _of_kinds(self, *kinds: int) -> dict[str, int]:
        return {self._tokens[i]: i for i in self.vocabulary.ids_of_kinds(*kinds)}

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of `text`.

        add_special_tokens: put BOS before and EOS after where the model wants them, never twice.
        parse_special: control strings in the text become their tokens; otherwise they are text like any other.
        User-defined tokens (added, but not special) are matched either way.
        """
        return self.encode_with_protected(text, (), add_special_tokens=add_special_tokens, parse_special=parse_special)

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `encode(text)` has at least, told without encoding: its bytes by the longest token's.

        0 where nothing can be told: a run of unknown characters may be one token.
        """
        vocabulary = self.vocabulary
        if vocabulary.rules is not None or (self._sentencepiece and len(vocabulary.ids_of_kinds(BYTE)) < 256):
            return 0
        if vocabulary.pre_tokenizer.nfc:
            text = unicodedata.normalize("NFC", text)
        if vocabulary.matching:
            text = "".join(text.split())
        # a sentence of spaces is as long written with `▁`, which is one character of three bytes
        num_bytes = len(text.replace(SPACE_MARK, " ").encode("utf-8", "surrogatepass"))
        return -(-num_bytes // self._longest_token_bytes)

    @cached_property
    def _longest_token_bytes(self) -> int:
        # as the vocabulary spells it, a token has no fewer bytes than it stands for
        spelled = [len(token.encode("utf-8", "surrogateescape")) for token in self._tokens]
        longest = 1
        for token_id in sorted(range(self.vocab_size), key=spelled.__getitem__, reverse=True):
            if spelled[token_id] <= longest:
                break
            longest = max(longest, len(self.token_bytes(token_id)))
        return longest

    def encode_with_protected(
        self,
        text: str,
        protected: Sequence[tuple[int, int]],
        *,
        add_special_tokens: bool = True,
        parse_special: bool = True,
    ) -> list[int]:
        """As `encode`; no control token is taken from a place that touches one of the `protected` spans.

        protected: (begin, end) pairs of character positions, ascending, without overlaps. An empty span (n, n) says
        that no control token may lie across position n.
        """
        _check_text(text)
        if self._marks_are_spaces:
            text = text.replace(SPACE_MARK, " ")
        ids: list[int] = []
        at = 0
        for begin, end, token_id in self._special_matches(text, protected, parse_special):
            if begin < at:  # white space that the token before has swallowed
                continue
            matching = self.vocabulary.matching.get(token_id, _PLAIN_MATCHING)
            if matching.single_word and _touches_word(text, begin, end):
                continue
            before = text[at:begin].rstrip() if matching.strips_before else text[at:begin]
            self._encode_plain(before, at == 0, ids)
            ids.append(token_id)
            at = end
            while matching.strips_after and at < len(text) and text[at].isspace():
                at += 1
        self._encode_plain(text[at:], at == 0, ids)
        if add_special_tokens:
            if ids[: len(self._prefix)] != self._prefix:
                ids[:0] = self._prefix
            if ids[len(ids) - len(self._suffix) :] != self._suffix:
                ids += self._suffix
        return ids

    def _encode_plain(self, text: str, at_start: bool, ids: list[int]) -> None:
        if text:
            ids.extend(self._encode_text(text, at_start))

    def _special_matches(
        self, text: str, protected: Sequence[tuple[int, int]], parse_special: bool
    ) -> Iterator[tuple[int, int, int]]:
        if not parse_special:
            yield from self._user_defined_scanner.matches(text)
            return
        at, next_span = 0, 0
        while (match := self._scanner.match_at_or_after(text, at)) is not None:
            begin, end, token_id = match
            while next_span < len(protected) and protected[next_span][1] <= begin:
                next_span += 1
            touched = next_span < len(protected) and protected[next_span][0] < end
            if touched and self._kinds[token_id] != USER_DEFINED:
                plain = self._user_defined_scanner.match_at(text, begin)
                if plain is None:
                    at = begin + 1
                    continue
                begin, end, token_id = plain
            yield begin, end, token_id
            at = end

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True, strip_prefix_space: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD.

        strip_prefix_space: SentencePiece models with add_space_prefix put a space before every text; it is dropped
        again, as Hugging Face does, unless this is False (the ids go on from a prompt, so the space is text).
        """
        shown = (i for i in ids if not (skip_special_tokens and self.is_special(i)))
        data = b"".join(map(self.token_bytes, shown))
        if strip_prefix_space and self.add_space_prefix and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; joined over the ids of a text they are the text's UTF-8 bytes."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._spell(self._checked(token_id))
        return data

    def _spell(self, token_id: int) -> bytes:
        token, kind, spelling = self._tokens[token_id], self._kinds[token_id], self.vocabulary.spelling
        if kind in (CONTROL, UNKNOWN) or (kind == USER_DEFINED and spelling != "marks"):
            return token.encode("utf-8", "surrogateescape")
        if kind == BYTE:
            return bytes([int(token[3:5], 16)])
        if spelling == "marks":
            return token.replace(SPACE_MARK, " ").encode("utf-8", "surrogateescape")
        mark = self.vocabulary.continuation
        if spelling == "words":
            text = token.removeprefix(mark) if token.startswith(mark) else " " + token
            return text.encode("utf-8", "surrogateescape")
        if spelling == "suffix":
            text = token.removesuffix(mark) + " " if token.endswith(mark) else token
            return text.encode("utf-8", "surrogateescape")
        if spelling == "plain":
            return token.encode("utf-8", "surrogateescape")
        try:
            return bytes(BYTE_OF_CHARACTER[ord(character)] for character in token)
        except KeyError:
            # Not in the byte alphabet: an added token that the file calls normal is shown as it is spelled.
            return token.encode("utf-8", "surrogateescape")

    def token_text(self, token_id: int) -> str:
        """The bytes of one token as text, U+FFFD for a part of a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether the token is control or unknown: not shown to readers, never produced from plain text."""
        return self._kinds[self._checked(token_id)] in (CONTROL, UNKNOWN)

    def pieces(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[Piece]:
        """The tokens of `text`, spelled out."""
        ids = self.encode(text, add_special_tokens=add_special_tokens, parse_special=parse_special)
        return [Piece(i, self.token_bytes(i), self.is_special(i)) for i in ids]

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidParameterError(
                "token_ids", f"token id {token_id} is outside the vocabulary, which has ids 0 to {self.vocab_size - 1}"
            )
        return token_id


def _touches_word(text: str, begin: int, end: int) -> bool:
    beside = text[max(begin - 1, 0) : begin] + text[end : end + 1]
    return any(character == "_" or character.isalnum() for character in beside)


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidParameterError(
            "prompt", f"the text has half a surrogate pair at character {error.start}, which is no Unicode text"
        ) from None
