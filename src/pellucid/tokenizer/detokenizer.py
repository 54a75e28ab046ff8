"""Ids to text one at a time, for streams."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pellucid.tokenizer.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns ids into text as they come; the deltas joined are exactly `tokenizer.decode(all ids)`.

    It works on bytes: a token may end in the middle of a character, so an incomplete UTF-8 sequence is held back
    until the bytes that complete it, or show it to be invalid, arrive. U+FFFD therefore stands only for bytes that
    are invalid. Each push costs the length of its own token.

    strip_prefix_space: drop the one space that a SentencePiece model with add_space_prefix puts before a text; set
    it to False where the ids go on from a prompt (see `Tokenizer.decode`).
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, strip_prefix_space: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._at_start = strip_prefix_space and tokenizer.add_space_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def num_held_bytes(self) -> int:
        """Bytes taken in that no delta has shown yet: the beginning of a character, 0 to 3."""
        return len(self._decoder.getstate()[0])

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes, possibly empty."""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        piece = self._tokenizer.token_bytes(token_id)
        if self._at_start and piece:
            self._at_start = False
            piece = piece[1:] if piece.startswith(b" ") else piece
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """The rest at the end of a stream: U+FFFD for an unfinished character, else empty."""
        return self._decoder.decode(b"", final=True)
