"""A constraint by its definition: a byte may follow when the text with it begins one of the texts allowed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from mock_model import SPECIAL, ByteTokenizer

from pellucid.errors import InvalidParameterError
from pellucid.structured_outputs import StructuredOutputsParams

LONG = "abcdefgabcdefgabcdefgabcdefgabcdefgabcdefgabcdefgabcdefg"
SHAPES = (
    StructuredOutputsParams(choice=("abc", "abd", "fg", "fgab", "é", LONG)),
    StructuredOutputsParams(regex="[a-e]{3,30}"),
    StructuredOutputsParams(regex="[a-g]*"),
    StructuredOutputsParams(grammar='start: "a" start "b" | "ab"'),
)


class NaiveConstraint:
    """Knows the shapes above by heart."""

    must_end = False
    error: str | None = None

    def __init__(self, shape: StructuredOutputsParams) -> None:
        self.kind = shape.kind
        self._shape = SHAPES.index(shape)
        self._text = b""

    @property
    def is_complete(self) -> bool:
        return self._is_whole(self._text) and not self._next()

    def fill_mask(self) -> None:
        """Nothing is kept."""

    def advance(self, token_id: int) -> None:
        self._text += bytes([token_id])

    def look_ahead(self) -> NaiveConstraint:
        ahead = NaiveConstraint(SHAPES[self._shape])
        ahead._text = self._text
        return ahead

    def few_allowed(self) -> tuple[int, ...] | None:
        ids = self._next()
        return tuple(ids) if ids and not self._is_whole(self._text) else None

    def forced_bytes(self) -> bytes:
        """Bytes that alone may follow."""
        ahead = self.look_ahead()
        while not ahead._is_whole(ahead._text) and len(after := ahead._next()) == 1:
            ahead._text += bytes(after)
        return ahead._text[len(self._text) :]

    def apply(self, logits: npt.NDArray[np.float32]) -> None:
        ids = self._next() + (sorted(ByteTokenizer().eos_ids) if self._is_whole(self._text) else [])
        if not ids:
            raise InvalidParameterError("structured_outputs", "no token can follow")
        kept = logits[ids]
        logits.fill(-np.inf)
        logits[ids] = kept

    def _next(self) -> list[int]:
        return [byte for byte in range(256) if byte not in SPECIAL and self._begins(self._text + bytes([byte]))]

    def _begins(self, text: bytes) -> bool:
        if self._shape == 0:
            return any(choice.encode().startswith(text) for choice in SHAPES[0].choice or ())
        if self._shape == 1:
            return len(text) <= 30 and set(text) <= set(b"abcde")
        if self._shape == 2:
            return set(text) <= set(b"abcdefg")
        opened = len(text) - len(text.lstrip(b"a"))
        return opened > 0 and set(text[opened:]) <= set(b"b") and len(text) - opened <= opened

    def _is_whole(self, text: bytes) -> bool:
        if self._shape == 0:
            return text.decode("utf-8", "replace") in (SHAPES[0].choice or ())
        if self._shape == 1:
            return 3 <= len(text) <= 30
        return self._shape == 2 or (len(text) > 0 and text.count(b"a") * 2 == len(text))
