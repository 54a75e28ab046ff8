"""EngineTracer: takes the engine's place in the steps of traced requests, and writes what happened into the ring.

An engine without traced requests does not know it: `LLMEngine.step` looks once whether there is one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from pellucid.config import EngineArgs, ModelConfig
from pellucid.engine.model_runner import ModelRunner
from pellucid.engine.output_processor import Answer
from pellucid.engine.scheduler import ScheduledRequest, Scheduler, SchedulerOutput
from pellucid.engine.speculation.drafts import num_right
from pellucid.engine.tracing.blocks import BlockHashes, CachedPaths, HeldRecord, HeldTable, KvOperation, KvRecord
from pellucid.engine.tracing.header import header_of
from pellucid.engine.tracing.layers import LayerProbe, WatchedRows, layer_records
from pellucid.engine.tracing.memory import Memory
from pellucid.engine.tracing.records import (
    EmitRecord,
    FinishRecord,
    LayerRecord,
    RequestRecord,
    SampleRecord,
    SpecRecord,
    StepRecord,
)
from pellucid.engine.tracing.request_trace import RequestTrace, StepTimes
from pellucid.engine.tracing.watchers import TracedAnswer, TracedModel, TracedSampler
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.outputs import CompletionOutput
from pellucid.request import Request
from pellucid.sampling.waterfall import Waterfall
from pellucid.trace.events import LAYERS, Event
from pellucid.trace.reader import TraceReader
from pellucid.trace.ring import TraceRing

Seqs = Sequence[tuple[Request, int, int, int]]
"""Of each request in a step: first position, rows without drafts, tokens that its output had before."""
MAX_BEGUN = 1 << 16
"""Requests of which it is known where they begin: as many as the ring has places."""
MAX_WAITING_TOLD = 256
"""Waiting requests that a step names."""


class TracedEngine(Protocol):
    """What the tracer reads of an engine."""

    args: EngineArgs
    config: ModelConfig
    tokenizer: Any
    model: Any
    max_model_len: int
    storage: KVCacheStorage
    kv: KVCacheManager
    scheduler: Scheduler
    runner: ModelRunner
    speculator: Any


class EngineTracer:
    """Owns the ring. Used by the engine's thread; `reader` by any."""

    def __init__(self, engine: TracedEngine, on_idle: Callable[[], None]) -> None:
        """on_idle: called when no traced request is left."""
        self.ring = TraceRing()
        self.times = StepTimes(0)
        self._traced_ns = 0
        """What all this took in the steps so far."""
        self._engine = engine
        self._on_idle = on_idle
        self._traces: dict[str, RequestTrace] = {}
        self._begun: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Of the newest requests: the place in the ring at which they begin, and their level."""
        self._opening: list[RequestTrace] = []
        """Those without a token."""
        self._num_layered = 0
        """Those at level 3."""
        self._sequences: dict[int, tuple[RequestTrace, Request]] = {}
        """By the identity of its list of output ids."""
        self._ended: list[tuple[TracedAnswer, CompletionOutput]] = []
        self._samples: list[SampleRecord] = []
        self._emits: list[EmitRecord] = []
        self._blocks: list[KvOperation] = []
        self._requests: dict[int, Request] = {}
        """Sequences whose blocks were told of, by key."""
        self._hashes: dict[int, BlockHashes] = {}
        self._paths: CachedPaths | None = None
        self._memory = Memory(engine)
        self._model: TracedModel | None = None
        self._sampler: TracedSampler | None = None
        self._header: Event | None = None

    # For readers

    def reader(self, request_ids: Collection[str] | None = None, *, from_start: bool = True) -> TraceReader:
        """A reader of all requests, or of some; see `TraceReader`. May be called from any thread."""
        begin = None
        if request_ids is not None and from_start:
            known = [found[0] for name in list(request_ids) if (found := self._begun.get(name)) is not None]
            begin = min(known, default=None)
        place = self.ring.tail if from_start else self.ring.head
        return TraceReader(
            self.ring,
            lambda: self.header(request_ids, place),
            request_ids,
            self._piece_of,
            from_start=from_start,
            begin=begin,
        )

    def header(self, request_ids: Collection[str] | None = None, place: int = 0) -> Event:
        """The first event of a trace of these requests; of all that ran at `place` in the ring or after it."""
        if self._header is None:
            self._header = header_of(self._engine, 0)
        if request_ids is None:
            levels = [
                level for name, (begun, level) in list(self._begun.items()) if begun >= place or name in self._traces
            ]
        else:
            levels = [found[1] for name in list(request_ids) if (found := self._begun.get(name)) is not None]
        return {**self._header, "level": max(levels, default=0)}

    def _piece_of(self, token_id: int) -> bytes:
        """The bytes of a token; none for rows of the embedding that are no token."""
        tokenizer = self._engine.tokenizer
        is_token = token_id < getattr(tokenizer, "vocab_size", self._engine.config.vocab_size)
        piece: bytes = tokenizer.token_bytes(token_id) if is_token else b""
        return piece

    # For the engine

    def begin(
        self,
        requests: Sequence[Request],
        prompt: str | None,
        template: str | None,
        arrival_time: float,
        level: int,
    ) -> list[Answer]:
        """A request at a level of 1 or more, about to be queued: the answers that take its tokens."""
        name = requests[0].request_id
        trace = RequestTrace(
            request_id=name,
            level=level,
            arrive_ns=round(arrival_time * 1e9),
            queued_ns=time.monotonic_ns(),
            prompt=prompt,
            template=template,
            requests=list(requests),
            num_unfinished=len(requests),
            traced_before_ns=self._traced_ns,
        )
        self._begun[name] = (self.ring.head, level)
        self._begun.move_to_end(name)
        if len(self._begun) > MAX_BEGUN:
            self._begun.popitem(last=False)
        self._traces[name] = trace
        self._opening.append(trace)
        self._num_layered += level >= LAYERS
        for request in requests:
            self._sequences[id(request.output_token_ids)] = (trace, request)
        self._append_request(trace, lambda: not trace.is_told)
        self._install()
        self._tell_held(name)
        return [TracedAnswer(request, self._engine.tokenizer, trace, self) for request in requests]

    def step(
        self, number: int, schedule: Callable[[], SchedulerOutput], run: Callable[[SchedulerOutput], None]
    ) -> None:
        """One step, number `number`: schedule, run (model, draws, outputs), and tell."""
        times = self.times = StepTimes(time.monotonic_ns())
        model = self._model
        try:
            step = schedule()
            times.scheduled = times.computed = time.monotonic_ns()
            waiting = self._waiting() if self._engine.scheduler.waiting else ()
            seqs = [
                (entry.request, entry.start, entry.num_new_tokens, len(entry.request.output_token_ids))
                for entry in step.scheduled
            ]
            if self._num_layered and model is not None and self._wants_layers(step):
                model.probe = _Later(self, step)
            run(step)
            times.end = time.monotonic_ns()
            self._tell(number, step, seqs, waiting)
        finally:
            if model is not None:
                model.probe = None
            if self._sampler is not None:
                self._sampler.forget()
            self._samples.clear()
            self._emits.clear()
            for trace in self._opening:
                trace.end_step()

    def settle(self) -> None:
        """Tell what ended outside a step, once its blocks are free."""
        self._flush_texts(0)
        self._tell_ends()

    # For the watchers

    def sequence(self, output_token_ids: list[int]) -> tuple[RequestTrace, Request] | None:
        """The traced sequence whose output this list is."""
        return self._sequences.get(id(output_token_ids))

    def before_logits(self) -> None:
        """See `Listener`."""
        if self._sampler is not None:
            began = time.monotonic_ns()
            self._sampler.settle()
            self.times.tracing += time.monotonic_ns() - began

    def drew(self, trace: RequestTrace, request: Request, drawn: Waterfall | None) -> None:
        """A token was drawn, and is not in the request's output yet."""
        if drawn is not None:
            token_bytes = self._engine.tokenizer.token_bytes(drawn.token_id)
            self._samples.append(SampleRecord(request, 0, request.num_tokens, drawn, token_bytes))

    def pushed(self, answer: TracedAnswer, completion: CompletionOutput, nanoseconds: int) -> None:
        """An answer has taken a token."""
        self.times.detok += nanoseconds
        answer.trace.detok_ns += nanoseconds
        self._note_text(answer, completion)
        if completion.finish_reason is not None:
            self._ended.append((answer, completion))

    def ended(self, answer: TracedAnswer, completion: CompletionOutput) -> None:
        """An answer has ended without a further token: it failed, or was aborted, which happens between steps."""
        if completion.text:
            self._note_text(answer, completion)
        self._ended.append((answer, completion))

    def on_block(self, op: str, key: int | None, index: int, block: int, num_tokens: int) -> None:
        """See `KVWatcher`."""
        reference = self._engine.kv.pool.ref_count(block)
        told = KvOperation(time.monotonic_ns(), op, key, index, block, reference, num_tokens)
        if self._paths is not None:
            if op == "cache":
                self._paths.cached(block)
            elif op == "preempt":
                told.path = self._paths.of(block)
            elif op == "evict":
                told.path = self._paths.evicted(block)
        self._blocks.append(told)

    # Within

    def _install(self) -> None:
        engine = self._engine
        if self._model is not None:
            return
        runner = engine.runner
        self._model, self._sampler = TracedModel(runner.model, self), TracedSampler(runner.sampler, self)
        runner.model, runner.sampler = self._model, self._sampler
        engine.kv.watcher = self
        self._paths = CachedPaths(engine.kv.cache)

    def _uninstall(self) -> None:
        runner, kv = self._engine.runner, self._engine.kv
        if self._model is not None and self._sampler is not None:
            runner.model, runner.sampler = self._model.model, self._sampler.sampler
        self._model = self._sampler = None
        kv.watcher = self._paths = None
        self._requests.clear()
        self._hashes.clear()
        self._on_idle()

    def _wants_layers(self, step: SchedulerOutput) -> bool:
        if not hasattr(self._engine.model, "attention_params"):
            return False
        return any(self._level_of(entry.request) >= LAYERS for entry in step.scheduled)

    def _level_of(self, request: Request) -> int:
        found = self._sequences.get(id(request.output_token_ids))
        return 0 if found is None else found[0].level

    def _waiting(self) -> list[tuple[str, str]]:
        scheduler = self._engine.scheduler
        told = scheduler.waiting[:MAX_WAITING_TOLD]
        reason = scheduler.why_waiting(told[0])  # the others wait behind it
        return [(request.request_id, reason) for request in told]

    def _note_text(self, answer: TracedAnswer, completion: CompletionOutput) -> None:
        end = answer.request.num_tokens
        held, reason = answer.held
        span = (answer.first_held, end)
        self._emits.append(EmitRecord(answer.request, time.monotonic_ns(), span, completion.text, held, reason))
        if not held:
            answer.first_held = end
        elif completion.text:
            answer.first_held = end - 1

    def _tell(self, number: int, step: SchedulerOutput, seqs: Seqs, waiting: Sequence[tuple[str, str]]) -> None:
        """All but what comes after it waits for `end`: what the tracer itself took is a part of the step."""
        if self._opening:
            self._tell_requests(seqs)
        if self._blocks:
            self._flush_blocks(seqs)
            self._tell_memory(always=False)
        if self._sampler is not None:
            self._sampler.settle()
        layers = self._layers(number, seqs)  # the lens overwrites the logits
        self.times.trace_until(time.monotonic_ns())
        if self._opening:
            self._account(step, seqs)
        if seqs:
            most = self._engine.args.max_num_batched_tokens
            self.ring.append(StepRecord(number, self.times, most, step.is_cut, seqs, waiting), 64 * len(seqs))
        if self._engine.speculator is not None:
            for entry, (request, _, _, before) in zip(step.scheduled, seqs, strict=True):
                if entry.draft_token_ids and id(request.output_token_ids) in self._sequences:
                    self._tell_drafts(number, entry, before)
        self._flush_texts(number)
        for record in layers:
            self.ring.append(record, record.nbytes)
        self._note_delay()
        if self._ended:
            self._tell_ends()

    def _tell_requests(self, seqs: Seqs) -> None:
        """Those that run for the first time."""
        running = {request.request_id for request, _, _, _ in seqs}
        for trace in self._opening:
            self._tell_request(trace, trace.request_id in running)

    def _account(self, step: SchedulerOutput, seqs: Seqs) -> None:
        """Add the step to the TTFT of those without a token."""
        rows: dict[str, int] = {}
        drawn = 0
        for entry, (request, _, _, before) in zip(step.scheduled, seqs, strict=True):
            rows[request.request_id] = rows.get(request.request_id, 0) + entry.num_rows
            drawn += len(request.output_token_ids) - before
        num_rows = sum(rows.values())
        for trace in self._opening:
            trace.account(self.times, rows.get(trace.request_id, 0), num_rows, drawn, self._traced_ns)

    def _tell_drafts(self, number: int, entry: ScheduledRequest, num_before: int) -> None:
        drawn = entry.request.output_token_ids[num_before:]
        if not drawn:
            return
        draft = list(entry.draft_token_ids)
        accepted = num_right(draft, drawn)
        proposer = self._engine.speculator.proposers[entry.request.key]
        bonus = drawn[accepted] if accepted < len(drawn) else -1
        record = SpecRecord(entry.request, number, proposer, draft, accepted, bonus)
        self.ring.append(record, record.nbytes)

    def _flush_texts(self, number: int) -> None:
        for sample in self._samples:
            sample.step = number
            self.ring.append(sample, sample.nbytes)
        for emitted in self._emits:
            self.ring.append(emitted, emitted.nbytes)
        self._samples.clear()
        self._emits.clear()

    def _tell_request(self, trace: RequestTrace, is_in_step: bool) -> None:
        if trace.is_told or not is_in_step:
            return
        self._append_request(trace)
        trace.is_told = True
        self._tell_memory(always=True)

    def _append_request(self, trace: RequestTrace, is_queued: Callable[[], bool] | None = None) -> None:
        first = trace.requests[0]
        cached = first.num_cached_tokens or 0
        tokenizer = self._engine.tokenizer
        whose = (first, trace.level, trace.arrive_ns, trace.prompt, trace.template)
        record = RequestRecord(*whose, cached, tokenizer, is_queued)
        self.ring.append(record, record.nbytes)

    def _tell_memory(self, *, always: bool) -> None:
        record = self._memory.record(always=always)
        if record is not None:
            self.ring.append(record)

    def _layers(self, number: int, seqs: Seqs) -> list[LayerRecord]:
        later = None if self._model is None else self._model.probe
        if not isinstance(later, _Later) or later.probe is None:
            return []
        engine = self._engine
        before = {request.key: num_output for request, _, _, num_output in seqs}
        valid = []
        for rows in later.watched:
            request = rows.entry.request
            drawn = len(request.output_token_ids) - before[request.key]
            rows.has_failed = request.finish_reason == "error"
            valid.append(rows.entry.num_new_tokens + max(0, drawn - 1))
        limit = engine.runner.max_logits_rows
        return layer_records(later.probe, later.watched, valid, engine.model, engine.storage, number, limit)

    def _flush_blocks(self, seqs: Seqs = ()) -> None:
        operations, self._blocks = self._blocks, []
        if not operations:
            return
        for request, _, _, _ in seqs:
            self._requests[request.key] = request
        size = self._engine.kv.block_size
        for one in operations:
            holder = None if one.key is None else self._requests.get(one.key) or self._find(one.key)
            if holder is not None and one.key is not None:
                one.request = holder
                one.hashes = self._hashes.setdefault(one.key, BlockHashes(holder, size))
        record = KvRecord(operations, size)
        self.ring.append(record, record.nbytes)

    def _tell_held(self, name: str) -> None:
        """What is in use when the tracing of a request begins, whoever has it."""
        kv, scheduler, paths = self._engine.kv, self._engine.scheduler, self._paths
        tables = kv.tables()
        if not tables or paths is None:
            return
        self._flush_blocks()
        holders = {request.key: request for request in (*scheduler.running, *scheduler.waiting)}
        held = []
        for key, blocks in tables.items():
            request, refs = holders.get(key), [kv.pool.ref_count(block) for block in blocks]
            count = 0 if request is None else request.num_computed_tokens
            held.append(HeldTable(request, count, blocks, refs, [paths.of(block) for block in blocks]))
        record = HeldRecord(time.monotonic_ns(), held, kv.block_size, (name,))
        self.ring.append(record, record.nbytes)

    def _note_delay(self) -> None:
        nanoseconds = time.monotonic_ns() - self.times.end
        self._traced_ns += self.times.all_tracing + nanoseconds
        for trace in self._opening:
            trace.delay(nanoseconds)
        self._opening = [trace for trace in self._opening if trace.ttft_ns is None]

    def _find(self, key: int) -> Request | None:
        scheduler = self._engine.scheduler
        return next((r for r in (*scheduler.running, *scheduler.waiting) if r.key == key), None)

    def _tell_ends(self) -> None:
        ended, self._ended = self._ended, []
        for answer, completion in ended:
            trace, request = answer.trace, answer.request
            self._tell_request(trace, True)
            self._flush_blocks()
            self.ring.append(
                FinishRecord(
                    request,
                    completion,
                    self._stop_id(request, completion),
                    trace.ttft_ns,
                    trace.ttft_parts,
                    trace.token_times.get(request.key, []),
                )
            )
            self._sequences.pop(id(request.output_token_ids), None)
            trace.num_unfinished -= 1
            if trace.num_unfinished == 0:
                self._traces.pop(trace.request_id, None)
                self._num_layered -= trace.level >= LAYERS
                self._opening = [other for other in self._opening if other is not trace]
                self._tell_memory(always=True)
        if ended and not self._traces:
            self._uninstall()

    def _stop_id(self, request: Request, completion: CompletionOutput) -> int | None:
        """The token that ended an answer."""
        if completion.finish_reason != "stop" or isinstance(completion.stop_reason, str):
            return None
        last = request.output_token_ids[-1] if request.output_token_ids else None
        return last if last in request.end_token_ids else None


class _Later:
    """A probe that is made when the forward pass begins: drafts join the step after it is scheduled."""

    def __init__(self, tracer: EngineTracer, step: SchedulerOutput) -> None:
        self._tracer, self._step = tracer, step
        self.watched: list[WatchedRows] = []
        self.probe: LayerProbe | None = None

    def wants(self, name: str) -> bool:
        began = time.monotonic_ns()
        if self.probe is None:
            first = 0
            for entry in self._step.scheduled:
                if self._tracer._level_of(entry.request) >= LAYERS:
                    self.watched.append(WatchedRows(entry, first))
                first += entry.num_rows
            self.probe = LayerProbe(self._tracer._engine.config, self.watched)
        wanted = self.probe.wants(name)
        self._tracer.times.probe += time.monotonic_ns() - began
        return wanted

    def record(self, name: str, tensor: Any) -> None:
        if self.probe is not None:
            began = time.monotonic_ns()
            self.probe.record(name, tensor)
            self._tracer.times.probe += time.monotonic_ns() - began
