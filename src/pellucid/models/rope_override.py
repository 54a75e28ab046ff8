"""What `rope_scaling` and `rope_theta` of `EngineArgs` make of a model's positions.

The words are transformers': a `rope_scaling` of config.json, which stands in place of the file's own.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from pellucid.config import ModelConfig, RopeConfig, RopeScaling
from pellucid.errors import InvalidParameterError, ModelFileError, UnsupportedModelError
from pellucid.models.architectures.common import rope_scaling_of, score_factor
from pellucid.models.architectures.keys import JSONConfig
from pellucid.models.rotary import inverse_frequencies

_STRETCHED = ("linear", "ntk", "dynamic", "yarn", "llama3")
"""Kinds that carry a model `factor` times as far as it was trained for."""


def with_rope(config: ModelConfig, rope_scaling: str | None, rope_theta: float | None) -> ModelConfig:
    """The config with another scaling (JSON text, checked by `EngineArgs`) or base of its rotary positions.

    `context_length` becomes what the scaling reaches. Sliding layers with a base of their own keep it. Raises
    `InvalidParameterError` for a model without rotary positions, and for values that do not go with it.
    """
    if rope_scaling is None and rope_theta is None:
        return config
    name = "rope_theta" if rope_scaling is None else "rope_scaling"
    if config.positions != "rope":
        raise InvalidParameterError(
            name, f"{name} is set, but the model has no rotary positions (its positions are: {config.positions})"
        )
    rope, context_length, scale = config.rope, config.context_length, config.attention_scale
    if rope_scaling is not None:
        trained, values = _trained_length(config), json.loads(rope_scaling)
        scaling = _scaling(values, trained, rope.dim)
        if config.latent is not None:
            scale = config.latent.key_dim**-0.5 * _score_factor(values)
        rope, context_length = dataclasses.replace(rope, scaling=scaling), _reach(scaling, trained, context_length)
    if rope_theta is not None:
        rope = dataclasses.replace(rope, theta=float(rope_theta))
    changed = dataclasses.replace(config, rope=rope, context_length=context_length, attention_scale=scale)
    _check_frequencies(changed, name)
    return changed


def _trained_length(config: ModelConfig) -> int:
    """Positions the model was trained for before the file's own scaling."""
    scaling = config.rope.scaling
    if scaling is None:
        return config.context_length
    if scaling.kind == "linear":
        return max(2, round(config.context_length / scaling.factor))
    return scaling.original_context or config.context_length


def _score_factor(values: dict[str, Any]) -> float:
    try:
        return score_factor(JSONConfig(values, "rope_scaling"))
    except ModelFileError as error:
        raise InvalidParameterError("rope_scaling", str(error)) from None


def _scaling(values: dict[str, Any], trained: int, dim: int) -> RopeScaling | None:
    keys = JSONConfig(values, "rope_scaling")
    try:
        return rope_scaling_of(JSONConfig({"max_position_embeddings": trained}, "rope_scaling"), keys, dim)
    except (ModelFileError, UnsupportedModelError) as error:
        raise InvalidParameterError("rope_scaling", str(error)) from None


def _reach(scaling: RopeScaling | None, trained: int, context_length: int) -> int:
    if scaling is None:
        return trained
    if scaling.kind in _STRETCHED:
        return max(trained, int((scaling.original_context or trained) * scaling.factor))
    return max(trained, context_length, int(scaling.original_context * scaling.factor))


def _check_frequencies(config: ModelConfig, name: str) -> None:
    rope: RopeConfig = config.rope
    with np.errstate(all="ignore"):
        try:
            is_sound = bool(np.isfinite(inverse_frequencies(rope, config.context_length)).all())
        except (ArithmeticError, ValueError):
            is_sound = False
    if not is_sound:
        raise InvalidParameterError(name, f"{name} gives rotary frequencies that are not finite")
