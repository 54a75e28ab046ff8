"""What an embedding is asked for, and what it gives back: plain data with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pellucid.errors import InvalidParameterError, shown

Pooling = Literal["last", "mean", "cls"]
POOLINGS: tuple[Pooling, ...] = ("last", "mean", "cls")


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """Parameters of `LLM.embed`. Raises `InvalidParameterError` for a value out of range."""

    pooling: Pooling | None = None
    """last: the last token's vector; mean: of all tokens; cls: the first one's. None: what the model was made for."""
    normalize: bool | None = None
    """Divide by the Euclidean length, so that a dot product is the cosine. None: as the model was made, else True."""
    dimensions: int | None = None
    """Keep the first so many numbers, before they are normalised (Kusupati et al. 2022, Matryoshka); None: all. Refused
    for a model that does not say it was trained for that (is_matryoshka, matryoshka_dimensions in config.json)."""

    def __post_init__(self) -> None:
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise InvalidParameterError(
                "pooling", f"pooling is {shown(self.pooling)}, but must be one of {', '.join(POOLINGS)}"
            )
        if self.normalize is not None and not isinstance(self.normalize, bool):
            raise InvalidParameterError("normalize", f"normalize is {shown(self.normalize)}, but must be True or False")
        value: Any = self.dimensions
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidParameterError(
                "dimensions", f"dimensions is {shown(value)}, but must be a whole number of at least 1"
            )


def checked_pooling_params(params: PoolingParams | None) -> PoolingParams:
    """The params, or their defaults. Raises `InvalidParameterError` for what is something else."""
    if params is None:
        return PoolingParams()
    if not isinstance(params, PoolingParams):
        raise InvalidParameterError(
            "pooling_params", f"pooling_params is a {type(params).__name__}, but must be PoolingParams"
        )
    return params


@dataclass(slots=True)
class EmbeddingOutput:
    """The vector of one text."""

    prompt_token_ids: list[int]
    embedding: npt.NDArray[np.float32]
    """[dimensions]"""
