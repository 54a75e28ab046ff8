"""AsyncLLM: the engine for asyncio. One thread drives it, any number of tasks wait for their deltas."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pellucid.engine.embedding_jobs import EmbeddingJobs
from pellucid.engine.engine_stats import EngineStats
from pellucid.engine.engine_thread import AddJob, AddRequests, EngineThread, Observer
from pellucid.engine.jobs import Job
from pellucid.engine.llm_arguments import Prompt, encoded_prompts
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.output_processor import add_delta, prefill_output
from pellucid.engine.overflow import SCORING, FittedPrompt, Fitting, given_logprobs
from pellucid.engine.prompts import chat_fitting, is_strict, prompt_fitting
from pellucid.engine.side_work import LARGE, SideWork, text_size
from pellucid.engine.streams import DeltaStream, Stream
from pellucid.engine.turns import Turns
from pellucid.engine.validation import check_generates
from pellucid.errors import EngineDeadError, InvalidParameterError, ShuttingDownError
from pellucid.outputs import PrefillOutput, RequestOutput
from pellucid.pooling_params import EmbeddingOutput, PoolingParams, checked_pooling_params
from pellucid.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pellucid.trace.reader import TraceReader

DEFAULT_MAX_QUEUE = 256
"""Sequences that may wait for a place beside those that run; a request with n answers is n sequences."""

_STRICT = SamplingParams()
_NO_OPTIONS: Mapping[str, Any] = {}
_DRAIN_POLL_SECONDS = 0.02


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
        self.kv_cache_bytes = engine.kv_cache_bytes
        """The KV cache when all of it is in use, a draft model's part included."""
        self.memory_bytes = engine.kv_cache_bytes + engine.weight_bytes
        """Weights, and the KV cache when all of it is in use."""
        self.opening_note = None if engine.saved_cache is None else engine.saved_cache.note
        """Why a saved KV cache was not used."""
        self._engine = engine
        self._embeddings = EmbeddingJobs()
        self._encoding, self._compiling = SideWork("encode"), SideWork("compile")
        self._thread = EngineThread(engine, max_sequences=self.max_sequences, observer=observer, turns=turns)
        self._thread.start()

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
            return await self._encoding.run(text_size(prompt), self._encode_all, prompt, is_chat, template_options)
        check_generates(self.config)
        if not is_chat and not isinstance(prompt, str) and is_strict(params):
            return FittedPrompt(prompt)  # type: ignore[arg-type]
        if is_chat:
            fitting = chat_fitting(prompt, template_options, params, self.tokenizer, self.max_model_len)
        else:
            vocab_size = self.config.vocab_size
            fitting = prompt_fitting(prompt, params, self.tokenizer, vocab_size, self.max_model_len)
        fitted = await self._carry_out_fitting(fitting, text_size(prompt), scoring)
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

    async def _carry_out_fitting(self, fitting: Fitting, size: int, scoring: Mapping[str, Any]) -> FittedPrompt:
        """Let it work in a thread, and score what it asks for."""
        windows, fitted = await self._encoding.run(size, _advance, fitting, None)
        while fitted is None:
            scores = [given_logprobs(await self._score(ids, scoring)) for ids in windows]
            windows, fitted = await self._encoding.run(size, _advance, fitting, scores)
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
        self.check_num_sequences(sum(one.n for one in params))
        for structured_outputs in {one.structured_outputs for one in params if one.structured_outputs is not None}:
            # Here, because a large grammar takes longer than streams should wait for their next token.
            if not self._engine.grammars.is_kept(structured_outputs):
                await self._compiling.run(LARGE, self._engine.grammars.compile, structured_outputs)
        names = [name] if len(prompts) == 1 else [f"{name}-{i}" for i in range(len(prompts))]
        options = {
            "arrival_time": arrival_time,
            "priority": priority,
            "cache_salt": cache_salt,
            "client": client,
            "trace_level": trace_level,
        }
        stream = DeltaStream(names, self._thread.abort)
        await self._accepted(AddRequests(stream, prompts, params, options, is_internal=is_internal))
        return stream

    def check_num_sequences(self, num_sequences: int) -> None:
        """Raises `InvalidParameterError` where one request may not have so many, before its prompts are encoded."""
        if num_sequences > self.max_sequences:
            raise InvalidParameterError(
                "n",
                f"the request asks for {num_sequences} answers (n for each prompt), but this engine takes at most "
                f"{self.max_sequences} at a time: ask for fewer",
            )

    async def run_job(self, job: Job) -> Stream[Any]:
        """Let a job run between steps, a piece after each; its items come from the stream that this gives back.

        Closing the stream, or dropping it, ends the job. Errors as `generate`; those of the job come from the stream.
        """
        stream: Stream[Any] = Stream([f"job-{uuid.uuid4().hex}"], self._thread.abort)
        await self._accepted(AddJob(stream, job))
        return stream

    async def _accepted(self, command: AddRequests | AddJob) -> None:
        """Queue it, and wait until the engine has taken it."""
        try:
            self._thread.post(command)
            await command.stream.accepted
        except BaseException:
            command.stream.abort()
            raise

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
        stream = DeltaStream([f"prefill-{uuid.uuid4().hex}"], self._thread.abort)
        options = {"cache_salt": cache_salt, "client": client}
        params = [SamplingParams(max_tokens=1)]
        try:
            await self._accepted(AddRequests(stream, [FittedPrompt(token_ids)], params, options, is_prefill=True))
            async for output in stream:
                if output.finished:
                    return prefill_output(len(token_ids), output)
        finally:
            stream.abort()
        raise ShuttingDownError()

    async def embed(
        self, prompts: Prompt | Sequence[Prompt], pooling_params: PoolingParams | None = None
    ) -> list[EmbeddingOutput]:
        """One vector for each text, from an encoder (BERT) or a decoder; results in the order of the prompts.

        Requests that stream meanwhile go on: a pass over texts takes a part of a step's time. Cancelling the task ends
        the work. Raises as `LLM.embed`, and `QueueFullError`, `ShuttingDownError` or `EngineDeadError`.
        """
        vocab_size = self.config.vocab_size
        ids = await self._encoding.run(
            text_size(prompts), encoded_prompts, prompts, self.tokenizer, vocab_size, self.max_model_len, 0
        )
        stream = await self.run_job(self._embeddings.job(ids, checked_pooling_params(pooling_params)))
        try:
            [outputs] = [item async for item in stream]
        finally:
            stream.abort()
        return list(outputs)

    def abort(self, stream: Stream[Any]) -> None:
        """End the stream's requests before the next step. May be called from any thread, at any time."""
        self._thread.abort(stream.request_ids)

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Take no new requests, give those that run `drain_seconds` to finish, abort the rest, end the thread.

        The prefix cache is saved where `kv_cache_save` is set; `closing_note` says why where it could not be.
        """
        self._thread.drain()
        deadline = time.monotonic() + drain_seconds
        while self.num_unfinished and self.is_alive and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        self._thread.stop()
        await asyncio.to_thread(self._thread.join)
        self._encoding.close()
        self._compiling.close()

    def trace_reader(self, request_ids: Collection[str] | None = None, *, from_start: bool = True) -> TraceReader:
        """What was noted of traced requests; see `LLM.trace_reader`. from_start: what is there already, too."""
        return self._engine.tracer.reader(request_ids, from_start=from_start)

    @property
    def stats(self) -> EngineStats:
        """Queues, KV blocks and counters now."""
        return self._engine.stats

    @property
    def observer(self) -> Observer | None:
        """Who is shown every delta."""
        return self._thread.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._thread.observer = observer

    @property
    def closing_note(self) -> str | None:
        """Why the KV cache could not be saved."""
        return self._thread.closing_note

    @property
    def num_unfinished(self) -> int:
        """Requests and jobs taken and not ended."""
        return self._thread.num_unfinished

    @property
    def is_alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive

    @property
    def failure(self) -> EngineDeadError | None:
        """The error that ended the engine's thread, if one did."""
        return self._thread.failure

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        return self._thread.is_ready


def _advance(fitting: Fitting, scores: list[list[float]] | None) -> tuple[list[list[int]], FittedPrompt | None]:
    """The next windows to score, or the prompt: StopIteration cannot pass through a future."""
    try:
        return next(fitting) if scores is None else fitting.send(scores), None
    except StopIteration as done:
        return [], done.value
