"""WordPiece for words of any length: the longest piece that fits, from left to right (Devlin et al. 2018).

The `tokenizers` library tries every length of what is left of a word at every place, which is no matter for words of
100 characters, its usual limit, and takes minutes for one of ten thousand. Here no length is tried that no piece has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pellucid.errors import ModelFileError

LIBRARY_LIMIT: Final = 100
"""Characters up to which the library's own way is taken."""
_MAX_PIECE: Final = 1000
"""Characters of a piece: with it a text takes time in proportion to its length, whatever the vocabulary is."""


class WordPieces:
    """Cuts words into pieces, of which all but a word's first begin with `continuation`.

    max_characters: a longer word is unknown. Raises `ModelFileError` for a piece of more than `_MAX_PIECE` characters.
    """

    def __init__(self, pieces: Mapping[str, int], unk_id: int, continuation: str, max_characters: int) -> None:
        self._pieces = pieces
        self._unknown = [unk_id]
        self._continuation = continuation
        self._max_characters = max_characters
        self._longest = max((len(piece) for piece in pieces), default=0)
        if self._longest > _MAX_PIECE:
            raise ModelFileError(
                f"a piece of the vocabulary has {self._longest} characters, but with words of more than "
                f"{LIBRARY_LIMIT} characters (max_input_chars_per_word) it may have {_MAX_PIECE} at most"
            )

    def ids_of(self, word: str) -> list[int]:
        """The pieces' ids; the unknown token alone where some part is no piece, or the word is too long."""
        if len(word) > self._max_characters:
            return self._unknown
        ids: list[int] = []
        at, mark = 0, ""
        while at < len(word):
            longest = self._longest - len(mark)
            for end in range(min(at + longest, len(word)), at, -1):
                token_id = self._pieces.get(mark + word[at:end])
                if token_id is not None:
                    break
            else:
                return self._unknown
            ids.append(token_id)
            at, mark = end, self._continuation
        return ids
