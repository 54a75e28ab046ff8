"""The engine argument `rope_scaling`: its types, the keys of each, and the check of what is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pellucid.errors import InvalidParameterError, shown

_SCALED = frozenset(("original_max_position_embeddings", "factor"))
ROPE_SCALINGS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset(("factor",)),
    "ntk": frozenset(("factor",)),
    "dynamic": frozenset(("factor",)),
    "llama3": _SCALED | {"low_freq_factor", "high_freq_factor"},
    "yarn": _SCALED | {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "longrope": _SCALED | {"attention_factor", "short_factor", "long_factor"},
}
"""Values of rope_type in `rope_scaling`, and the keys that go with each: transformers', and ntk of ours."""
_MAX_ROPE_SCALING = 65_536
"""Characters of a rope_scaling: long enough for two lists of factors."""


def checked_rope_scaling(value: Any) -> str:
    """A `rope_scaling` as JSON text, its keys in order. Raises `InvalidParameterError` for what is none."""
    given = value
    if isinstance(value, str):
        try:
            value = json.loads(value) if len(value) <= _MAX_ROPE_SCALING else None
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, Mapping):
        raise _no_rope_scaling(given)
    kind = value.get("rope_type", value.get("type"))
    if not isinstance(kind, str) or kind not in ROPE_SCALINGS:
        raise InvalidParameterError(
            "rope_scaling",
            f"rope_scaling has the rope_type {shown(kind)}, but it must be one of {', '.join(ROPE_SCALINGS)}",
        )
    known = ROPE_SCALINGS[kind]
    unknown = next((key for key in value if key not in known | {"rope_type", "type"}), None)
    if unknown is not None:
        names = ", ".join(sorted(known)) or "none"
        raise InvalidParameterError(
            "rope_scaling", f"rope_scaling has {shown(unknown)}, but the keys of {kind} beside rope_type are: {names}"
        )
    factor = value.get("factor")
    if factor is not None and (
        isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor <= 1e6
    ):
        raise InvalidParameterError(
            "rope_scaling", f"rope_scaling has the factor {shown(factor)}, but it must be a number from 1 to 1e6"
        )
    try:
        return json.dumps(dict(value), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError):
        raise _no_rope_scaling(given) from None


def _no_rope_scaling(given: Any) -> InvalidParameterError:
    return InvalidParameterError(
        "rope_scaling",
        f"rope_scaling is {shown(given)}, but must be a JSON object with rope_type and the values of that type",
    )
