"""AsyncLLM: one thread drives the engine, any number of asyncio tasks wait for its deltas.

The engine is touched by its own thread only. Everything else reaches it as a command, which is carried out between
two steps; what a step gives out goes to the event loops in one call each.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pellucid.engine.llm_engine import EngineStats, LLMEngine
from pellucid.engine.output_processor import add_delta, prefill_output
from pellucid.engine.overflow import SCORING, FittedPrompt, Fitting, given_logprobs
from pellucid.engine.prompts import chat_fitting, is_strict, prompt_fitting
from pellucid.engine.turns import Turns
from pellucid.errors import EngineDeadError, InvalidParameterError, KVCacheFileError, QueueFullError, ShuttingDownError
from pellucid.outputs import PrefillOutput, RequestMetrics, RequestOutput
from pellucid.sampling_params import SamplingParams
from pellucid.trace.reader import TraceReader

if TYPE_CHECKING:
    from typing import Self

DEFAULT_MAX_QUEUE = 256
"""Sequences that may wait for a place beside those that run; a request with n answers is n sequences."""

Observer = Callable[[RequestOutput], None]
"""Is shown every delta, in the engine's thread; must be quick and must not raise."""
_STRICT = SamplingParams()
_NO_OPTIONS: Mapping[str, Any] = {}
_DRAIN_POLL_SECONDS = 0.02


class DeltaStream(AsyncIterator[RequestOutput]):
    """The deltas of one request, or of several that were queued together (told apart by `request_id`).

    Closing it, dropping it, or cancelling the task that waits for it aborts what is not finished.
    """

    def __init__(self, llm: AsyncLLM, request_ids: Sequence[str]) -> None:
        self.request_ids = tuple(request_ids)
        self.loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = self.loop.create_future()
        self.metrics: dict[str, RequestMetrics] = {}
        """Times of the requests that have given something, by id."""
        self._llm = llm
        self._inbox: deque[RequestOutput | BaseException] = deque()
        self._arrived = asyncio.Event()
        self._num_unread = len(self.request_ids)
        """Requests whose last delta has not been read."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._inbox:
            if self._num_unread == 0:
                raise StopAsyncIteration
            self._arrived.clear()
            try:
                await self._arrived.wait()
            except asyncio.CancelledError:
                self.abort()
                raise
        item = self._inbox.popleft()
        if isinstance(item, BaseException):
            self._num_unread = 0
            raise item
        self._num_unread -= item.finished
        return item

    def abort(self) -> None:
        """End what is not finished; no further deltas come. The blocks are free before the next step."""
        if self._num_unread:
            self._num_unread = 0
            self._inbox.clear()
            self._arrived.set()
            self._llm.abort(self)

    async def aclose(self) -> None:
        """As `abort`."""
        self.abort()

    def __del__(self) -> None:
        if self._num_unread:
            self._num_unread = 0
            self._llm.abort(self)

    def receive(self, item: RequestOutput | BaseException | None) -> None:
        """Called in the event loop: a delta, the error that ended everything, or None when the request is queued."""
        if not self.accepted.done():
            if self._num_unread == 0:  # aborted: nobody waits for the answer
                self.accepted.cancel()
                return
            if isinstance(item, BaseException):
                self._num_unread = 0
                self.accepted.set_exception(item)
                return
            self.accepted.set_result(None)
        if isinstance(item, RequestOutput):
            self.metrics[item.request_id] = item.metrics
        if item is not None and self._num_unread:
            self._inbox.append(item)
            self._arrived.set()


@dataclass(frozen=True, slots=True)
class _Add:
    stream: DeltaStream
    prompts: Sequence[FittedPrompt]
    params: Sequence[SamplingParams]
    options: Mapping[str, Any]
    """Further arguments of `LLMEngine.add_request`, or of `add_prefill`."""
    is_prefill: bool = False


@dataclass(frozen=True, slots=True)
class _Abort:
    request_ids: tuple[str, ...]


class AsyncLLM:
    """An engine for asyncio. Make it, use it from event loops, `close` it."""

    def __init__(
        self,
        engine: LLMEngine,
        *,
        max_queue: int = DEFAULT_MAX_QUEUE,
        observer: Observer | None = None,
        turns: Turns | None = None,
    ) -> None:
        """Start the engine's thread; nobody else may use the engine from now on.

        max_queue: sequences that may wait beside the max_num_seqs that run; more raise `QueueFullError`.
        observer: is shown every delta of every request (for metrics).
        turns: shared by the engines of one process, so that they step one after the other.
        """
        if not isinstance(max_queue, int) or isinstance(max_queue, bool) or max_queue < 0:
            raise InvalidParameterError("max_queue", f"max_queue is {max_queue!r}, but must be a whole number from 0")
        self.tokenizer: Any = engine.tokenizer
        self.config, self.args, self.max_model_len = engine.config, engine.args, engine.max_model_len
        self.max_sequences = engine.args.max_num_seqs + max_queue
        """Most sequences that run and wait together."""
        self.observer = observer
        self.memory_bytes = engine.storage.nbytes + getattr(engine.model, "weight_bytes", 0)
        """Weights, and the KV cache when all of it is in use."""
        self._engine = engine
        self._turns: AbstractContextManager[None] = turns or nullcontext()
        self._condition = threading.Condition()
        self._commands: deque[_Add | _Abort] = deque()
        self._in_hand: deque[_Add | _Abort] = deque()
        self._streams: dict[str, weakref.ref[DeltaStream]] = {}
        """By request id; weak, so that a stream that is dropped aborts its requests."""
        self._internal: set[str] = set()
        """Requests that no user made: those that score tokens."""
        self._outbox: dict[asyncio.AbstractEventLoop, list[tuple[DeltaStream, RequestOutput | BaseException | None]]]
        self._outbox = {}
        self.opening_note = None if engine.saved_cache is None else engine.saved_cache.note
        """Why a saved KV cache was not used."""
        self.closing_note: str | None = None
        """Why the KV cache could not be saved."""
        self._is_draining = self._must_stop = False
        self._failure: EngineDeadError | None = None
        self._thread = threading.Thread(target=self._run, name="pellucid-engine", daemon=True)
        self._thread.start()

    # For event loops

    async def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        trace_level: int = 0,
        **template_options: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Deltas of one request: text, token ids, or chat messages (`template_options` are those of `encode_chat`).

        Ending the iteration early aborts the request. Raises as `LLMEngine.add_request`, and `QueueFullError`,
        `ShuttingDownError` or `EngineDeadError`.
        """
        began = time.monotonic()
        params = params or SamplingParams()
        encoded = await self.encode(prompt, params, **template_options)
        stream = await self.submit(
            [encoded], [params], request_id=request_id, arrival_time=began, trace_level=trace_level
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.abort()

    async def encode(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        params: SamplingParams = _STRICT,
        *,
        may_be_too_long: bool = False,
        scoring: Mapping[str, Any] = _NO_OPTIONS,
        **template_options: Any,
    ) -> FittedPrompt:
        """Text or messages → ids, in a thread beside the event loop; ids are taken as they are.

        What does not fit is shortened where `params.overflow` says so; for "compress" the engine scores its tokens,
        in requests with the options `scoring` (those of `submit`). Otherwise raises `ContextLengthExceededError` before
        encoding a text that cannot fit, unless it `may_be_too_long`.
        """
        is_chat = bool(template_options) or (
            not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], Mapping)
        )
        if may_be_too_long:
            return await asyncio.to_thread(self._encode_all, prompt, is_chat, template_options)
        if not is_chat and not isinstance(prompt, str) and is_strict(params):
            return FittedPrompt(prompt)  # type: ignore[arg-type]
        if is_chat:
            fitting = chat_fitting(prompt, template_options, params, self.tokenizer, self.max_model_len)
        else:
            vocab_size = self.config.vocab_size
            fitting = prompt_fitting(prompt, params, self.tokenizer, vocab_size, self.max_model_len)
        fitted = await self._carry_out_fitting(fitting, scoring)
        if not is_chat:
            return fitted
        template = template_options.get("chat_template") or getattr(self.tokenizer, "chat_template", None)
        return replace(fitted, template=template)

    def _encode_all(self, prompt: Any, is_chat: bool, options: Mapping[str, Any]) -> FittedPrompt:
        if not is_chat:
            return (
                FittedPrompt(self.tokenizer.encode(prompt), prompt) if isinstance(prompt, str) else FittedPrompt(prompt)
            )
        from pellucid.tokenizer.chat_template import encode_chat

        chat = encode_chat(self.tokenizer, prompt, **options)
        return FittedPrompt(chat.token_ids, chat.text)

    async def _carry_out_fitting(self, fitting: Fitting, scoring: Mapping[str, Any]) -> FittedPrompt:
        """Let it work in a thread, and score what it asks for."""
        windows, fitted = await asyncio.to_thread(_advance, fitting, None)
        while fitted is None:
            scores = [given_logprobs(await self._score(ids, scoring)) for ids in windows]
            windows, fitted = await asyncio.to_thread(_advance, fitting, scores)
        return fitted

    async def _score(self, ids: list[int], options: Mapping[str, Any]) -> RequestOutput:
        total: RequestOutput | None = None
        stream = await self.submit([FittedPrompt(ids)], [SCORING], is_internal=True, **options)
        try:
            async for output in stream:
                total = add_delta(total, output)
        finally:
            stream.abort()
        if total is None or not total.finished:
            raise ShuttingDownError()
        return total

    async def submit(
        self,
        prompts: Sequence[FittedPrompt],
        params: Sequence[SamplingParams],
        *,
        request_id: str | None = None,
        arrival_time: float | None = None,
        priority: int = 0,
        cache_salt: str = "",
        client: str = "",
        is_internal: bool = False,
        trace_level: int = 0,
    ) -> DeltaStream:
        """Queue one request for each prompt, all of them or none; returns when the engine has taken them.

        Several are named `request_id`-0, -1 and so on. `arrival_time` (time.monotonic()) is when the caller asked, now
        when unset; TTFT counts from it. `priority`, `cache_salt`, `client` and `trace_level` are as in
        `LLMEngine.add_request`. What is internal is shown to no observer. Errors as `generate`.
        """
        arrival_time = time.monotonic() if arrival_time is None else arrival_time
        name = request_id or f"request-{uuid.uuid4().hex}"
        num_sequences = sum(one.n for one in params)
        if num_sequences > self.max_sequences:
            raise InvalidParameterError(
                "n",
                f"the request asks for {num_sequences} answers (n for each prompt), but this engine takes at most "
                f"{self.max_sequences} at a time: ask for fewer",
            )
        for structured_outputs in {one.structured_outputs for one in params if one.structured_outputs is not None}:
            # Here, because a large grammar takes longer than streams should wait for their next token.
            await asyncio.to_thread(self._engine.grammars.compile, structured_outputs)
        stream = DeltaStream(self, [name] if len(prompts) == 1 else [f"{name}-{i}" for i in range(len(prompts))])
        try:
            options = {
                "arrival_time": arrival_time,
                "priority": priority,
                "cache_salt": cache_salt,
                "client": client,
                "trace_level": trace_level,
            }
            if is_internal:
                self._internal.update(stream.request_ids)
            self._post(_Add(stream, prompts, params, options))
            await stream.accepted
        except BaseException:
            self._internal.difference_update(stream.request_ids)
            stream.abort()
            raise
        return stream

    async def prefill(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        *,
        cache_salt: str = "",
        client: str = "",
        **template_options: Any,
    ) -> PrefillOutput:
        """Fill the prefix cache with a prompt that will be asked for, after all that is to be answered.

        Messages are rendered as `generate` would (`continue_final_message=True` leaves the last one open for more).
        Cancelling the task ends it; whole blocks that were computed stay. Raises as `generate`.
        """
        encoded = await self.encode(prompt, **template_options)
        return await self.prefill_ids(encoded.token_ids, cache_salt=cache_salt, client=client)

    async def prefill_ids(self, token_ids: Sequence[int], *, cache_salt: str = "", client: str = "") -> PrefillOutput:
        """`prefill` for what is encoded already."""
        if len(token_ids) < self.args.block_size:
            return PrefillOutput(len(token_ids), 0, 0)
        stream = DeltaStream(self, [f"prefill-{uuid.uuid4().hex}"])
        try:
            options = {"cache_salt": cache_salt, "client": client}
            params = [SamplingParams(max_tokens=1)]
            self._post(_Add(stream, [FittedPrompt(token_ids)], params, options, is_prefill=True))
            await stream.accepted
            async for output in stream:
                if output.finished:
                    return prefill_output(len(token_ids), output)
        finally:
            stream.abort()
        raise ShuttingDownError()

    def abort(self, stream: DeltaStream) -> None:
        """End the stream's requests before the next step. May be called from any thread, at any time."""
        with self._condition:
            if self._failure is None and not self._must_stop:
                self._commands.append(_Abort(stream.request_ids))
                self._condition.notify()

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Take no new requests, give those that run `drain_seconds` to finish, abort the rest, end the thread.

        The prefix cache is saved where `kv_cache_save` is set; `closing_note` says why where it could not be.
        """
        self._is_draining = True
        deadline = time.monotonic() + drain_seconds
        while self.num_unfinished and self.is_alive and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        with self._condition:
            self._must_stop = True
            self._condition.notify()
        await asyncio.to_thread(self._thread.join)

    def trace_reader(self, request_ids: Collection[str] | None = None, *, from_start: bool = True) -> TraceReader:
        """What was noted of traced requests; see `LLM.trace_reader`. from_start: what is there already, too."""
        return self._engine.tracer.reader(request_ids, from_start=from_start)

    @property
    def stats(self) -> EngineStats:
        """Queues, KV blocks and counters now."""
        return self._engine.stats

    @property
    def num_unfinished(self) -> int:
        """Requests taken and not ended."""
        return len(self._streams) + len(self._commands)

    @property
    def is_alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._failure is None and self._thread.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        return self.is_alive and not self._is_draining

    def _post(self, command: _Add) -> None:
        with self._condition:
            if self._failure is not None:
                raise EngineDeadError(str(self._failure))
            if self._is_draining or self._must_stop:
                raise ShuttingDownError()
            self._commands.append(command)
            self._condition.notify()

    # The engine's thread

    def _run(self) -> None:
        engine = self._engine
        try:
            while True:
                with self._condition:
                    while not (self._commands or self._must_stop or engine.has_unfinished_requests()):
                        self._condition.wait()
                    self._in_hand.extend(self._commands)
                    self._commands.clear()
                    must_stop = self._must_stop
                while self._in_hand:
                    self._carry_out(self._in_hand[0], must_stop)
                    self._in_hand.popleft()
                if must_stop:
                    self._abort(tuple(self._streams))
                elif engine.has_unfinished_requests():
                    with self._turns:
                        outputs = engine.step()
                    for output in outputs:
                        self._put(output)
                self._flush()
                if must_stop:
                    self._save_kv_cache()
                    return
        except BaseException as error:
            self._die(error)

    def _save_kv_cache(self) -> None:
        try:
            self._engine.save_kv_cache()
        except KVCacheFileError as error:
            self.closing_note = str(error)

    def _carry_out(self, command: _Add | _Abort, must_stop: bool) -> None:
        if isinstance(command, _Abort):
            self._abort(command.request_ids)
            return
        added: list[str] = []
        try:
            if must_stop:
                raise ShuttingDownError()
            self._check_room(sum(one.n for one in command.params))
            for name, prompt, params in zip(command.stream.request_ids, command.prompts, command.params, strict=True):
                if command.is_prefill:
                    self._engine.add_prefill(name, prompt.token_ids, **command.options)
                else:
                    self._engine.add_request(
                        name,
                        prompt.token_ids,
                        params,
                        prompt_text=prompt.text,
                        overflow=prompt.overflow,
                        template=prompt.template,
                        **command.options,
                    )
                added.append(name)
        except Exception as error:
            for name in added:
                self._engine.abort(name)
            self._send(command.stream, error)
            return
        self._streams.update(dict.fromkeys(added, weakref.ref(command.stream)))
        self._send(command.stream, None)

    def _check_room(self, num_new: int) -> None:
        stats = self._engine.stats
        if stats.num_waiting + stats.num_running + num_new > self.max_sequences:
            raise QueueFullError(stats.num_waiting, stats.num_running)

    def _abort(self, request_ids: tuple[str, ...]) -> None:
        for request_id in request_ids:
            output = self._engine.abort(request_id)
            if output is not None:
                self._put(output)

    def _put(self, output: RequestOutput) -> None:
        is_internal = output.is_prefill or output.request_id in self._internal
        if self.observer is not None and not is_internal:
            self.observer(output)
        known = self._streams.get(output.request_id)
        stream = known() if known is not None else None
        if output.finished:
            self._streams.pop(output.request_id, None)
            self._internal.discard(output.request_id)
        if stream is not None:
            self._send(stream, output)

    def _send(self, stream: DeltaStream, item: RequestOutput | BaseException | None) -> None:
        self._outbox.setdefault(stream.loop, []).append((stream, item))

    def _flush(self) -> None:
        """Hand what has come together to the event loops; a loop that is closed has nobody left who waits."""
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, {}
        for loop, items in outbox.items():
            try:
                loop.call_soon_threadsafe(_receive_all, items)
            except RuntimeError:
                gone = (stream for stream, _ in items)
                self._abort(tuple(name for stream in gone for name in stream.request_ids if name in self._streams))

    def _die(self, error: BaseException) -> None:
        """Tell everyone who waits; nothing is taken from now on."""
        failure = EngineDeadError(f"the engine has stopped after an error: {type(error).__name__}: {error}")
        failure.__cause__ = error
        with self._condition:
            self._failure = failure
            commands = [*self._in_hand, *self._commands]
            self._commands.clear()
        streams = {stream for known in self._streams.values() if (stream := known()) is not None}
        streams |= {command.stream for command in commands if isinstance(command, _Add)}
        self._streams.clear()
        for stream in streams:
            self._send(stream, EngineDeadError(str(failure)))
        self._flush()


def _advance(fitting: Fitting, scores: list[list[float]] | None) -> tuple[list[list[int]], FittedPrompt | None]:
    """The next windows to score, or the prompt: StopIteration cannot pass through a future."""
    try:
        return next(fitting) if scores is None else fitting.send(scores), None
    except StopIteration as done:
        return [], done.value


def _receive_all(items: Sequence[tuple[DeltaStream, RequestOutput | BaseException | None]]) -> None:
    for stream, item in items:
        stream.receive(item)
