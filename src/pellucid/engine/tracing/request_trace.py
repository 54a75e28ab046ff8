"""One traced request while it lives: how much is asked for, and where its time went until the first token."""

from __future__ import annotations

from dataclasses import dataclass, field

from pellucid.request import Request

PARTS = ("tokenize", "queue", "prefill_own", "batch_others", "sample", "emit", "tracing")
"""Where a TTFT can go; what is left over is `unaccounted`."""


@dataclass(slots=True, eq=False)
class StepTimes:
    """Where one step's time went, in nanoseconds of the monotonic clock."""

    begin: int
    scheduled: int = 0
    """When it was known what to compute."""
    computed: int = 0
    """When the hidden states were there."""
    end: int = 0
    logits: int = 0
    """How long the LM head took."""
    sample: int = 0
    detok: int = 0
    """How long traced answers took to become text."""
    probe: int = 0
    """How long the tracer took within the forward pass."""
    tracing: int = 0
    """How long the tracer took between `computed` and `end`."""

    def trace_until(self, now: int) -> None:
        """Since `end` it was the tracer that took the time: that is of the step too."""
        self.tracing += now - self.end
        self.end = now

    @property
    def all_tracing(self) -> int:
        """What the tracer took."""
        return self.probe + self.tracing

    @property
    def forward(self) -> int:
        """Model and LM head, the making of the arrays included."""
        return self.computed - self.scheduled - self.probe + self.logits

    @property
    def rest(self) -> int:
        """After the model, the sampler and the traced answers: untraced answers, bookkeeping."""
        return self.end - self.computed - self.logits - self.sample - self.detok - self.tracing


@dataclass(slots=True, eq=False)
class RequestTrace:
    """A caller's request; n answers are n sequences."""

    request_id: str
    level: int
    arrive_ns: int
    queued_ns: int
    """When it was in the queue: rendered, encoded, checked."""
    prompt: str | None
    template: str | None
    requests: list[Request]
    num_unfinished: int
    traced_before_ns: int = 0
    """What the tracer had taken in all when it was queued."""
    is_told: bool = False
    """Whether its request event is out, as it ran."""
    first_step_ns: int | None = None
    accounted_until_ns: int = 0
    ttft_ns: int | None = None
    parts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    token_times: dict[int, list[int]] = field(default_factory=dict)
    """By sequence key: when each of its tokens was drawn."""
    # Of the step that runs:
    sample_ns: int = 0
    detok_ns: int = 0
    num_drawn: int = 0
    is_first_step: bool = False
    """Whether it brought the first token."""

    def account(
        self, times: StepTimes, num_rows: int, num_all_rows: int, num_all_drawn: int, traced_before_ns: int
    ) -> None:
        """Add a step to the parts of a TTFT that is not over, of which `num_rows` rows of `num_all_rows` were its own.

        The step's time is cut at the moments in `times`: nothing is counted twice, and what no part covers stays out.
        `traced_before_ns` is what the tracer has taken in all the steps before.
        """
        if self.ttft_ns is not None:
            return
        parts = self.parts
        if self.first_step_ns is None:
            if not num_rows:
                return
            self.first_step_ns = times.begin
            parts["tokenize"] = self.queued_ns - self.arrive_ns
            self.accounted_until_ns = self.queued_ns
            waited = traced_before_ns - self.traced_before_ns  # while others were traced
            parts["tracing"] += waited
            parts["queue"] -= waited
        parts["queue"] += times.begin - self.accounted_until_ns
        self.accounted_until_ns = times.end
        parts["tracing"] += times.all_tracing
        if not num_rows:
            parts["batch_others"] += times.end - times.begin - times.all_tracing
            return
        parts["queue"] += times.scheduled - times.begin
        own = times.forward * num_rows // num_all_rows
        parts["prefill_own"] += own
        parts["batch_others"] += times.forward - own
        parts["sample"] += self.sample_ns
        parts["batch_others"] += times.sample - self.sample_ns + times.detok - self.detok_ns
        own_rest = times.rest * self.num_drawn // num_all_drawn if num_all_drawn else times.rest
        parts["emit"] += self.detok_ns + own_rest
        parts["batch_others"] += times.rest - own_rest
        if self.num_drawn:
            self.ttft_ns = times.end - self.arrive_ns
            self.is_first_step = True

    def delay(self, nanoseconds: int) -> None:
        """The tracer held the step's outputs back for so long after its end."""
        if self.first_step_ns is None:
            return
        self.accounted_until_ns += nanoseconds
        if self.ttft_ns is None:
            self.parts["tracing"] += nanoseconds
        elif self.num_drawn and self.is_first_step:
            self.ttft_ns += nanoseconds
            self.parts["tracing"] += nanoseconds

    def end_step(self) -> None:
        """Forget what belongs to one step."""
        self.sample_ns = self.detok_ns = self.num_drawn = 0
        self.is_first_step = False

    @property
    def ttft_parts(self) -> dict[str, int] | None:
        """All parts of the TTFT, which add up to it; None before the first token."""
        if self.ttft_ns is None:
            return None
        return {**self.parts, "unaccounted": self.ttft_ns - sum(self.parts.values())}
