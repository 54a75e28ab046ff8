"""EngineThread: the one thread that touches an engine. Everyone else reaches it through commands.

Commands are carried out between two steps; what a step gives out goes to the event loops in one call each.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from pellucid.engine.jobs import Job, Jobs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.mailbox import Mailbox
from pellucid.engine.overflow import FittedPrompt
from pellucid.engine.streams import DeltaStream, Stream
from pellucid.engine.turns import Turns
from pellucid.errors import EngineDeadError, KVCacheFileError, QueueFullError, ShuttingDownError
from pellucid.outputs import RequestOutput
from pellucid.sampling_params import SamplingParams

IDLE_SECONDS = 1.0
"""An engine that has had nothing to do for so long is checked."""
Mail = list[tuple[Stream[Any], Any, bool]]
"""What one step has for the streams of one event loop: items, each the last of its request or not."""
Observer = Callable[[RequestOutput], None]
"""Is shown every delta, in the engine's thread; must be quick and must not raise."""


@dataclass(frozen=True, slots=True)
class AddRequests:
    """Queue one request for each of the stream's names, all of them or none."""

    stream: DeltaStream
    prompts: Sequence[FittedPrompt]
    params: Sequence[SamplingParams]
    options: Mapping[str, Any]
    """Further arguments of `LLMEngine.add_request`, or of `add_prefill`."""
    is_prefill: bool = False
    is_internal: bool = False
    """No user made it: it is shown to no observer."""


@dataclass(frozen=True, slots=True)
class AddJob:
    """Run a job between steps; see jobs.py."""

    stream: Stream[Any]
    job: Job


@dataclass(frozen=True, slots=True)
class _Abort:
    request_ids: tuple[str, ...]


class _Wake:
    """Nothing to do but to look around."""


Command = AddRequests | AddJob | _Abort | _Wake


class EngineThread:
    """Steps while there is work, waits for commands while there is none."""

    def __init__(
        self, engine: LLMEngine, *, max_sequences: int, observer: Observer | None = None, turns: Turns | None = None
    ) -> None:
        """max_sequences: most that run and wait together. turns: shared by the engines of one process."""
        self.observer = observer
        self.closing_note: str | None = None
        """Why the KV cache could not be saved."""
        self._engine = engine
        self._max_sequences = max_sequences
        self._turns: AbstractContextManager[None] = turns or nullcontext()
        self._jobs = Jobs(engine)
        self._commands: SimpleQueue[Command] = SimpleQueue()
        """Its `put` takes no lock of ours and may interrupt itself: the garbage collector drops streams at any time."""
        self._in_hand: Command | None = None
        self._gate = threading.Lock()
        """Held to queue a command that is owed an answer, and to close the door for them."""
        self._streams: dict[str, weakref.ref[Stream[Any]]] = {}
        """By request id; weak, so that a stream that is dropped aborts its requests."""
        self._internal: set[str] = set()
        self._outbox: dict[asyncio.AbstractEventLoop, Mail] = {}
        self._mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox[Mail]] = (
            weakref.WeakKeyDictionary()
        )
        self._is_draining = self._must_stop = False
        self._is_unchecked = False
        """Whether it has worked since the last check."""
        self.failure: EngineDeadError | None = None
        self._thread = threading.Thread(target=self._run, name="pellucid-engine", daemon=True)

    # For any thread

    def start(self) -> None:
        """Begin; nobody else may use the engine from now on."""
        self._thread.start()

    def post(self, command: AddRequests | AddJob) -> None:
        """Queue a command; its stream is told the outcome. Raises `EngineDeadError` or `ShuttingDownError`."""
        with self._gate:
            if self.failure is not None:
                raise EngineDeadError(str(self.failure))
            if self._is_draining or self._must_stop:
                raise ShuttingDownError()
            self._commands.put(command)

    def abort(self, request_ids: tuple[str, ...]) -> None:
        """End requests before the next step; unknown ones are no error."""
        self._commands.put(_Abort(request_ids))

    def drain(self) -> None:
        """Take no new requests; those that run go on."""
        self._is_draining = True

    def stop(self) -> None:
        """Abort what runs, save the KV cache, and end the thread; `join` waits for that."""
        with self._gate:
            self._must_stop = True
            self._commands.put(_Wake())

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    @property
    def num_unfinished(self) -> int:
        """Requests and jobs taken and not ended, and commands on their way."""
        return len(self._streams) + (self._commands.qsize() if self.is_alive else 0)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs and has not failed."""
        return self.failure is None and self._thread.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        return self.is_alive and not self._is_draining

    # The thread

    def _run(self) -> None:
        try:
            while not self._must_stop:
                is_idle = not (self._jobs or self._engine.has_unfinished_requests())
                self._carry_out_all(may_wait=is_idle)
                if not self._must_stop:
                    self._work()
                self._flush()
            self._carry_out_all(may_wait=False)
            self._abort(tuple(self._streams))
            self._flush()
            self._save_kv_cache()
        except BaseException as error:
            self._die(error)
        finally:
            for loop, mailbox in list(self._mailboxes.items()):
                mailbox.close(loop)

    def _work(self) -> None:
        """A step of the requests, and a piece of a job."""
        if self._engine.has_unfinished_requests():
            self._is_unchecked = True
            with self._turns:
                outputs = self._engine.step()
            for output in outputs:
                self._put(output)
        if self._jobs:
            self._is_unchecked = True
            self._flush()  # a piece may take as long as a step
            with self._turns:
                self._jobs.run_piece()

    def _carry_out_all(self, *, may_wait: bool) -> None:
        for command in self._pending(may_wait):
            self._in_hand = command
            self._carry_out(command)
            self._in_hand = None

    def _pending(self, may_wait: bool) -> Iterator[Command]:
        if may_wait:
            yield self._next_command()
        with suppress(Empty):
            while True:
                yield self._commands.get_nowait()

    def _next_command(self) -> Command:
        """Wait for a command, and check the engine once when none comes for a while."""
        if self._is_unchecked:
            with suppress(Empty):
                return self._commands.get(timeout=IDLE_SECONDS)
            self._is_unchecked = False
            self._check()
        return self._commands.get()

    def _check(self) -> None:
        fault = self._engine.repair_when_idle()
        if fault is not None:
            import logging

            logging.getLogger("pellucid").error("the KV cache was inconsistent and has been emptied: %s", fault)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, _Abort):
            self._abort(command.request_ids)
        elif isinstance(command, AddRequests | AddJob):
            try:
                if self._must_stop:
                    raise ShuttingDownError()
                self._add(command)
            except Exception as error:
                self._send(command.stream, error, True)
                return
            self._streams.update(dict.fromkeys(command.stream.request_ids, weakref.ref(command.stream)))
            self._send(command.stream, None, False)

    def _add(self, command: AddRequests | AddJob) -> None:
        if isinstance(command, AddRequests):
            self._add_requests(command)
            return
        [name] = command.stream.request_ids
        if len(self._jobs) >= self._max_sequences:
            raise QueueFullError(len(self._jobs), self._engine.stats.num_running)
        self._jobs.begin(name, command.job, partial(self._deliver, name))

    def _add_requests(self, command: AddRequests) -> None:
        self._check_room(sum(one.n for one in command.params))
        added: list[str] = []
        try:
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
        except Exception:
            for name in added:
                self._engine.abort(name)
            raise
        command.stream.metrics.update({name: self._engine.metrics_of(name) for name in added})
        if command.is_internal or command.is_prefill:
            self._internal.update(added)

    def _check_room(self, num_new: int) -> None:
        stats = self._engine.stats
        if stats.num_waiting + stats.num_running + num_new > self._max_sequences:
            raise QueueFullError(stats.num_waiting, stats.num_running)

    def _abort(self, request_ids: tuple[str, ...]) -> None:
        for request_id in request_ids:
            if self._jobs.abort(request_id):
                self._deliver(request_id, ShuttingDownError(), True)
                continue
            output = self._engine.abort(request_id)
            if output is not None:
                self._put(output)

    def _put(self, output: RequestOutput) -> None:
        if self.observer is not None and output.request_id not in self._internal:
            self.observer(output)
        self._deliver(output.request_id, output, output.finished)

    def _deliver(self, request_id: str, item: Any, is_last: bool) -> None:
        known = self._streams.get(request_id)
        stream = known() if known is not None else None
        if is_last:
            self._streams.pop(request_id, None)
            self._internal.discard(request_id)
        if stream is not None:
            self._send(stream, item, is_last)

    def _send(self, stream: Stream[Any], item: Any, is_last: bool) -> None:
        self._outbox.setdefault(stream.loop, []).append((stream, item, is_last))

    def _flush(self) -> None:
        """Hand what has come together to the event loops; a loop that is closed has nobody left who waits."""
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, {}
        for loop, items in outbox.items():
            mailbox = self._mailboxes.get(loop)
            if mailbox is None:
                mailbox = self._mailboxes[loop] = Mailbox(_receive_all)
            try:
                mailbox.put(loop, items)
            except RuntimeError:
                gone = (stream for stream, _, _ in items)
                self._abort(tuple(name for stream in gone for name in stream.request_ids if name in self._streams))

    def _save_kv_cache(self) -> None:
        try:
            self._engine.save_kv_cache()
        except KVCacheFileError as error:
            self.closing_note = str(error)

    def _die(self, error: BaseException) -> None:
        """Tell everyone who waits; nothing is taken from now on."""
        failure = EngineDeadError(f"the engine has stopped after an error: {type(error).__name__}: {error}")
        failure.__cause__ = error
        with self._gate:
            self.failure = failure
        commands = [self._in_hand, *self._pending(may_wait=False)]
        streams = {stream for known in self._streams.values() if (stream := known()) is not None}
        streams |= {command.stream for command in commands if isinstance(command, AddRequests | AddJob)}
        self._streams.clear()
        for stream in streams:
            self._send(stream, EngineDeadError(str(failure)), True)
        self._flush()


def _receive_all(items: Sequence[tuple[Stream[Any], Any, bool]]) -> None:
    for stream, item, is_last in items:
        stream.receive(item, is_last)
