"""Numbers that are not finite, or that float16 cannot hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pellucid.glass.doctor.finding import Finding, NotApplicableError, Verdict, verdict
from pellucid.glass.doctor.model_exam import ModelExam
from pellucid.glass.doctor.trace_exam import TraceExam, count, over
from pellucid.glass.view import TraceView
from pellucid.trace.events import LAYERS, Event
from pellucid.trace.jsonl import number

FLOAT16_MAX = 65504.0
_NON_FINITE_WORDS = ("finite", "NaN", "infinit")
"""In the sentences with which such requests end."""
_FIX = (
    "Look at the first layer's tensors: a damaged or badly converted file has NaN, or scales that are too large. "
    "Fetch or convert the model again."
)


def in_trace(exam: TraceExam) -> Verdict:
    """Every layer's residual, and requests that ended because something was not finite."""
    largest = _largest(one for view in exam.views for one in _layers(view))
    return over(
        exam.views,
        _overflow,
        lambda n: f"every layer of {count(n, 'answer')}; the largest number is {largest:,.0f} (float16 ends at 65,504)",
    )


def _largest(layers: Iterable[Event]) -> float:
    """The largest number that is one."""
    return max((x for x in (number(event["absmax"]) for event in layers) if math.isfinite(x)), default=0.0)


def _layers(view: TraceView) -> Iterator[Event]:
    """In the order of the computation."""
    for position in sorted(view.layers):
        yield from view.layers_at(position)


def _overflow(view: TraceView) -> Iterator[Finding]:
    error = None if view.finish is None else view.finish["error"]
    failed = error is not None and any(words in error for words in _NON_FINITE_WORDS)
    if not view.layers and not failed:
        raise NotApplicableError(f"layers are told at level {LAYERS}; this trace has none")
    found = first_overflow(_layers(view), view.name)
    if found is None and failed:
        found = Finding(
            "error",
            f"The request failed: {error}.",
            f"Trace it at level {LAYERS} to learn in which layer it begins. {_FIX}",
            {"error": error},
            view.name,
        )
    if found is not None:
        yield found


def first_overflow(layers: Iterable[Event], request: str | None) -> Finding | None:
    """The first layer with numbers that are not finite; where there is none, the first that float16 cannot hold."""
    too_large: Event | None = None
    num_too_large = 0
    for event in layers:
        if event["nonfinite"]:
            where = {"layer": event["layer"], "position": event["i"], "nonfinite": event["nonfinite"]}
            return Finding(
                "error",
                f"Layer {event['layer']} is the first with numbers that are not finite: {event['nonfinite']} of the "
                f"residual at position {event['i']}. Everything after it is noise.",
                _FIX,
                where | {"absmax": event["absmax"]},
                request,
            )
        if number(event["absmax"]) > FLOAT16_MAX:
            too_large = too_large or event
            num_too_large += 1
    if too_large is None:
        return None
    return Finding(
        "info",
        f"Layer {too_large['layer']} is the first whose residual float16 cannot hold "
        f"({number(too_large['absmax']):,.0f}, the largest is 65,504). Pellucid computes in float32; an engine with "
        "float16 activations gives NaN or noise there.",
        "Run this model in float32 or bfloat16 elsewhere.",
        {
            "layer": too_large["layer"],
            "position": too_large["i"],
            "absmax": too_large["absmax"],
            "rows": num_too_large,
        },
        request,
    )


def in_model(exam: ModelExam) -> Verdict:
    """A neutral text through all layers."""
    layers = [event for event in exam.trial if event["type"] == "layer"]
    layers.sort(key=lambda event: (event["i"], event["layer"]))
    failure = next((event["error"] for event in exam.trial if event["type"] == "finish" and event["error"]), None)
    found = first_overflow(layers, None)
    if found is None and failure is not None:
        said = f"A neutral text cannot be computed: {failure}."
        found = Finding("error", said, _FIX, {"error": failure})
    elif found is not None and failure is not None:
        found = replace(found, evidence={**found.evidence, "error": failure})
    largest = _largest(layers)
    num_layers = exam.config.num_layers
    why = f"a neutral text through {num_layers} layers; the largest number is {largest:,.0f} (float16 ends at 65,504)"
    return verdict(why, [] if found is None else [found])
