"""Sampling that cannot vary or cannot stop varying, stages that take nearly everything, and near ties."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from pellucid.glass.doctor.finding import Finding, NotApplicableError, Verdict
from pellucid.glass.doctor.trace_exam import TraceExam, count, is_greedy, over, param
from pellucid.glass.pieces import decoded
from pellucid.glass.view import TraceView
from pellucid.sampling.stages import STAGES
from pellucid.trace.events import SAMPLING, Event
from pellucid.trace.jsonl import number

HOT = 1.5
"""Temperature above which most models write nonsense."""
HOLDING_MIN_P = 0.05
"""A min-p that keeps a hot temperature in bounds."""
NARROW_TOP_P = 0.1
FILTERS = ("min_p", "top_k", "top_p")
COLD = 0.1
"""Temperature below which next to nothing is left to chance."""
FEW_TOKENS = 8
"""Fewer are no evidence."""
FLAT_NATS = 0.02
"""Mean entropy of what is drawn from below which nothing varies …"""
OPEN_NATS = 0.5
"""… where the model itself had at least this."""
STRICT_MASS = 0.9
"""Share of the probability that a stage takes to be called strict …"""
STRICT_SHARE = 0.25
"""… in this share of the tokens …"""
STRICT_TIMES = 3
"""… and so often."""
HEAVY_MEAN = 0.4
"""Mean share that a penalty moves to be called too strong: on repetitive code 1.1 moves 0.2 with SmolLM2, 1.3 0.5."""
WHITESPACE_RUN = 8
"""Tokens of white space alone, one after the other."""
NEAR_TIE = 0.05
"""Gap of the first two logits below which engines that round otherwise may choose otherwise."""
MOVING = tuple(stage.name for stage in STAGES if stage.moves_logits)
"""Stages that change which token is likely, in the order in which they run."""


def variation(exam: TraceExam) -> Verdict:
    """Parameters that leave one token or too many, and what was left of each draw."""
    drawn = [one for view in exam.views if not is_greedy(view) for one in view.samples]
    final, raw = (_mean(one["stages"][place]["entropy"] for one in drawn) for place in (-1, 0))
    told = (
        "" if final is None or raw is None else f"; {final:.2f} nats to draw from, {raw:.2f} in the model, on average"
    )
    return over(exam.views, _variation, lambda n: f"{count(n, 'answer')}: temperature, top-k, top-p, min-p{told}")


def _variation(view: TraceView) -> Iterator[Finding]:
    if is_greedy(view):
        raise NotApplicableError("temperature is 0: the most probable token is meant to be taken")
    if not view.samples and view.finish is not None and not view.finish["n_output"]:
        raise NotApplicableError("no token was drawn")
    draws = [one for one in view.samples if not _is_forced(one)]
    raw = _mean(one["stages"][0]["entropy"] for one in draws)
    final = _mean(one["stages"][-1]["entropy"] for one in draws)
    before = _mean(_before_filters(one)["entropy"] for one in draws)
    single = sum(one["stages"][-1]["alive"] == 1 for one in draws)
    evidence = {
        "temperature": param(view, "temperature", 1.0),
        "top_k": param(view, "top_k", 0),
        "top_p": param(view, "top_p", 1.0),
        "min_p": param(view, "min_p", 0.0),
        "draws": len(draws),
        "one_survivor": single,
        "entropy_raw": raw,
        "entropy_before_filters": before,
        "entropy_drawn_from": final,
    }
    yield from _cannot_vary(view, evidence)
    yield from _cannot_stop(view, evidence)


def _before_filters(sample: Event) -> Event:
    """The stage after which filters run."""
    stages: list[Event] = sample["stages"]
    return next((one for one in reversed(stages) if one["name"] not in FILTERS), stages[0])


def _is_forced(sample: Event) -> bool:
    """Whether one token was left before temperature and filters: a structure, not the sampling."""
    moved = [stage for stage in sample["stages"] if stage["name"] in MOVING]
    return bool(moved) and moved[-1]["alive"] == 1


def _mean(values: Iterator[float] | Any) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


def _cannot_vary(view: TraceView, evidence: dict[str, Any]) -> Iterator[Finding]:
    temperature, top_p = evidence["temperature"], evidence["top_p"]
    enough = evidence["draws"] >= FEW_TOKENS
    is_flat = enough and evidence["entropy_raw"] >= OPEN_NATS and evidence["entropy_drawn_from"] < FLAT_NATS
    is_flat = is_flat and temperature < COLD  # above, it is the model that is sure
    if evidence["top_k"] == 1:
        cause = "top_k is 1"
    elif top_p < NARROW_TOP_P:
        cause = f"top_p is {top_p:g}"
    elif enough and evidence["one_survivor"] == evidence["draws"] and evidence["entropy_before_filters"] >= OPEN_NATS:
        cause = f"the filters left one token in all of {evidence['draws']} draws"
    elif is_flat:
        cause = f"temperature {temperature:g} leaves {evidence['entropy_drawn_from']:.3f} nats to draw from"
    else:
        return
    shown = ""
    if evidence["draws"]:
        shown = f" {count(evidence['one_survivor'], 'draw')} of {evidence['draws']} had one survivor."
    yield Finding(
        "warning",
        f"Temperature is {temperature:g}, so answers should vary, but they cannot: {cause}.{shown}",
        "Set temperature to 0 where the same answer is wanted; else leave top_k at 20 or more and top_p at 0.8 or "
        "more.",
        evidence,
        view.name,
    )


def _cannot_stop(view: TraceView, evidence: dict[str, Any]) -> Iterator[Finding]:
    temperature = evidence["temperature"]
    if temperature <= HOT:
        return
    raw, final = evidence["entropy_raw"], evidence["entropy_drawn_from"]
    is_held = final <= raw if evidence["draws"] >= FEW_TOKENS else evidence["min_p"] >= HOLDING_MIN_P
    shown = "" if raw is None else f" Draws had {final:.2f} nats of entropy, the model itself {raw:.2f}."
    held = " The filters hold it: little more is drawn from than what the model itself finds likely." if is_held else ""
    yield Finding(
        "info" if is_held else "warning",
        f"Temperature is {temperature:g}: unlikely tokens are drawn so often that text falls apart.{shown}{held}",
        "Set temperature to 1.2 or less, or min_p to 0.05 or more beside it.",
        evidence,
        view.name,
    )


def strictness(exam: TraceExam) -> Verdict:
    """What penalties, masks and processors took of the model's own probability, and runs of white space."""
    samples = [one for view in exam.views for one in view.samples]
    means = {
        name: _mean(share for share in (_taken(one, name) for one in samples) if share is not None) for name in MOVING
    }
    shares = [f"{name} {mean:.0%}" for name, mean in means.items() if mean is not None]
    told = f"on average of the raw probability: {', '.join(shares)}" if shares else "no penalty and no mask"
    return over(exam.views, _strict, lambda n: f"{count(n, 'answer')}: {told}")


def _strict(view: TraceView) -> Iterator[Finding]:
    if not view.samples:
        raise NotApplicableError(f"sampling is told at level {SAMPLING}; this trace has none")
    for name in MOVING:
        taken = [share for share in (_taken(sample, name) for sample in view.samples) if share is not None]
        often = [share for share in taken if share > STRICT_MASS]
        mean = _mean(taken) or 0.0
        is_often = len(often) >= STRICT_TIMES and len(often) >= STRICT_SHARE * len(view.samples)
        is_heavy = name.endswith("_penalty") and len(taken) >= FEW_TOKENS and mean > HEAVY_MEAN
        if is_often or is_heavy:
            value = next(s["param"] for one in view.samples for s in one["stages"] if s["name"] == name)
            yield Finding(
                "warning",
                f"{name} took {mean:.0%} of the probability on average, more than {STRICT_MASS:.0%} of it in "
                f"{len(often)} of {len(view.samples)} tokens: the answer is what is left when the model may not say "
                "what it wants.",
                _loosen(name),
                {
                    "stage": name,
                    "param": value,
                    "tokens": len(view.samples),
                    "times": len(often),
                    "mean_taken": mean,
                },
                view.name,
            )
    yield from _whitespace(view)


def _taken(sample: Event, name: str) -> float | None:
    """Probability that a stage made impossible or moved to other tokens: what the trace shows at least of it.

    None where it did not run. A token that is not told on one side is taken to be as likely as the least that is.
    """
    for before, after in pairwise(sample["stages"]):
        if after["name"] == name:
            lost, gained = _moved(before, after), _moved(after, before)
            return max(float(after["mass_removed"]), lost, gained)
    return None


def _moved(one: Event, other: Event) -> float:
    """What the first tokens of `one` have more than in `other`, at least."""
    told = {token_id: number(p) for token_id, _, p in other["top"]}
    rest = min(told.values(), default=0.0) if len(told) < other["alive"] else 0.0
    return sum(max(0.0, number(p) - told.get(token_id, rest)) for token_id, _, p in one["top"])


def _loosen(name: str) -> str:
    if name.endswith("_penalty"):
        return f"Bring {name} nearer to its neutral value ({'1' if name.startswith('repetition') else '0'})."
    if name == "structured_outputs":
        return (
            "Say in the prompt which form is wanted, so that the model goes there by itself; allow what it begins with."
        )
    if name == "min_tokens":
        return "Lower min_tokens: the model wants to end earlier."
    return f"Loosen {name}, or change the prompt so that the model wants what is left."


def _whitespace(view: TraceView) -> Iterator[Finding]:
    longest, run = 0, 0
    for sample in view.samples:
        data = decoded(sample["bytes_b64"])
        run = run + 1 if data and not data.strip() else 0
        longest = max(longest, run)
    if longest < WHITESPACE_RUN:
        return
    structured = param(view, "structured_outputs") is not None
    yield Finding(
        "warning",
        f"{longest} tokens of white space follow each other: the answer goes on without saying anything.",
        "Forbid free white space in the schema or grammar." if structured else "See which stage leaves nothing else.",
        {"longest_run": longest, "tokens": len(view.samples)},
        view.name,
    )


def near_ties(exam: TraceExam) -> Verdict:
    """Greedy choices between two tokens that are nearly as good."""
    gaps = [(_gap(one), one, view) for view in exam.views if is_greedy(view) for one in view.samples]
    check: Callable[[TraceView], Iterator[Finding]] = _near_tie
    least = min((gap for gap, _, _ in gaps), default=0.0)
    return over(
        exam.views,
        check,
        lambda n: f"{count(len(gaps), 'greedy choice')}; the smallest gap of two logits is {least:.2f}",
    )


def _gap(sample: Event) -> float:
    """Of the first two logits after the last stage; a lone candidate has no rival."""
    top = sample["stages"][-1]["top"]
    return number(top[0][1]) - number(top[1][1]) if len(top) > 1 else float("inf")


def _near_tie(view: TraceView) -> Iterator[Finding]:
    if not view.samples:
        raise NotApplicableError(f"sampling is told at level {SAMPLING}; this trace has none")
    if not is_greedy(view):
        raise NotApplicableError("tokens were drawn with a temperature, not chosen greedily")
    ties = [(gap, one) for gap, one in ((_gap(one), one) for one in view.samples) if gap < NEAR_TIE]
    if not ties:
        return
    gap, closest = min(ties, key=lambda one: one[0])
    names = [view.text_of(int(token_id)) for token_id, _, _ in closest["stages"][-1]["top"][:2]]
    more = f" {len(ties) - 1} more like it." if len(ties) > 1 else ""
    yield Finding(
        "info",
        f"Position {closest['i']} is a near tie: {names[0]!r} is {gap:.3f} logits ahead of {names[1]!r}. Another "
        f"engine, or other weight types, may answer differently from there on.{more}",
        "Compare logprobs rather than texts; hold two engines to the same prefix.",
        {
            "position": closest["i"],
            "gap": gap,
            "tokens": names,
            "ids": [int(one[0]) for one in closest["stages"][-1]["top"][:2]],
            "near_ties": len(ties),
            "choices": len(view.samples),
        },
        view.name,
    )
