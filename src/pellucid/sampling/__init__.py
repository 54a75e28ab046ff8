"""Logits to the next id. In the order of the journey:

state.py        SamplingState: what the stages may look at (parameters, ids so far, token counts)
stages.py       STAGES: every stage in its order, and `run_stages` that runs those which are not neutral
candidates.py   Candidates: the tokens still in the race; min-p, top-k, top-p and the pick without a full sort
draw.py         uniform(seed, sample_index, position): Philox, a pure function
logprobs.py     logprobs and ranks of the raw logits
sampler.py      Sampler: one call per token that puts these together
recorder.py     StageRecorder: an observer that notes what every stage did
constraints/    answers of a given shape: which tokens may come next
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "SampledToken": "sampler",
    "Sampler": "sampler",
    "check_params_against_vocab": "sampler",
    "SamplingState": "state",
    "raw_logprobs": "logprobs",
    "uniform": "draw",
}

__all__ = [
    "SampledToken",
    "Sampler",
    "SamplingState",
    "check_params_against_vocab",
    "raw_logprobs",
    "uniform",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
