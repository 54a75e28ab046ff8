"""LLMEngine: requests in, deltas out, one step at a time. Not thread-safe: one thread drives it."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pellucid.config import EngineArgs
from pellucid.engine.model_runner import Model, ModelRunner, StepResult
from pellucid.engine.output_processor import Answer, RequestState, TokenizerLike, add_completion
from pellucid.engine.overflow import truncated_prompt
from pellucid.engine.scheduler import ScheduledRequest, Scheduler, SchedulerOutput, load_of
from pellucid.engine.speculation.drafts import num_right
from pellucid.engine.speculation.speculator import Speculator, make_speculator
from pellucid.engine.step_pace import StepPace, pair_ratio
from pellucid.engine.validation import (
    check_params,
    check_text_length,
    checked_client,
    checked_priority,
    checked_processors,
    checked_prompt,
    checked_salt,
    checked_trace_level,
)
from pellucid.errors import InvalidParameterError, PellucidError, shown
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.sizing import beyond_training, resolve_max_model_len, resolve_num_blocks
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.outputs import CompletionOutput, Overflow, RequestOutput
from pellucid.request import LogitsProcessor, Request
from pellucid.sampling.constraints.compiler import CompiledGrammar, GrammarCompiler
from pellucid.sampling.sampler import SampledToken
from pellucid.sampling_params import MAX_SEED, SamplingParams

if TYPE_CHECKING:
    from typing import Self

    from pellucid.engine.saved_cache import SavedCache
    from pellucid.engine.tracing.tracer import EngineTracer


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment; counts are since it was made."""

    num_steps: int
    """Forward passes."""
    num_tokens_computed: int
    """Rows of all steps: prompt and output tokens, recomputed ones again."""
    num_output_tokens: int
    """Tokens drawn."""
    num_preemptions: int
    """How often a sequence gave up its blocks to be computed again."""
    num_waiting: int
    """Sequences that wait; a request with n answers is n sequences."""
    num_running: int
    """Sequences that take part in steps."""
    kv_blocks_used: int
    """Blocks that unfinished requests hold."""
    kv_blocks_cached: int
    """Further blocks, kept for prompts to come; they are given up when the free ones run out."""
    kv_blocks_touched: int
    """Blocks ever used: what the KV cache costs in memory now."""
    kv_blocks_total: int
    """Blocks of the pool."""
    prefix_cache_queried_tokens: int
    """Prompt tokens that were looked up in the prefix cache …"""
    prefix_cache_hit_tokens: int
    """… and those found there, which were not computed."""
    prefix_cache_evicted_blocks: int
    """Cached blocks given up so far because others needed the room."""
    spec_draft_tokens: int = 0
    """Guesses at tokens that were verified …"""
    spec_accepted_tokens: int = 0
    """… and those that came true."""

    @property
    def prefix_cache_hit_rate(self) -> float | None:
        """Share of the prompt tokens looked up that were found; None before the first."""
        queried = self.prefix_cache_queried_tokens
        return self.prefix_cache_hit_tokens / queried if queried else None

    @property
    def spec_acceptance_rate(self) -> float | None:
        """Share of the verified guesses that came true; None before the first."""
        return self.spec_accepted_tokens / self.spec_draft_tokens if self.spec_draft_tokens else None


class LLMEngine:
    """Model, tokenizer, KV cache and scheduler together.

    `add_request` refuses what cannot be served; everything it takes ends with a finish_reason.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: TokenizerLike,
        args: EngineArgs | None = None,
        *,
        draft_model: Model | None = None,
    ) -> None:
        """`draft_model` is what `args.speculative_model` names, with the same vocabulary.

        Raises `InvalidParameterError` when the KV cache cannot hold one request of max_model_len, or where the draft
        model does not go with the model.
        """
        self.args = args = args or EngineArgs()
        self.model = model
        self.tokenizer = tokenizer
        self.config = config = model.config
        self.max_model_len = resolve_max_model_len(config, args)
        warning = beyond_training(config, self.max_model_len)
        if warning is not None:
            warnings.warn(warning, RuntimeWarning, stacklevel=2)
        draft_config = None if draft_model is None else draft_model.config
        num_blocks = resolve_num_blocks(config, args, self.max_model_len, draft_config)
        self.storage = KVCacheStorage(
            config.num_layers, num_blocks, config.num_kv_heads, config.head_dim, args.block_size, args.kv_cache_dtype
        )
        self.kv = KVCacheManager(num_blocks, args.block_size)
        self.scheduler = Scheduler(
            self.kv,
            args.max_num_seqs,
            args.max_num_batched_tokens,
            enable_prefix_caching=args.enable_prefix_caching,
            pace=StepPace(args.max_step_ms, pair_ratio(config)),
        )
        self.runner = ModelRunner(
            model,
            self.storage,
            max_model_len=self.max_model_len,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            backend=args.backend,
            threads=args.threads,
            precision=args.precision,
        )
        self.grammars = GrammarCompiler(tokenizer, config.vocab_size)
        """For structured_outputs; its `compile` may be called from any thread."""
        self.speculator = make_speculator(args, model, draft_model, num_blocks, self.max_model_len)
        self._tracer: EngineTracer | None = None
        self._tracer_lock = threading.Lock()
        self._tracing: EngineTracer | None = None
        """The tracer, while a traced request is not finished."""
        self._process = os.getpid()
        self._states: dict[str, RequestState] = {}
        self._num_requests = 0
        self._num_sequences = 0
        self._num_steps = 0
        self._num_tokens_computed = 0
        self._num_output_tokens = 0
        self._num_draft_tokens = 0
        self._num_accepted_tokens = 0
        self._unsent: dict[str, RequestOutput] = {}
        """Deltas of the step that runs; those of a step that failed half-way go out with the next one's."""
        self.saved_cache: SavedCache | None = None
        """The file in which the prefix cache outlives the process."""
        if args.kv_cache_save is not None:
            from pellucid.engine.saved_cache import SavedCache

            self.saved_cache = SavedCache(self, args.kv_cache_save)
            self.saved_cache.load()

    @classmethod
    def from_args(cls, args: EngineArgs | None = None, *, progress: Any = None) -> Self:
        """Find (or fetch) the model, load it and its tokenizer; `progress` is handed to the model store."""
        from pellucid.engine.loading import load_draft_model, load_parts

        args = args or EngineArgs()
        model, tokenizer = load_parts(args, progress)
        return cls(model, tokenizer, args, draft_model=load_draft_model(args, model, tokenizer, progress))

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        prompt_text: str | None = None,
        arrival_time: float | None = None,
        priority: int = 0,
        cache_salt: str = "",
        client: str = "",
        logits_processors: Sequence[LogitsProcessor] = (),
        overflow: Overflow | None = None,
        trace_level: int = 0,
        template: str | None = None,
    ) -> None:
        """Queue a prompt: text (encoded with the model's special tokens), or token ids taken as they are.

        `prompt_text` is what the output shows as prompt when ids are given. `arrival_time` (time.monotonic()) is when
        the caller asked, where that was before this call; TTFT counts from it. A lower `priority` is served earlier;
        within one, different `client`s get equal shares, however many requests each of them sends.
        Only requests with the same `cache_salt` share cached prefixes: give each tenant one of its own.
        A prompt that does not fit is truncated where `params.overflow` says so; `overflow` tells what was done before.
        `trace_level` is how much of the request `tracer` tells (docs/tracing.md); `template` is what made the prompt.
        Raises `ContextLengthExceededError` or `InvalidParameterError`; then nothing was queued.
        """
        params = SamplingParams() if params is None else params
        self._check_request_id(request_id)
        arrival_time = time.monotonic() if arrival_time is None else arrival_time
        text = prompt if isinstance(prompt, str) else prompt_text
        if isinstance(prompt, str):
            if params.overflow == "error":
                check_text_length(self.tokenizer, prompt, self.max_model_len)
            prompt = self.tokenizer.encode(prompt)
        ids = checked_prompt(prompt, self.config.vocab_size)
        if isinstance(params, SamplingParams) and params.overflow != "error" and overflow is None:
            fitted = truncated_prompt(ids, text, params, self.tokenizer, self.max_model_len)
            ids, text, overflow = list(fitted.token_ids), fitted.text, fitted.overflow
        check_params(params, len(ids), self.config.vocab_size, self.max_model_len)
        salt, processors = checked_salt(cache_salt), checked_processors(logits_processors)
        client, trace_level = checked_client(client), checked_trace_level(trace_level)
        grammar = None if params.structured_outputs is None else self.grammars.compile(params.structured_outputs)
        requests = self._sequences(
            request_id, ids, params, checked_priority(priority), salt, client, processors, grammar
        )
        if trace_level:
            answers = self.tracer.begin(requests, text, template, arrival_time, trace_level)
            self._tracing = self.tracer
        else:
            answers = [Answer(request, self.tokenizer) for request in requests]
        self._states[request_id] = RequestState(text, answers, arrival_time, self.tokenizer, overflow)
        for request in requests:
            self.scheduler.add(request)

    def add_prefill(self, request_id: str, token_ids: Sequence[int], *, cache_salt: str = "", client: str = "") -> None:
        """Queue a prompt that only fills the prefix cache, in whole blocks, after everything that is to be answered.

        It ends with finish_reason "length" and no token. Raises `ContextLengthExceededError`, or
        `InvalidParameterError`, also for a prompt shorter than a block, or without a prefix cache.
        """
        self._check_request_id(request_id)
        if not self.args.enable_prefix_caching:
            raise InvalidParameterError("enable_prefix_caching", "prefill needs enable_prefix_caching, which is off")
        ids = checked_prompt(token_ids, self.config.vocab_size)
        params = SamplingParams(max_tokens=1)
        check_params(params, len(ids), self.config.vocab_size, self.max_model_len)
        whole = len(ids) - len(ids) % self.kv.block_size
        if whole == 0:
            raise InvalidParameterError(
                "prompt", f"prompt has {len(ids)} tokens, but the cache holds whole blocks of {self.kv.block_size}"
            )
        salt, client = checked_salt(cache_salt), checked_client(client)
        [request] = self._sequences(request_id, ids[:whole], params, 0, salt, client, (), None)
        request.prefill_only = True
        answers = [Answer(request, self.tokenizer)]
        self._states[request_id] = RequestState(None, answers, time.monotonic(), self.tokenizer)
        self.scheduler.add(request)

    def _check_request_id(self, request_id: Any) -> None:
        if not isinstance(request_id, str) or not request_id:
            raise InvalidParameterError(
                "request_id", f"request_id is {shown(request_id)}, but must be a non-empty string"
            )
        if request_id in self._states:
            raise InvalidParameterError(
                "request_id", f"request_id {shown(request_id)} is in use by a request that is not finished"
            )

    def save_kv_cache(self) -> int | None:
        """Write the prefix cache to the file of `kv_cache_save`; gives back the number of blocks, None without a file.

        Raises `KVCacheFileError` where it cannot be written. Takes as long as the disk does; no step may run.
        """
        return None if self.saved_cache is None else self.saved_cache.save()

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return self.scheduler.has_requests

    def check_process(self) -> None:
        """Raise `PellucidError` in a forked copy of the process: the kernels' threads are not there, and would be
        waited for without end."""
        if os.getpid() != self._process:
            raise PellucidError("this model was loaded before the process forked: load it again in the new process")

    def step(self) -> list[RequestOutput]:
        """Schedule → guess → run → postprocess. Gives the deltas of the requests that have something new."""
        self.check_process()
        if self._tracing is None:
            self._run(self._schedule())
        else:
            self._tracing.step(self._num_steps, self._schedule, self._run)
        outputs, self._unsent = list(self._unsent.values()), {}
        return outputs

    def _schedule(self) -> SchedulerOutput:
        step = self.scheduler.schedule()
        if not step.scheduled and self.has_unfinished_requests():
            raise AssertionError("requests wait, but the scheduler found nothing to compute")
        self._note_admitted(step.admitted)
        return step

    def _run(self, step: SchedulerOutput) -> None:
        began = time.perf_counter_ns()
        if self.speculator is not None:
            self.speculator.plan(step, self.scheduler)
        results = self.runner.execute(step)
        self._postprocess(results)
        self.scheduler.pace.observe(load_of(step.scheduled), time.perf_counter_ns() - began)
        if self.speculator is not None:
            self.speculator.note_seconds(step, self.runner.seconds)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and free its blocks.

        Gives back its last delta (text held back, finish_reason "abort"), or None when no such request is unfinished.
        """
        state = self._states.get(request_id)
        if state is None:
            return None
        for answer in state.answers:
            if not answer.finished:
                self._emit(state, answer, answer.end("abort"))
        if self._tracing is not None:
            self._tracing.settle()
        return self._unsent.pop(request_id)

    @property
    def tracer(self) -> EngineTracer:
        """What happened in the steps of traced requests: `tracer.reader()`. May be asked for by any thread."""
        with self._tracer_lock:
            if self._tracer is None:
                from pellucid.engine.tracing.tracer import EngineTracer

                self._tracer = EngineTracer(self, self._end_tracing)
            return self._tracer

    def _end_tracing(self) -> None:
        self._tracing = None

    @property
    def stats(self) -> EngineStats:
        """Queues, KV blocks and counters now."""
        pool = self.kv.pool
        return EngineStats(
            num_steps=self._num_steps,
            num_tokens_computed=self._num_tokens_computed,
            num_output_tokens=self._num_output_tokens,
            num_preemptions=self.scheduler.num_preemptions,
            num_waiting=len(self.scheduler.waiting),
            num_running=len(self.scheduler.running),
            kv_blocks_used=pool.num_blocks - self.kv.num_available,
            kv_blocks_cached=self.kv.cache.num_evictable,
            kv_blocks_touched=pool.num_touched,
            kv_blocks_total=pool.num_blocks,
            prefix_cache_queried_tokens=self.scheduler.num_queried_tokens,
            prefix_cache_hit_tokens=self.scheduler.num_hit_tokens,
            prefix_cache_evicted_blocks=self.kv.cache.num_evicted,
            spec_draft_tokens=self._num_draft_tokens,
            spec_accepted_tokens=self._num_accepted_tokens,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when a block, a table or a queue is not as it must be.

        When idle, every block is either free or cached, held once by the cache and used by nobody.
        """
        self.kv.check_integrity()
        if self.has_unfinished_requests():
            return
        if self._states:
            raise AssertionError(f"no sequence is queued, but requests {sorted(self._states)} are not finished")
        if self.kv.num_available != self.kv.pool.num_blocks:
            raise AssertionError(f"the engine is idle, but {self.stats.kv_blocks_used} KV blocks are in use")
        if len(self.kv.cache) and not self.args.enable_prefix_caching:
            raise AssertionError(f"the prefix cache is off, but {len(self.kv.cache)} blocks are left in it")
        if not self.runner.held_keys <= set(self.scheduler.released):
            raise AssertionError(f"the engine is idle, but the runner has rows of {self.runner.held_keys}")

    def _sequences(
        self,
        request_id: str,
        ids: list[int],
        params: SamplingParams,
        priority: int,
        cache_salt: str,
        client: str,
        processors: tuple[LogitsProcessor, ...],
        grammar: CompiledGrammar | None,
    ) -> list[Request]:
        seed = params.seed if params.seed is not None else self._next_seed()
        eos_ids = frozenset() if params.ignore_eos else self.tokenizer.eos_ids
        cache_key: tuple[str, ...] = ()
        if self.args.enable_prefix_caching:
            cache_key = (cache_salt, self.args.kv_cache_dtype, self.args.precision)
        elif params.n > 1:
            cache_key = (f"arrival {self._num_requests}",)
        siblings: list[Request] = []
        for sample_index in range(params.n):
            self._num_sequences += 1
            siblings.append(
                Request(
                    key=self._num_sequences,
                    request_id=request_id,
                    prompt_token_ids=ids,
                    params=params,
                    seed=seed,
                    max_output_tokens=params.max_tokens or self.max_model_len - len(ids),
                    end_token_ids=eos_ids | frozenset(params.stop_token_ids),
                    sample_index=sample_index,
                    arrival=self._num_requests,
                    priority=priority,
                    client=client,
                    logits_processors=processors,
                    constraint=None if grammar is None else grammar.start(),
                    cache_key=cache_key,
                    siblings=siblings,
                )
            )
        self._num_requests += 1
        return siblings

    def _next_seed(self) -> int:
        """A seed for a request without one: in order from the engine's own, else from the operating system."""
        if self.args.seed is not None:
            return (self.args.seed + self._num_requests) % (MAX_SEED + 1)
        return int.from_bytes(os.urandom(8), "little") >> 1

    def _note_admitted(self, admitted: list[Request]) -> None:
        for request in admitted:
            metrics = self._states[request.request_id].metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = time.monotonic()

    def _postprocess(self, results: list[StepResult]) -> None:
        self._num_steps += bool(results)
        for result in results:
            request, entry = result.entry.request, result.entry
            self._num_tokens_computed += entry.num_rows
            if result.is_void:
                if self.speculator is not None:
                    self.speculator.learn(request, (), is_void=True)
                continue
            state = self._states[request.request_id]
            answer = state.answers[request.sample_index]
            if result.error is None and not entry.draws:
                self.scheduler.mark_computed(entry)
            if result.prompt_rows:
                state.add_prompt_rows(request, result.prompt_rows)
            if result.error is not None:
                self._emit(state, answer, answer.end("error", result.error))
            elif request.prefill_only and entry.end == request.num_tokens:
                self._emit(state, answer, answer.end("length"))
        for result, tokens in self.runner.draw(results):
            self._take(result, tokens)

    def _take(self, result: StepResult, tokens: Iterable[SampledToken]) -> None:
        """Give an answer its next tokens, one after the other, until it ends or a draft is not the token drawn."""
        request, entry = result.entry.request, result.entry
        state = self._states[request.request_id]
        answer = state.answers[request.sample_index]
        drawn: list[int] = []
        deltas: list[CompletionOutput] = []
        try:
            for sampled in tokens:
                drawn.append(sampled.token_id)
                state.note_token(request, time.monotonic())
                deltas.append(answer.push(sampled))
                if deltas[-1].finish_reason is not None:
                    break
        finally:  # what was drawn is told, even if an exception ends the step here
            if deltas and result.error is None:
                self.scheduler.mark_computed(entry, len(drawn) - 1)
            if result.error is not None:
                deltas.append(answer.end("error", result.error))
            self._num_output_tokens += len(drawn)
            if self.speculator is not None:
                self._note_drafts(self.speculator, entry, state, drawn)
            for delta in deltas:
                self._emit(state, answer, delta)

    def _note_drafts(
        self, speculator: Speculator, entry: ScheduledRequest, state: RequestState, drawn: list[int]
    ) -> None:
        if entry.draft_token_ids:
            accepted = num_right(entry.draft_token_ids, drawn)
            self._num_draft_tokens += len(entry.draft_token_ids)
            self._num_accepted_tokens += accepted
            state.metrics.num_draft_tokens += len(entry.draft_token_ids)
            state.metrics.num_accepted_tokens += accepted
        speculator.learn(entry.request, drawn)

    def _emit(self, state: RequestState, answer: Answer, completion: CompletionOutput) -> None:
        """Put one answer's delta into its request's output; an answer that ended gives up its blocks."""
        request = answer.request
        output = self._unsent.get(request.request_id)
        if output is None:
            output = self._unsent[request.request_id] = state.output()
        add_completion(output.outputs, completion)
        if completion.finish_reason is not None:
            freed = self.scheduler.finish(request, completion.finish_reason)
            if completion.finish_reason == "error":
                self.storage.clear(freed)
            if self.speculator is not None:
                self.speculator.forget(request.key)
            state.metrics.num_preemptions += request.num_preemptions
            state.num_unfinished -= 1
            if state.num_unfinished == 0:
                output.finished = True
                del self._states[request.request_id]
        output.prompt_logprobs = output.prompt_logprobs or state.take_prompt_logprobs()
