"""The names of a trace: its schema, the kinds of event, the levels."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

SCHEMA = "pellucid-trace/1"

Event = dict[str, Any]
"""One event as JSON has it; its first field is `type`. `schema.json` has the fields."""

EVENT_TYPES = (
    "header",
    "request",
    "step",
    "layer",
    "sample",
    "emit",
    "kv",
    "spec",
    "mem",
    "finish",
    "pieces",
    "finding",
    "dropped",
    "end",
)

OFF, STEPS, SAMPLING, LAYERS = 0, 1, 2, 3
MAX_LEVEL = LAYERS
LEVEL_HELP = "0 nothing, 1 steps and KV blocks, 2 the sampling of every token, 3 every layer"
ATTENTION_KEYS = 16
"""Keys of a row whose attention weights are told; the others are one number."""
ATTENTION_PROMPT_ROWS = 32
"""Rows at a prompt's end for which attention is told; every generated one's is."""
LENS_TOKENS = 5
"""Most probable tokens that the logit lens tells for a layer."""
WATERFALL_TOKENS = 10
"""Most probable tokens that are told for each sampling stage."""


@cache
def load_schema() -> dict[str, Any]:
    """The JSON Schema of one event (draft 2020-12), which describes every field."""
    from importlib import resources  # milliseconds, for readers of files alone

    text = resources.files("pellucid.trace").joinpath("schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
