"""Whose guesses are verified in a step, and how many of them: as many as make the step worth more than it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pellucid.config import EngineArgs, SpeculativeMethod
from pellucid.engine.model_runner import Model
from pellucid.engine.output_processor import TokenizerLike
from pellucid.engine.scheduler import ScheduledRequest, Scheduler, SchedulerOutput
from pellucid.engine.speculation.costs import StepCosts
from pellucid.engine.speculation.drafts import Draft, Proposer
from pellucid.engine.speculation.forced import ForcedProposer
from pellucid.engine.speculation.ngram import NgramProposer
from pellucid.errors import InvalidParameterError, shown
from pellucid.kernels.dispatch import make_sampling_kernels
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.request import Request
from pellucid.sampling.sampler import Sampler

if TYPE_CHECKING:
    from pellucid.engine.speculation.draft_model import DraftModelProposer

MARGIN = 1.02
"""Drafts must promise so many times the tokens per second of the step without them."""

MANY = 8
"""From so many requests on it is worth asking first whether any guess can pay."""

_Plan = list[tuple[ScheduledRequest, Draft, int]]
"""Entries, their drafts, and how many of each are verified."""


class Speculator:
    """Adds drafts to a step and learns how they fared.

    `auto` verifies what pays by its own estimates; `ngram` and `draft_model` verify `num_tokens` drafts of that
    proposer wherever the token budget has room.
    """

    def __init__(
        self,
        method: SpeculativeMethod,
        num_tokens: int,
        tokenizer: TokenizerLike,
        draft_model: DraftModelProposer | None = None,
    ) -> None:
        self.num_tokens = num_tokens
        self.is_adaptive = method == "auto"
        self.draft_model = draft_model
        self.lookup: Proposer | None = None if method == "draft_model" else NgramProposer()
        self.forced = ForcedProposer(tokenizer) if self.is_adaptive else None
        self.costs = StepCosts()
        self._drafts: dict[int, tuple[Proposer, Draft]] = {}
        """What was proposed for this step, by request key."""
        self.proposers: dict[int, str] = {}
        """Whose drafts are verified in this step, by request key."""
        self._paused: set[int] = set()
        """Requests that are not speculated on in the next step."""

    @property
    def _proposers(self) -> list[Proposer]:
        return [proposer for proposer in (self.lookup, self.forced, self.draft_model) if proposer is not None]

    def plan(self, step: SchedulerOutput, scheduler: Scheduler) -> None:
        """Put drafts into the step's entries, from what the token budget has left after all known tokens."""
        self._drafts.clear()
        self.proposers = {}
        if self.draft_model is not None:
            for key in step.released:
                self.draft_model.table_changed(key)
        if not step.may_draft:
            return
        num_rows = step.num_tokens
        room = scheduler.max_num_batched_tokens - num_rows
        wanted: list[tuple[ScheduledRequest, int]] = []
        for entry in step.scheduled:
            limit = min(self._limit(entry), room)
            if limit > 0:
                wanted.append((entry, limit))
        if not wanted:
            return
        if not self.is_adaptive:
            plan = self._fixed_plan(scheduler, wanted, room)
        elif len(wanted) < MANY or self._can_pay(num_rows, room, wanted):
            drafts = self._adaptive_drafts(num_rows, scheduler, wanted)
            plan = self._best_plan(num_rows, room, wanted, drafts)
        else:
            return
        for entry, draft, count in plan:
            entry.draft_token_ids = draft.token_ids[: scheduler.reserve(entry, count)]
            if entry.draft_token_ids:
                self.proposers[entry.request.key] = self._drafts[entry.request.key][0].name

    def learn(self, request: Request, drawn: Sequence[int], *, is_void: bool = False) -> None:
        """What was drawn for a request of this step; `is_void` when its step has to come again without drafts."""
        if is_void:
            self._paused.add(request.key)
            return
        proposer, draft = self._drafts.pop(request.key, (None, None))
        if proposer is not None and draft is not None:
            proposer.learn(request, draft, drawn)
        if self.draft_model is not None:
            self.draft_model.note_drawn(request.key, len(drawn), was_asked=proposer is self.draft_model)

    def note_seconds(self, step: SchedulerOutput, seconds: float) -> None:
        """What the model took for the step."""
        if self.is_adaptive:
            self.costs.observe(step.num_tokens, seconds)

    def forget(self, key: int) -> None:
        """The request is over."""
        self._paused.discard(key)
        for proposer in self._proposers:
            proposer.forget(key)

    def _limit(self, entry: ScheduledRequest) -> int:
        """Drafts of which each could still become a token of the answer, with one more drawn after them.

        None before the first token, which nothing shall delay.
        """
        request = entry.request
        num_output = len(request.output_token_ids)
        if not num_output or not entry.draws:
            return 0
        if request.key in self._paused:
            self._paused.discard(request.key)
            return 0
        return min(self.num_tokens, request.max_output_tokens - num_output - 1)

    def _can_pay(self, num_rows: int, room: int, wanted: Sequence[tuple[ScheduledRequest, int]]) -> bool:
        """Whether drafts that are all right would make the step worth more than it costs."""
        most = min(room, sum(limit for _, limit in wanted))
        return (num_rows + most) / self.costs.seconds(num_rows + most) > MARGIN * num_rows / self.costs.seconds(
            num_rows
        )

    def _fixed_plan(self, scheduler: Scheduler, wanted: list[tuple[ScheduledRequest, int]], room: int) -> _Plan:
        proposer = self.lookup if self.draft_model is None else self.draft_model
        if proposer is None:
            raise AssertionError("speculation without a proposer")
        given: list[tuple[ScheduledRequest, int]] = []
        for entry, limit in wanted:
            count = scheduler.reserve(entry, min(limit, room))
            room -= count
            if count:
                given.append((entry, count))
        plan: _Plan = []
        for (entry, _), draft in zip(given, proposer.propose(given), strict=True):
            self._drafts[entry.request.key] = (proposer, draft)
            plan.append((entry, draft, len(draft.token_ids)))
        return plan

    def _adaptive_drafts(
        self, num_rows: int, scheduler: Scheduler, wanted: list[tuple[ScheduledRequest, int]]
    ) -> list[Draft]:
        """For each entry the draft that promises most: forced or looked up for nothing, a draft model's at its cost."""
        if self.lookup is None:
            raise AssertionError("automatic speculation without prompt lookup")
        drafts = self.lookup.propose(wanted)
        for (entry, _), draft in zip(wanted, drafts, strict=True):
            self._drafts[entry.request.key] = (self.lookup, draft)
        self._prefer_forced(num_rows, wanted, drafts)
        model = self.draft_model
        if model is None:
            return drafts
        share = model.step_seconds(len(wanted), self.costs) / len(wanted)
        chosen: list[tuple[int, int]] = []
        for place, ((entry, limit), draft) in enumerate(zip(wanted, drafts, strict=True)):
            at_hand, _ = self._worth(num_rows, draft.odds, 0.0)
            odds = [model.probability(entry.request.key)] * limit
            worth, count = self._worth(num_rows, odds, share)
            if model.is_trial_due(entry.request):
                worth, count = float("inf"), min(model.TRIAL_TOKENS, limit)
            count = scheduler.reserve(entry, count) if worth > at_hand else 0
            if count:
                chosen.append((place, count))
        proposed = model.propose([(wanted[place][0], count) for place, count in chosen])
        for (place, _), draft in zip(chosen, proposed, strict=True):
            if draft.token_ids:
                drafts[place] = draft
                self._drafts[wanted[place][0].request.key] = (model, draft)
        return drafts

    def _prefer_forced(self, num_rows: int, wanted: list[tuple[ScheduledRequest, int]], drafts: list[Draft]) -> None:
        """Put what structures force in the place of drafts that promise less."""
        if self.forced is None:
            return
        for place, (draft, (entry, _)) in enumerate(zip(self.forced.propose(wanted), wanted, strict=True)):
            if draft.token_ids and self._worth(num_rows, draft.odds, 0.0) >= self._worth(
                num_rows, drafts[place].odds, 0.0
            ):
                drafts[place] = draft
                self._drafts[entry.request.key] = (self.forced, draft)

    def _worth(self, num_rows: int, odds: Sequence[float], seconds_each: float) -> tuple[float, int]:
        """(tokens per second, number of drafts) of the best number of drafts of one request; none if none pays."""
        best, count = MARGIN * num_rows / self.costs.seconds(num_rows), 0
        tokens, chance = float(num_rows), 1.0
        for place, probability in enumerate(odds, 1):
            chance *= probability
            tokens += chance
            worth = tokens / (self.costs.seconds(num_rows + place) + place * seconds_each)
            if worth > best:
                best, count = worth, place
        return best, count

    def _best_plan(
        self, num_rows: int, room: int, wanted: list[tuple[ScheduledRequest, int]], drafts: list[Draft]
    ) -> _Plan:
        """The drafts most likely to come true, as many as give the most tokens per second.

        Known tokens count as one each, those of prompts too, so that drafts give way to prompts in full steps.
        """
        chances: list[tuple[float, int]] = []
        for place, draft in enumerate(drafts):
            chance = 1.0
            for probability in draft.odds:
                chance *= probability
                chances.append((-chance, place))
        if not chances:
            return []
        chances.sort()
        best, most = MARGIN * num_rows / self.costs.seconds(num_rows), 0
        tokens = float(num_rows)
        for count, (chance, _) in enumerate(chances[:room], 1):
            tokens -= chance
            worth = tokens / self.costs.seconds(num_rows + count)
            if worth > best:
                best, most = worth, count
        counts: dict[int, int] = {}
        for _, place in chances[:most]:
            counts[place] = counts.get(place, 0) + 1
        return [(wanted[place][0], drafts[place], count) for place, count in counts.items()]


def make_speculator(
    args: EngineArgs,
    model: Model,
    tokenizer: TokenizerLike,
    draft_model: Model | None,
    num_blocks: int,
    max_model_len: int,
) -> Speculator | None:
    """What the arguments ask for; None when speculation is off.

    Raises `InvalidParameterError` for a draft model of another vocabulary's size or for shorter texts.
    """
    if args.speculative_method == "off":
        return None
    if (draft_model is None) != (args.speculative_model is None):
        raise InvalidParameterError("speculative_model", "speculative_model and the draft model go together")
    if draft_model is None:
        return Speculator(args.speculative_method, args.num_speculative_tokens, tokenizer)
    from pellucid.engine.speculation.draft_model import DraftModelProposer

    config, name = draft_model.config, shown(args.speculative_model)
    if config.vocab_size != model.config.vocab_size:
        raise InvalidParameterError(
            "speculative_model",
            f"speculative_model {name} has a vocabulary of {config.vocab_size} tokens, but the model has one of "
            f"{model.config.vocab_size}: a draft model must have the same",
        )
    if config.context_length < max_model_len:
        raise InvalidParameterError(
            "speculative_model",
            f"speculative_model {name} was trained for {config.context_length} positions, but max_model_len is "
            f"{max_model_len}: lower max_model_len",
        )
    storage = KVCacheStorage.for_model(config, num_blocks, args.block_size, args.kv_cache_dtype)
    proposer = DraftModelProposer(
        draft_model,
        storage,
        Sampler(config.vocab_size, make_sampling_kernels(args.backend)),
        max_num_batched_tokens=args.max_num_batched_tokens,
        cost=config.weight_bytes / model.config.weight_bytes if model.config.weight_bytes else 1.0,
    )
    return Speculator(args.speculative_method, args.num_speculative_tokens, tokenizer, proposer)
