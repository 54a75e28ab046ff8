"""How long a step will take: learned from the steps before it, asked by the scheduler. Plain numbers; reads no clock.

The time of a step is modelled as that of its answers plus that of its prompts, each

    fixed + per_token · tokens + per_pair · pairs

where a pair is a query with one position that it sees: a chunk of n tokens from position s on has n · s + n (n + 1) / 2
of them, which is why the same chunk is dearer late in a long prompt. Both are fitted to the last steps of their kind by
least squares of the relative error, without negative terms. What the latest predictions fell short of the truth by (a
machine that is busy with other things) comes on top.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pellucid.config import ModelConfig

FIRST_CHUNK = 32
"""Prompt tokens beside running streams before any prompt was timed; a chunk may then double from step to step."""
LEAST_CHUNK = 16
"""Prompt tokens of a step however long it takes: streams slow a prompt down, they do not stop it."""
IDLE_FACTOR = 4
"""How many times max_step_ms a step may take while nothing streams; newcomers and aborts wait for its end."""
BACKGROUND_DIVISOR = 4
"""Type-ahead gets this part of the time that prompts get beside running streams."""
_REMEMBERED = 32
_RATIOS = 8

_Sample = tuple[int, int, int]
"""(tokens, pairs, nanoseconds)."""


def num_pairs(start: int, num_tokens: int) -> int:
    """(query, visible position) pairs of `num_tokens` tokens from position `start` on."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


def pair_ratio(config: ModelConfig) -> float:
    """Arithmetic of one query with one position, in all layers, as a part of that of one token in the matrices."""
    heads = config.num_heads * config.head_dim
    attention = config.hidden_size * 2 * (heads + config.num_kv_heads * config.head_dim)
    return 2 * heads / (attention + 3 * config.hidden_size * config.intermediate_size)


@dataclass(slots=True)
class StepLoad:
    """What a step computes."""

    answer_tokens: int = 0
    answer_pairs: int = 0
    prompt_tokens: int = 0
    prompt_pairs: int = 0

    def add(self, start: int, num_tokens: int, *, is_answer: bool) -> None:
        """Count one entry of the step."""
        if is_answer:
            self.answer_tokens += num_tokens
            self.answer_pairs += num_pairs(start, num_tokens)
        else:
            self.prompt_tokens += num_tokens
            self.prompt_pairs += num_pairs(start, num_tokens)


class StepPace:
    """Predicts; every time in nanoseconds."""

    def __init__(self, max_step_ms: int, pair_ratio: float = 0.0) -> None:
        """max_step_ms: what a step may take while answers stream.

        pair_ratio: the least that a pair costs, as a part of what a token costs; it stands in until long contexts were
        timed (arithmetic of attention per pair / arithmetic of the matrices per token).
        """
        self.max_step_ns = max_step_ms * 1_000_000
        self._pair_ratio = pair_ratio
        self._answers: deque[_Sample] = deque(maxlen=_REMEMBERED)
        self._prompts: deque[_Sample] = deque(maxlen=_REMEMBERED)
        """The time beyond what the model says for the answers in the same step."""
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        """Measured / predicted time of the latest steps with prompts."""
        self._answer_fit: tuple[float, float, float] | None = None
        self._prompt_fit: tuple[float, float, float] | None = None

    def observe(self, load: StepLoad, elapsed_ns: int) -> None:
        """A step was made and took so long."""
        if load.prompt_tokens == 0:
            if load.answer_tokens:
                self._answers.append((load.answer_tokens, load.answer_pairs, max(1, elapsed_ns)))
                self._answer_fit = None
            return
        answers_ns = self._answers_ns(load.answer_tokens, load.answer_pairs)
        if self._prompts:
            fixed, per_token, per_pair = self._prompt_costs()
            prompts_ns = fixed + per_token * load.prompt_tokens + per_pair * load.prompt_pairs
            self._ratios.append(elapsed_ns / max(1.0, answers_ns + prompts_ns))
        own_ns = max(elapsed_ns - answers_ns, elapsed_ns / 10, 1.0)
        self._prompts.append((load.prompt_tokens, load.prompt_pairs, int(own_ns)))
        self._prompt_fit = None

    def prompt_time(self, load: StepLoad, *, is_streaming: bool) -> int:
        """What prompts may take of a step that has the answers of `load`."""
        if not is_streaming:
            return IDLE_FACTOR * self.max_step_ns
        fixed = self._prompt_costs()[0] if self._prompts else 0.0
        return max(0, int(self.max_step_ns / self._caution() - self._answers_ns(*_answers(load)) - fixed))

    def tokens_within(self, time_ns: int, start: int, *, is_streaming: bool) -> int:
        """How many prompt tokens from position `start` on take at most `time_ns`.

        Beside streams no more than twice of what was ever timed: a guess must not become a stall.
        """
        if not self._prompts:
            return FIRST_CHUNK if is_streaming else 1 << 30
        _, per_token, per_pair = self._prompt_costs()
        # n · (per_token + per_pair · (start + 1/2)) + n² · per_pair / 2 = time
        linear, square = per_token + per_pair * (start + 0.5), per_pair / 2
        if square > 0:
            tokens = ((linear * linear + 4 * square * time_ns) ** 0.5 - linear) / (2 * square)
        else:
            tokens = time_ns / linear
        known = 2 * max(sample[0] for sample in self._prompts) if is_streaming else 1 << 30
        return min(int(tokens), max(known, FIRST_CHUNK))

    def prompt_ns(self, num_tokens: int, start: int) -> int:
        """What so many prompt tokens from position `start` on take."""
        if not self._prompts:
            return 0
        _, per_token, per_pair = self._prompt_costs()
        return int(per_token * num_tokens + per_pair * num_pairs(start, num_tokens))

    def _caution(self) -> float:
        """By how much predictions are to be taken longer: the third quartile of what they were wrong by, from 1 on."""
        if not self._ratios:
            return 1.0
        return max(1.0, sorted(self._ratios)[3 * len(self._ratios) // 4])

    def _answers_ns(self, tokens: int, pairs: int) -> float:
        if tokens == 0 or not self._answers:
            return 0.0
        if self._answer_fit is None:
            self._answer_fit = _fit(self._answers)
        fixed, per_token, per_pair = self._answer_fit
        return fixed + per_token * tokens + per_pair * pairs

    def _prompt_costs(self) -> tuple[float, float, float]:
        if self._prompt_fit is None:
            fixed, per_token, per_pair = _fit(self._prompts)
            least = self._pair_ratio * per_token
            if per_token <= 0.0:  # all in the fixed part, or all in pairs: taken as tokens, which is never too little
                tokens, _, time_ns = max(self._prompts, key=lambda sample: sample[2] / sample[0])
                fixed, per_token = 0.0, time_ns / tokens
            self._prompt_fit = (fixed, per_token, max(per_pair, least))
        return self._prompt_fit


def _answers(load: StepLoad) -> tuple[int, int]:
    return load.answer_tokens, load.answer_pairs


def _fit(samples: deque[_Sample]) -> tuple[float, float, float]:
    """fixed, per_token and per_pair, none below 0, that fit the samples with the least squares of relative errors.

    Terms that come out negative are left out one by one, the most negative first.
    """
    scales = (1.0, float(max(sample[0] for sample in samples)), float(max(sample[1] for sample in samples)))
    rows = [(1.0 / t, tokens / scales[1] / t, pairs / scales[2] / t) for tokens, pairs, t in samples]
    most = max(max(row) for row in rows)
    rows = [(a / most, b / most, c / most) for a, b, c in rows]
    products = [[sum(row[i] * row[j] for row in rows) for j in range(3)] for i in range(3)]
    sums = [sum(row[i] for row in rows) / most for i in range(3)]
    active = [0, 1, 2]
    while True:
        found = _solve(products, sums, active)
        worst = min(active, key=lambda term: found[term])
        if found[worst] >= 0.0 or len(active) == 1:
            break
        active.remove(worst)
    fixed, per_token, per_pair = (max(0.0, found.get(term, 0.0)) / scales[term] for term in range(3))
    return fixed, per_token, per_pair


def _solve(products: list[list[float]], sums: list[float], active: list[int]) -> dict[int, float]:
    """Normal equations of the active terms by elimination; a trace on the diagonal keeps equal samples solvable."""
    size = len(active)
    matrix = [[products[i][j] * (1.0 + 1e-6 * (i == j)) + 1e-300 * (i == j) for j in active] for i in active]
    right = [sums[i] for i in active]
    for k in range(size):
        pivot = matrix[k][k] or 1e-300
        for i in range(k + 1, size):
            factor = matrix[i][k] / pivot
            right[i] -= factor * right[k]
            for j in range(k, size):
                matrix[i][j] -= factor * matrix[k][j]
    found = [0.0] * size
    for k in reversed(range(size)):
        rest = sum(matrix[k][j] * found[j] for j in range(k + 1, size))
        found[k] = (right[k] - rest) / (matrix[k][k] or 1e-300)
    return dict(zip(active, found, strict=True))
