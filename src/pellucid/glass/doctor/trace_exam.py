"""A trace as the rules read it: checked against its schema, answer by answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pellucid.errors import TraceFileError, shown
from pellucid.glass.doctor.finding import Finding, NotApplicableError, Verdict, verdict
from pellucid.glass.view import TraceView, answers_of
from pellucid.trace.checking import check_events
from pellucid.trace.events import Event

if TYPE_CHECKING:
    from pellucid.glass.doctor.model_exam import ModelExam

DEFAULT_SLOW_TTFT_MS = 2000
"""A first token that comes later than this is slow, unless somebody says otherwise."""


@dataclass
class TraceExam:
    """A trace, and what the doctor was told beside it."""

    name: str
    header: Event
    views: list[TraceView]
    slow_ttft_ms: int = DEFAULT_SLOW_TTFT_MS
    model: ModelExam | None = None
    """The model that is said to have made it."""
    notes: list[str] = field(default_factory=list)
    """What limits everything that is found."""

    @classmethod
    def of(
        cls,
        events: Iterable[Event],
        name: str = "the trace",
        *,
        slow_ttft_ms: int = DEFAULT_SLOW_TTFT_MS,
        model: ModelExam | None = None,
    ) -> TraceExam:
        """Raises `TraceFileError`, naming line and field, for events that are not as the schema says."""
        listed = list(events)
        check_events(listed, name)
        second = next((line for line, event in enumerate(listed, 1) if event["type"] == "header" and line > 1), None)
        if second is not None:
            raise TraceFileError(f"{name}, line {second}: a second header: examine one trace at a time")
        if not any(event["type"] == "request" for event in listed):
            raise TraceFileError(f"{name} has no request in it, so there is nothing to examine")
        views = answers_of(listed)
        for view in views:
            _check_params(view, name)
        return cls(name, listed[0], views, slow_ttft_ms, model, list(_notes(listed)))

    @property
    def tokenizer(self) -> dict[str, Any]:
        """What the header says of it."""
        told: dict[str, Any] = self.header["tokenizer"]
        return told

    @property
    def requests(self) -> list[TraceView]:
        """One view of every request, however many answers it has."""
        return list({view.name: view for view in reversed(self.views)}.values())[::-1]

    @property
    def max_model_len(self) -> int | None:
        """The longest request that the engine took; None where the header does not say."""
        value = self.header["engine"].get("max_model_len")
        return value if type(value) is int and value > 0 else None


def over(
    views: Iterable[TraceView],
    check: Callable[[TraceView], Iterable[Finding]],
    why: Callable[[int], str],
) -> Verdict:
    """A verdict over answers, or requests: those that a check does not apply to are passed over.

    why: what to say, from the number of those that were looked at. Raises `NotApplicableError` where there are none.
    """
    findings: list[Finding] = []
    reason, looked = "", 0
    for view in views:
        try:
            findings += check(view)
            looked += 1
        except NotApplicableError as error:
            reason = reason or str(error)
    if not looked:
        raise NotApplicableError(reason or "the trace has no answer in it")
    return verdict(why(looked), findings)


def param(view: TraceView, name: str, default: Any = None) -> Any:
    """A sampling parameter's value; the default where the trace does not have it."""
    one = view.request["params"].get(name)
    return default if one is None else one["value"]


def is_greedy(view: TraceView) -> bool:
    """Whether the answer is made of most probable tokens."""
    from pellucid.sampling_params import MIN_TEMPERATURE

    return bool(param(view, "temperature", 1.0) <= MIN_TEMPERATURE)


def count(number: int, noun: str) -> str:
    """`1 answer`, `2 answers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _check_params(view: TraceView, name: str) -> None:
    """Parameters may have any form in the schema; those that rules compute with are numbers."""
    for key in ("temperature", "top_p", "top_k", "min_p"):
        value = param(view, key, 0.0)
        if type(value) not in (int, float):
            raise TraceFileError(f"{name}: {key} of request {shown(view.name)} is {shown(value)}, but must be a number")
    ids = param(view, "stop_token_ids") or []
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        raise TraceFileError(f"{name}: stop_token_ids of request {shown(view.name)} is {shown(ids)}, but must be ids")


def _notes(events: list[Event]) -> Iterator[str]:
    end = events[-1] if events[-1]["type"] == "end" else None
    if end is None:
        yield "The trace has no end: it was cut off, or is still being written."
    elif end["dropped"]:
        yield f"{end['dropped']:,} records were lost before they were read: what they told is missing here."
    if events[0]["redacted"]:
        yield "What belongs to other requests was left out of the trace."
