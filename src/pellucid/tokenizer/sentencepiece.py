"""SentencePiece BPE from scores: among all neighbours whose join is a piece, the best score is joined first.

This is the algorithm of SentencePiece's own BPE model (Kudo and Richardson 2018, section 3.1), with a heap, on the
scores of the file. The `tokenizers` library would need the vocabulary as pairs in order of rank, and Gemma's 262,144
pieces become half a million of them: see docs/decisions/014.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set

from pellucid.tokenizer.vocabulary import SPACE_MARK, no_token_for

_MAX_CACHED_WORDS = 50_000
_MAX_CACHED_LENGTH = 32


def _before_marks(pieces: Iterable[str]) -> frozenset[str]:
    """The characters other than `▁` before a `▁` within a piece."""
    between = "\ud800"  # is in no text
    parts = between.join(pieces).replace(between + SPACE_MARK, between).split(SPACE_MARK)
    return frozenset(part[-1:] for part in parts[:-1]) - {"", between}


class ScoreMerger:
    """Encodes plain text by scores. `▁` stands for the space in pieces and in text.

    pieces: text → id of what may come out, but for the ids in `others` (a second table of Gemma's would be 10 MB).
    scores: by id, higher is joined sooner, ties from the left.
    byte_ids: id of each byte's token, empty where the vocabulary has none. unk_id: for what is neither piece nor bytes.
    """

    def __init__(
        self,
        pieces: Mapping[str, int],
        scores: Sequence[float],
        byte_ids: Mapping[int, int],
        unk_id: int | None,
        others: Set[int] = frozenset(),
    ) -> None:
        self._pieces = pieces
        self._others = others
        self._scores = scores
        self._byte_ids = byte_ids
        self._unk_id = unk_id
        self._joins_space = _before_marks(pieces)
        """Characters after which some piece goes on with `▁`: only there can a join cross the start of a word."""
        self._words: dict[str, list[int]] = {}

    def encode_ids(self, text: str) -> list[int]:
        """The ids of `text`, in time proportional to n · log n of its longest word."""
        ids: list[int] = []
        for word in self._split(text.replace(" ", SPACE_MARK)):
            known = self._words.get(word)
            if known is None:
                known = self._spell(self._join(word))
                if len(word) <= _MAX_CACHED_LENGTH and len(self._words) < _MAX_CACHED_WORDS:
                    self._words[word] = known
            ids += known
        return self._fuse_unknown(ids)

    def _split(self, text: str) -> list[str]:
        """Cut before each run of `▁` where no piece crosses the cut, so that words can be encoded one by one."""
        words, start, at = [], 0, text.find(SPACE_MARK, 1)
        while at > 0:
            if text[at - 1] != SPACE_MARK and text[at - 1] not in self._joins_space:
                words.append(text[start:at])
                start = at
            at = text.find(SPACE_MARK, at + 1)
        words.append(text[start:])
        return words

    def _join(self, word: str) -> list[str]:
        """The pieces of `word` once nothing can be joined any more."""
        symbols: list[str | None] = list(word)
        count, pieces, scores, others = len(word), self._pieces, self._scores, self._others
        following, preceding = list(range(1, count + 1)), list(range(-1, count - 1))
        heap: list[tuple[float, int, str]] = []

        def offer(left: int, joined: str) -> None:
            token_id = pieces.get(joined)
            if token_id is not None and token_id not in others:
                heapq.heappush(heap, (-scores[token_id], left, joined))

        for i in range(count - 1):
            offer(i, word[i : i + 2])
        while heap:
            _, left, joined = heapq.heappop(heap)
            first, right = symbols[left], following[left]
            # An entry is stale once either side has been joined to something else.
            if first is None or right >= count or len(first) + len(symbols[right] or "") != len(joined):
                continue
            symbols[left], symbols[right] = joined, None
            after = following[left] = following[right]
            if after < count:
                preceding[after] = left
                offer(left, joined + (symbols[after] or ""))
            before = preceding[left]
            if before >= 0:
                offer(before, (symbols[before] or "") + joined)
        return [symbol for symbol in symbols if symbol is not None]

    def _spell(self, symbols: list[str]) -> list[int]:
        """Ids of the pieces; bytes, or else the unknown token, for what is no piece."""
        ids: list[int] = []
        for symbol in symbols:
            token_id = self._pieces.get(symbol)
            if token_id is not None and token_id not in self._others:
                ids.append(token_id)
                continue
            data = symbol.encode()
            if all(byte in self._byte_ids for byte in data):
                ids += [self._byte_ids[byte] for byte in data]
            elif self._unk_id is not None:
                ids.append(self._unk_id)
            else:
                raise no_token_for(symbol[0])
        return ids

    def _fuse_unknown(self, ids: list[int]) -> list[int]:
        """One unknown token for a run of them, as SentencePiece gives."""
        if self._unk_id is None or self._unk_id not in ids:
            return ids
        return [i for n, i in enumerate(ids) if i != self._unk_id or n == 0 or ids[n - 1] != i]
