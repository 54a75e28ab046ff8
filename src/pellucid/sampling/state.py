"""What the stages of one answer may look at: its parameters, its ids so far, and how often each was used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.request import LogitsProcessor, TokenConstraint
from pellucid.sampling_params import SamplingParams

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.int64]


class TokenCounts:
    """The different ids of prompt and output with their number of occurrences in the output.

    Each new token costs O(1): the arrays grow by doubling, a dict knows every id's place.
    """

    __slots__ = ("_counts", "_ids", "_places", "num_counted", "size")

    def __init__(self, prompt_token_ids: list[int]) -> None:
        prompt = np.unique(np.asarray(prompt_token_ids, dtype=np.int64))
        self.size = len(prompt)
        self.num_counted = 0
        """How many output tokens are in the counts."""
        self._ids: IdArray = np.concatenate([prompt, np.zeros(64, dtype=np.int64)])
        self._counts: FloatArray = np.zeros(len(self._ids), dtype=np.float32)
        self._places = {int(token_id): place for place, token_id in enumerate(prompt)}

    @property
    def ids(self) -> IdArray:
        """The different ids [size] of prompt and output, in no particular order."""
        return self._ids[: self.size]

    @property
    def output_counts(self) -> FloatArray:
        """Occurrences in the output [size], 0 for ids that only the prompt has."""
        return self._counts[: self.size]

    def add(self, token_id: int) -> None:
        """Count one more output token."""
        place = self._places.get(token_id)
        if place is None:
            place = self.size
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token_id
            self._places[token_id] = place
            self.size += 1
        self._counts[place] += 1.0
        self.num_counted += 1


@dataclass(slots=True)
class SamplingState:
    """One answer of a request, as the sampler sees it.

    `output_token_ids` may be the request's own list: the sampler reads it and never changes it. It only grows
    between two calls; after anything else (a refused draft, say) call `forget_counts`.
    """

    params: SamplingParams
    seed: int
    sample_index: int = 0
    """Which of the request's n answers this is, from 0."""
    prompt_token_ids: list[int] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)
    end_token_ids: frozenset[int] = frozenset()
    """Ids that end the answer: impossible while the output has fewer than `min_tokens` tokens."""
    logits_processors: tuple[LogitsProcessor, ...] = ()
    constraint: TokenConstraint | None = None
    """Its mask is that of the token to draw."""
    moving_stages: tuple[Any, ...] | None = field(default=None, init=False, repr=False, compare=False)
    """The stages (`stages.Stage`) that change this answer's logits, once they have been looked up."""
    _counts: TokenCounts | None = field(default=None, init=False, repr=False, compare=False)
    _arrays: dict[str, IdArray] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def position(self) -> int:
        """Position of the token to draw, counted from the prompt's first id: the draw's counter."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def token_counts(self) -> TokenCounts:
        """The counts, brought up to date with `output_token_ids`; built when a penalty first asks for them."""
        output = self.output_token_ids
        if self._counts is None or self._counts.num_counted > len(output):
            self._counts = TokenCounts(self.prompt_token_ids)
        for place in range(self._counts.num_counted, len(output)):
            self._counts.add(output[place])
        return self._counts

    def forget_counts(self) -> None:
        """Count anew at the next use, because `output_token_ids` was changed other than at its end."""
        self._counts = None

    def id_array(self, name: str, ids: Iterable[int], vocab_size: int) -> IdArray:
        """The ids below vocab_size as an array, made once and kept under `name`."""
        array = self._arrays.get(name)
        if array is None:
            array = np.array(sorted({i for i in ids if i < vocab_size}), dtype=np.int64)
            self._arrays[name] = array
        return array
