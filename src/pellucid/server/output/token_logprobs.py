"""Which tokens a piece of an answer was made of, and their logprobs.

Tokens and text come out of step: text may be held back, left out or cut off by a stop string, several tokens may come
at once. So each token is known by the characters of the generated text that it has a part in, and each piece of an
answer by where it stands there.
"""

from __future__ import annotations

import codecs
from collections import deque
from typing import Any

from pellucid.outputs import CompletionOutput, TokenLogprobs
from pellucid.server.wire import finite

Json = dict[str, Any]


class TextOffsets:
    """Where each token stands in the text, in characters; a token inside a character begins where that does."""

    def __init__(self, tokenizer: Any, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def next(self, token_id: int) -> tuple[int, int]:
        """The next token's first character, and one past the last that it has a part in."""
        place = self._at
        if self._skips and self._tokenizer.is_special(token_id):
            return place, place
        self._at += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        has_begun_another = bool(self._decoder.getstate()[0])
        return place, self._at + has_begun_another


class PieceLogprobs:
    """The logprobs of one answer's tokens, handed out with the pieces of text that they made.

    Tokens that show nothing are in no piece: the one that ends an answer, control tokens, those of a stop string. One
    that is cut by its piece's end belongs to it, and to no other.
    """

    def __init__(self, tokenizer: Any, skip_special_tokens: bool, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._offsets = TextOffsets(tokenizer, skip_special_tokens)
        self._num_top = num_top
        self._waiting: deque[tuple[int, int, Json]] = deque()

    def take(self, completion: CompletionOutput) -> None:
        """Note the tokens of a delta, before its text is asked for."""
        for token_id, entries in zip(completion.token_ids, completion.logprobs or (), strict=True):
            begin, end = self._offsets.next(token_id)
            if begin < end:
                self._waiting.append((begin, end, self._entry_with_top(token_id, entries)))

    def of(self, at: int, text: str) -> list[Json]:
        """The tokens of the piece that stands at character `at`; those before it are never asked for again."""
        listed: list[Json] = []
        while self._waiting and self._waiting[0][0] < at + len(text):
            _, end, entry = self._waiting.popleft()
            if end > at:
                listed.append(entry)
        return listed

    def _entry_with_top(self, token_id: int, entries: TokenLogprobs) -> Json:
        ranked = sorted((one.rank, other) for other, one in entries.items() if one.rank <= self._num_top)
        top = [self._entry(other, entries) for _, other in ranked]
        return {**self._entry(token_id, entries), "top_logprobs": top}

    def _entry(self, token_id: int, entries: TokenLogprobs) -> Json:
        return {
            "token": entries[token_id].decoded_token,
            "logprob": finite(entries[token_id].logprob),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }
