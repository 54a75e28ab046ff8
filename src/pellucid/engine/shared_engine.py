"""SharedEngine: an engine that several threads use, one at a time, each for its own requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from pellucid.engine.interrupt import interrupt_after_step
from pellucid.engine.llm_arguments import RequestOptions
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.output_processor import add_delta, prefill_output
from pellucid.engine.overflow import FittedPrompt
from pellucid.engine.progress import Progress, ProgressBar
from pellucid.errors import PellucidError
from pellucid.outputs import PrefillOutput, RequestOutput
from pellucid.sampling_params import SamplingParams


class SharedEngine:
    """Requests of several threads share the steps; whoever waits makes them, and hands out what others wait for."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine: LLMEngine | None = engine
        self._inboxes: dict[str, deque[RequestOutput]] = {}
        self._num_requests = 0
        self._lock = threading.Lock()
        self._holder: int | None = None
        """The thread that has the engine now."""
        self._dropped: deque[str] = deque()
        """Requests whose streams were dropped while the engine was busy."""

    @property
    def engine(self) -> LLMEngine:
        """The engine underneath. Raises `PellucidError` after `close`."""
        if self._engine is None:
            raise PellucidError("this LLM is closed: make a new one")
        return self._engine

    def close(self) -> None:
        """Abort what runs, save the prefix cache, let go of the engine. Raises `KVCacheFileError`."""
        self.abort_all(self._inboxes)
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.save_kv_cache()

    @contextmanager
    def alone(self) -> Iterator[LLMEngine]:
        """The engine, for one thread at a time; Ctrl-C waits until it is left again."""
        if self._holder == threading.get_ident():
            raise PellucidError("an LLM cannot be used from inside its own step, as by a logits processor")
        self.engine.check_process()
        with interrupt_after_step(), self._lock:
            self._holder = threading.get_ident()
            try:
                self._abort_dropped()
                yield self.engine
            finally:
                self._holder = None

    def submit(
        self,
        prompt: FittedPrompt,
        params: SamplingParams,
        arrival_time: float,
        inbox: deque[RequestOutput],
        queued: Callable[[str], None],
        options: RequestOptions,
        request_id: str | None = None,
    ) -> None:
        """Queue a request; `queued` is told its name before a Ctrl-C can come between."""
        with self.alone() as engine:
            name = self._free_name() if request_id is None else request_id
            engine.add_request(
                name,
                prompt.token_ids,
                params,
                prompt_text=prompt.text,
                overflow=prompt.overflow,
                arrival_time=arrival_time,
                cache_salt=options.cache_salt,
                logits_processors=options.logits_processors,
                trace_level=options.trace_level,
                template=options.template,
            )
            self._inboxes[name] = inbox
            queued(name)

    def run(
        self,
        prompts: Sequence[FittedPrompt],
        params: Sequence[SamplingParams],
        arrival_time: float,
        progress: bool | Progress,
        options: RequestOptions,
    ) -> list[RequestOutput]:
        """Queue all prompts, step until all are finished; whatever goes wrong, none of them stays behind."""
        inbox: deque[RequestOutput] = deque()
        totals: dict[str, RequestOutput | None] = {}
        num_finished = 0
        try:
            for prompt, one in zip(prompts, params, strict=True):
                self.submit(
                    prompt,
                    one,
                    arrival_time,
                    inbox,
                    lambda name: totals.update({name: None}),
                    options,
                )
            with ProgressBar(progress, len(prompts)) as show:
                while num_finished < len(prompts):
                    if not inbox:
                        self.step()
                    while inbox:
                        delta = inbox.popleft()
                        totals[delta.request_id] = add_delta(totals[delta.request_id], delta)
                        num_finished += delta.finished
                        if delta.finished:
                            show(num_finished, len(prompts))
        finally:
            self.abort_all(totals)
        return [total for total in totals.values() if total is not None]

    def step(self) -> None:
        """One engine step; every delta goes to the one who waits for it."""
        with self.alone() as engine:
            for output in engine.step():
                inbox = self._inboxes.get(output.request_id)
                if inbox is not None:
                    inbox.append(output)
                if output.finished:
                    self._inboxes.pop(output.request_id, None)

    def prefill(self, token_ids: Sequence[int], cache_salt: str) -> PrefillOutput:
        """Compute what the prefix cache lacks of a prompt."""
        if len(token_ids) < self.engine.args.block_size:
            return PrefillOutput(len(token_ids), 0, 0)
        inbox: deque[RequestOutput] = deque()
        name = ""
        try:
            with self.alone() as engine:
                name = self._free_name()
                engine.add_prefill(name, token_ids, cache_salt=cache_salt)
                self._inboxes[name] = inbox
            while not inbox:
                self.step()
        finally:
            self.abort_all([name])
        return prefill_output(len(token_ids), inbox[0])

    def abort(self, request_id: str) -> None:
        """End a request; its inbox gets one last output with finish_reason "abort". Unknown ids are no error."""
        if self._engine is not None:
            with self.alone():
                self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        inbox = self._inboxes.pop(request_id, None)
        output = None if self._engine is None else self._engine.abort(request_id)
        if output is not None and inbox is not None:
            inbox.append(output)

    def abort_all(self, request_ids: Iterable[str]) -> None:
        """Abort those that are not finished, in one piece: a Ctrl-C between two would leave the others behind."""
        left = [request_id for request_id in request_ids if request_id in self._inboxes]
        if left and self._engine is not None:
            with self.alone():
                for request_id in left:
                    self._abort(request_id)

    def drop(self, request_id: str) -> None:
        """Abort a request nobody waits for, now or when the engine is free: the garbage collector comes at any time."""
        self._dropped.append(request_id)
        if self._engine is not None and self._lock.acquire(blocking=False):
            try:
                with interrupt_after_step():
                    self._abort_dropped()
            finally:
                self._lock.release()

    def _abort_dropped(self) -> None:
        while self._dropped:
            self._abort(self._dropped.popleft())

    def _free_name(self) -> str:
        while True:
            name = f"request-{self._num_requests}"
            self._num_requests += 1
            if name not in self._inboxes:
                return name
