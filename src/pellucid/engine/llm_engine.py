"""LLMEngine: requests in, deltas out, one step at a time. Not thread-safe: one thread drives it."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.config import EngineArgs
from pellucid.engine.engine_stats import EngineStats
from pellucid.engine.intake import Intake, NewRequest
from pellucid.engine.model_runner import Model, ModelRunner
from pellucid.engine.output_processor import Answer, RequestState, TokenizerLike
from pellucid.engine.postprocessor import Postprocessor
from pellucid.engine.scheduler import Scheduler, SchedulerOutput, load_of
from pellucid.engine.speculation.speculator import make_speculator
from pellucid.engine.step_pace import StepPace, pair_ratio
from pellucid.engine.validation import check_generates, checked_trace_level
from pellucid.errors import InvalidParameterError, PellucidError, PellucidWarning, shown
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.sizing import beyond_training, kv_bytes_per_token, resolve_max_model_len, resolve_num_blocks
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.outputs import Overflow, RequestMetrics, RequestOutput
from pellucid.request import LogitsProcessor
from pellucid.sampling.constraints.compiler import GrammarCompiler
from pellucid.sampling_params import SamplingParams

if TYPE_CHECKING:
    from typing import Self

    from pellucid.engine.saved_cache import SavedCache
    from pellucid.engine.tracing.tracer import EngineTracer


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
            warnings.warn(warning, PellucidWarning, stacklevel=2)
        draft_config = None if draft_model is None else draft_model.config
        num_blocks = resolve_num_blocks(config, args, self.max_model_len, draft_config)
        self.kv_cache_bytes = num_blocks * args.block_size * kv_bytes_per_token(config, args, draft_config)
        """Of the model and the draft model, when all blocks are in use."""
        self.weight_bytes: int = sum(getattr(one, "weight_bytes", 0) for one in (model, draft_model))
        """Of both."""
        self.storage = KVCacheStorage.for_model(config, num_blocks, args.block_size, args.kv_cache_dtype)
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
        self.speculator = make_speculator(args, model, tokenizer, draft_model, num_blocks, self.max_model_len)
        self._intake = Intake(args, tokenizer, config.vocab_size, self.max_model_len)
        self._postprocessor = Postprocessor(self.scheduler, self.runner, self.storage, self.speculator)
        self._tracer: EngineTracer | None = None
        self._tracer_lock = threading.Lock()
        self._tracing: EngineTracer | None = None
        """The tracer, while a traced request is not finished."""
        self._process = os.getpid()
        self._num_integrity_faults = 0
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
        if args.kv_cache_save is not None:
            from pellucid.kv_cache.saved import check_is_ours

            check_is_ours(Path(args.kv_cache_save))  # a mistyped name is told before the model is loaded
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
        trace_level = checked_trace_level(trace_level)
        new = self._intake.request(
            request_id,
            prompt,
            params,
            prompt_text=prompt_text,
            priority=priority,
            cache_salt=cache_salt,
            client=client,
            logits_processors=logits_processors,
            overflow=overflow,
        )
        answers: Sequence[Answer] | None = None
        if trace_level:
            answers = self.tracer.begin(new.sequences, new.text, template, arrival_time, trace_level)
            self._tracing = self.tracer
        self._queue(request_id, new, arrival_time, answers)

    def add_prefill(self, request_id: str, token_ids: Sequence[int], *, cache_salt: str = "", client: str = "") -> None:
        """Queue a prompt that only fills the prefix cache, in whole blocks, after everything that is to be answered.

        It ends with finish_reason "length" and no token. Raises `ContextLengthExceededError`, or
        `InvalidParameterError`, also for a prompt shorter than a block, or without a prefix cache.
        """
        self._check_request_id(request_id)
        new = self._intake.prefill(request_id, token_ids, cache_salt=cache_salt, client=client)
        self._queue(request_id, new, time.monotonic())

    def _queue(
        self, request_id: str, new: NewRequest, arrival_time: float, answers: Sequence[Answer] | None = None
    ) -> None:
        """`answers` are those of a traced request."""
        reading = [Answer(one, self.tokenizer) for one in new.sequences] if answers is None else list(answers)
        state = RequestState(new.text, reading, arrival_time, self.tokenizer, new.overflow)
        self._postprocessor.states[request_id] = state
        for request in new.sequences:
            self.scheduler.add(request)

    def _check_request_id(self, request_id: Any) -> None:
        check_generates(self.config)
        if not isinstance(request_id, str) or not request_id:
            raise InvalidParameterError(
                "request_id", f"request_id is {shown(request_id)}, but must be a non-empty string"
            )
        if request_id in self._postprocessor.states:
            raise InvalidParameterError(
                "request_id", f"request_id {shown(request_id)} is in use by a request that is not finished"
            )

    def save_kv_cache(self) -> int | None:
        """Write the prefix cache to the file of `kv_cache_save`; gives back the number of blocks, None without a file.

        Raises `KVCacheFileError` where it cannot be written. Takes as long as the disk does; no step may run.
        """
        return None if self.saved_cache is None else self.saved_cache.save()

    @property
    def grammars(self) -> GrammarCompiler:
        """For structured_outputs; its `compile` may be called from any thread."""
        return self._intake.grammars

    def metrics_of(self, request_id: str) -> RequestMetrics:
        """The times of a request that is not finished; they go on until it is."""
        return self._postprocessor.states[request_id].metrics

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
            self._tracing.step(self._postprocessor.num_steps, self._schedule, self._run)
        return self._postprocessor.take_outputs()

    def _schedule(self) -> SchedulerOutput:
        step = self.scheduler.schedule()
        if not step.scheduled and self.has_unfinished_requests() and not self.scheduler.is_shared:
            raise AssertionError("requests wait, but the scheduler found nothing to compute")
        self._postprocessor.note_admitted(step.admitted)
        return step

    def _run(self, step: SchedulerOutput) -> None:
        began = time.perf_counter_ns()
        if self.speculator is not None:
            self.speculator.plan(step, self.scheduler)
        results = self.runner.execute(step)
        if not step.scheduled:
            return
        self._postprocessor.take(results)
        self.scheduler.pace.observe(load_of(step.scheduled), time.perf_counter_ns() - began)
        if self.speculator is not None:
            self.speculator.note_seconds(step, self.runner.seconds)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and free its blocks.

        Gives back its last delta (text held back, finish_reason "abort"), or None when no such request is unfinished.
        """
        if not self._postprocessor.abort(request_id):
            return None
        if self._tracing is not None:
            self._tracing.settle()
        return self._postprocessor.take_output_of(request_id)

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
        pool, done = self.kv.pool, self._postprocessor
        return EngineStats(
            num_steps=done.num_steps,
            num_tokens_computed=done.num_tokens_computed,
            num_output_tokens=done.num_output_tokens,
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
            spec_draft_tokens=done.num_draft_tokens,
            spec_accepted_tokens=done.num_accepted_tokens,
            kv_integrity_faults=self._num_integrity_faults,
        )

    def repair_when_idle(self) -> str | None:
        """Check an engine without requests; where its accounts are wrong, begin anew with an empty KV cache.

        Gives back what was wrong. A block in doubt is worth less than the right answer to the next request.
        """
        try:
            self.check_integrity()
        except AssertionError as error:
            self._num_integrity_faults += 1
            self.kv.reset()
            self.scheduler.released.extend(self.runner.held_keys.difference(self.scheduler.released))
            return str(error)
        return None

    def check_integrity(self) -> None:
        """Raise AssertionError when a block, a table or a queue is not as it must be.

        When idle, every block is either free or cached, held once by the cache and used by nobody.
        """
        self.kv.check_integrity()
        if self.has_unfinished_requests():
            return
        if self._postprocessor.states:
            raise AssertionError(
                f"no sequence is queued, but requests {sorted(self._postprocessor.states)} are not finished"
            )
        if self.kv.num_available != self.kv.pool.num_blocks:
            raise AssertionError(f"the engine is idle, but {self.stats.kv_blocks_used} KV blocks are in use")
        if len(self.kv.cache) and not self.args.enable_prefix_caching:
            raise AssertionError(f"the prefix cache is off, but {len(self.kv.cache)} blocks are left in it")
        if not self.runner.held_keys <= set(self.scheduler.released):
            raise AssertionError(f"the engine is idle, but the runner has rows of {self.runner.held_keys}")
