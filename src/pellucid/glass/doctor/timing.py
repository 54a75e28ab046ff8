"""A first token that comes late, and where its time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pellucid.glass.doctor.finding import Finding, NotApplicableError, Verdict
from pellucid.glass.doctor.trace_exam import TraceExam, count, over
from pellucid.glass.view import TraceView

_PARTS = {
    "tokenize": (
        "text to tokens",
        "Send fewer messages, or a shorter prompt; a template that loops long is read once.",
    ),
    "queue": (
        "waiting for its turn",
        "Raise --max-num-seqs or --kv-cache-memory-bytes, give urgent requests a priority, or add a replica.",
    ),
    "prefill_own": (
        "computing the prompt",
        "Keep the beginning of prompts the same so that the prefix cache has it, shorten the prompt (overflow), "
        "prefill while it is typed, give more --threads, or try --precision fast.",
    ),
    "batch_others": ("others in the same steps", "Lower --max-step-ms or --max-num-batched-tokens, or add a replica."),
    "sample": (
        "drawing the token",
        "Look for a slow logits processor, or a grammar that is compiled for every request.",
    ),
    "emit": ("token to text", "See whether a stop string holds text back."),
    "unaccounted": ("unaccounted", "See whether the machine was busy with something else."),
}
"""What a part of the TTFT is called, and what shortens it."""


def slow_ttft(exam: TraceExam) -> Verdict:
    """The TTFT of every request, the tracer's own time not counted."""
    limit = exam.slow_ttft_ms * 1_000_000
    times = [_ttft(view) for view in exam.requests if view.finish is not None and view.finish["ttft_parts"] is not None]
    slowest = max(times, default=0) / 1e6
    return over(
        exam.requests,
        lambda view: _slow(view, limit),
        lambda n: (
            f"the slowest of {count(n, 'first token')} came after {slowest:,.0f} ms (slow is above "
            f"{exam.slow_ttft_ms:,}; tracing itself is not counted)"
        ),
    )


def _ttft(view: TraceView) -> int:
    assert view.finish is not None
    parts: dict[str, int] = view.finish["ttft_parts"]
    return sum(value for name, value in parts.items() if name != "tracing")


def _slow(view: TraceView, limit: int) -> Iterator[Finding]:
    if view.finish is None or view.finish["ttft_parts"] is None:
        raise NotApplicableError("there was no first token")
    ttft = _ttft(view)
    if ttft <= limit:
        return
    parts = {name: value for name, value in view.finish["ttft_parts"].items() if name != "tracing"}
    largest = max(parts, key=lambda name: parts[name])
    words, fix = _PARTS.get(largest, (largest, "See whether the machine was busy with something else."))
    cached = sum(one["cached"] for one in view.request["tokens"])
    computed = view.num_prompt - cached
    evidence: dict[str, Any] = {
        "ttft_ns": ttft,
        "parts_ns": parts,
        "prompt_tokens": view.num_prompt,
        "cached_tokens": cached,
    }
    detail = ""
    if largest == "prefill_own" and parts[largest] > 0:
        rate = computed / (parts[largest] / 1e9)
        evidence["prefill_tokens_per_second"] = rate
        detail = f" {count(computed, 'token')} of {view.num_prompt:,} were computed, {rate:,.0f} a second."
    waited = Counter(one["reason"] for step in view.all_steps for one in step["waiting"] if one["req"] == view.name)
    if waited:
        evidence["waited_steps"] = dict(waited)
        if largest == "queue":
            detail = (
                " It waited for "
                + ", ".join(f"{reason} in {count(n, 'step')}" for reason, n in waited.most_common())
                + "."
            )
    yield Finding(
        "warning",
        f"The first token came after {ttft / 1e6:,.0f} ms; the largest part, {parts[largest] / ttft:.0%}, was {words} "
        f"({largest}).{detail}",
        fix,
        evidence,
        view.name,
    )
