"""One answer's place in its grammar, and which tokens may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.errors import InvalidParameterError, one_line
from pellucid.structured_outputs import NAME

FloatArray = npt.NDArray[np.float32]
MaskArray = npt.NDArray[np.int32]
"""[ceil(vocab / 32)]: bit i % 32 of word i // 32 says whether token i may come next."""

DEAD_END = "no token can follow that the {kind} allows"
TOO_MANY = (
    "can be read in too many ways at once: give fewer properties that are not required, or fewer alternatives that "
    "begin alike"
)
ROW_IS_FULL = "items; max is"
"""llguidance's words: its parser has a row at each place, with an item for each way to read on."""
FEW = 32
"""Of so many tokens at most one can be guessed."""


class Constraint:
    """A matcher that has read exactly the tokens of one answer.

    `fill_mask` for the next token, `advance` by the token drawn; `rollback` takes tokens back (drafts that were
    refused). The masks are a function of the grammar and the tokens read alone, whatever other answers do: nothing of
    the matcher's state is shared.
    """

    __slots__ = (
        "_end_bits",
        "_forbidden",
        "_is_filled",
        "_matcher",
        "_token_bytes",
        "error",
        "kind",
        "mask",
        "must_end",
    )

    def __init__(
        self, matcher: Any, kind: str, token_bytes: Sequence[bytes], end_bits: MaskArray, forbidden: MaskArray | None
    ) -> None:
        self._matcher = matcher
        self._token_bytes = token_bytes
        self._end_bits = end_bits
        self._forbidden = forbidden
        self._is_filled = False
        """Whether the mask is that of the next token."""
        self.kind = kind
        """json, json_object, regex, choice or grammar."""
        self.mask: MaskArray = np.zeros_like(end_bits)
        """Of the next token, since the last `fill_mask`."""
        self.must_end = False
        """Whether the mask leaves end tokens only."""
        self.error: str | None = None
        """Why no answer can come of it: the grammar leaves no token, or ran past its limits."""

    @property
    def is_complete(self) -> bool:
        """Whether the structure is whole and nothing can follow it."""
        return self.error is None and bool(self._matcher.is_stopped())

    @property
    def may_end(self) -> bool:
        """Whether the answer would be whole if it ended here."""
        return self.error is None and bool(self._matcher.is_accepting())

    def fill_mask(self) -> None:
        """Set `mask` for the token after those read. Lets go of the GIL; sets `error` instead of raising."""
        if self._is_filled or self.error is not None:
            return
        self._is_filled = True
        self._matcher.unsafe_compute_mask_ptr(self.mask.ctypes.data, self.mask.nbytes)
        if self._matcher.is_error():
            self._fail()
            return
        if self._forbidden is not None:
            np.bitwise_and(self.mask, ~self._forbidden, out=self.mask)
        self.must_end = not np.bitwise_and(self.mask, ~self._end_bits).any()
        if self.must_end and not self.mask.any():
            self.error = f"{NAME}: {DEAD_END.format(kind=self.kind)}"

    def advance(self, token_id: int) -> None:
        """Read the token that was drawn. A token that the mask did not allow is an error of the constraint."""
        self._is_filled = False
        if self.error is None and not self._matcher.consume_token(token_id):
            self._fail()

    def rollback(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens read."""
        if self.error is None and num_tokens:
            self._is_filled = False
            if not self._matcher.rollback(num_tokens):
                self._fail()

    def look_ahead(self) -> Constraint:
        """A copy that may read on: what it needs does not count against the answer's limits, which would otherwise
        depend on speculation."""
        ahead = Constraint(self._matcher.deep_copy(), self.kind, self._token_bytes, self._end_bits, self._forbidden)
        ahead.error, ahead.must_end, ahead._is_filled = self.error, self.must_end, self._is_filled
        np.copyto(ahead.mask, self.mask)
        return ahead

    def few_allowed(self) -> tuple[int, ...] | None:
        """The tokens that may come next where they are FEW or less, and not end tokens alone. Fills the mask."""
        self.fill_mask()
        if self.error is not None or self.must_end:
            return None
        words = np.flatnonzero(self.mask)
        if not 0 < len(words) <= FEW:
            return None
        bits = np.unpackbits(self.mask[words].view(np.uint8), bitorder="little")
        places = np.flatnonzero(bits)
        if len(places) > FEW:
            return None
        ids = tuple((32 * words[places // 32] + places % 32).tolist())
        return ids if ids[-1] < len(self._token_bytes) else None

    def forced_bytes(self) -> bytes:
        """The text that must come next, whatever its tokens. For a copy: it reads ahead."""
        return b"" if self.error is not None else bytes(self._matcher.compute_ff_bytes())

    def apply(self, logits: FloatArray) -> None:
        """Make what the mask forbids impossible, in place; logits [vocab].

        Raises `InvalidParameterError` where the constraint has an error: an answer of another shape is never given.
        """
        if self.error is not None:
            raise InvalidParameterError(NAME, self.error)
        allowed = self._allowed()
        if 8 * np.count_nonzero(allowed) > len(allowed):
            np.copyto(logits, -np.inf, where=~allowed)
            return
        ids = np.flatnonzero(allowed)
        kept = logits[ids]
        logits.fill(-np.inf)
        logits[ids] = kept

    def _allowed(self) -> npt.NDArray[np.bool_]:
        bits = np.unpackbits(self.mask.view(np.uint8), count=len(self._token_bytes), bitorder="little")
        return bits.view(np.bool_)

    def _fail(self) -> None:
        reason = str(self._matcher.get_error()).split("\n<non-verbose/>")[0]
        if reason.startswith("NoExtension"):
            reason = DEAD_END.format(kind=self.kind)
        elif ROW_IS_FULL in reason:
            reason = f"the {self.kind} {TOO_MANY}"
        self.error = f"{NAME}: {one_line(reason)}"
