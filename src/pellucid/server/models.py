"""The models of one server: loaded when they are asked for, closed when another one needs their memory.

All of it runs in the server's event loop; only loading itself happens in a thread. A request that uses a model keeps
it from being closed, from the moment its name is read until its answer is delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.engine_thread import Observer
from pellucid.errors import PellucidError, ShuttingDownError
from pellucid.server.api_errors import ApiError, api_error

T = TypeVar("T")

ON_END = "pellucid.on_end"
"""Key of the ASGI scope for functions that the gate calls when the request is over, its answer delivered or not."""
ROOM_WAIT_SECONDS = 60.0
"""How long a request waits for models in use to fall idle before it is told to try again."""


@dataclass(slots=True)
class Model:
    """A name of the API and what stands behind it."""

    name: str
    load: Callable[[], AsyncLLM]
    """Loads the model and starts its engine; called in a thread."""
    needed_bytes: Callable[[], int]
    """What it will take in memory, from its header; called in a thread."""
    llm: AsyncLLM | None = None
    """None while it is not loaded."""
    nbytes: int = 0
    """What it takes while it is loaded: packed weights and KV cache."""
    loading: asyncio.Task[AsyncLLM] | None = None
    """While it is loaded."""
    num_users: int = 0
    """Requests that hold it."""
    last_used: float = 0.0
    num_loads: int = 0
    num_evictions: int = 0


@dataclass(slots=True)
class ModelInUse:
    """A model that is loaded, and stays so while this is held."""

    name: str
    llm: AsyncLLM


@dataclass(eq=False)
class ModelPool:
    """The models by name; the first is who answers a request that names none."""

    models: Sequence[Model]
    memory_bytes: int | None = None
    """What all loaded models may take together; None: no limit."""
    _observer_of: Callable[[str], Observer] | None = field(init=False, default=None)
    _by_name: dict[str, Model] = field(init=False)
    _loading: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _fell_idle: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _is_closing: bool = field(init=False, default=False)
    _listeners: list[Callable[[], None]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._by_name = {model.name: model for model in self.models}
        self.created = int(time.time())

    @classmethod
    def of_one(cls, llm: AsyncLLM, name: str | None = None) -> ModelPool:
        """A pool of a single engine that runs already."""

        def never() -> AsyncLLM:
            raise ShuttingDownError()

        model = Model(name or llm.args.model, never, lambda: 0, llm=llm)
        return cls([model])

    def find(self, name: str | None) -> Model:
        """The model of that name, loaded or not. Raises `ApiError` 404."""
        model = self.models[0] if name is None else self._by_name.get(name)
        if model is None:
            names = ", ".join(repr(known) for known in self._by_name)
            are = "are" if len(self.models) > 1 else "is"
            raise ApiError(
                404,
                f"the model {str(name)[:128]!r} is not served here; {names} {are}",
                param="model",
                code="model_not_found",
            )
        return model

    async def acquire(self, scope: MutableMapping[str, Any], name: str | None) -> ModelInUse:
        """The named model, loaded where it is not, for as long as the HTTP request of this ASGI scope lasts.

        Raises `ApiError`: 404 for an unknown name, 503 when it cannot be loaded.
        """
        model = self.find(name)
        model.num_users += 1
        scope.setdefault(ON_END, []).append(lambda: self._release(model))
        return ModelInUse(model.name, await self._loaded(model))

    @asynccontextmanager
    async def using(self, name: str | None) -> AsyncIterator[ModelInUse]:
        """As `acquire`, for what is no HTTP request."""
        scope: dict[str, Any] = {}
        try:
            yield await self.acquire(scope, name)
        finally:
            end(scope)

    def loaded(self) -> Iterator[tuple[Model, AsyncLLM]]:
        """The models that are loaded now."""
        for model in self.models:
            if model.llm is not None:
                yield model, model.llm

    @property
    def is_alive(self) -> bool:
        """Whether no engine has failed."""
        return all(llm.is_alive for _, llm in self.loaded())

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        return not self._is_closing and all(llm.is_ready for _, llm in self.loaded())

    @contextlib.contextmanager
    def told_of_closing(self, listener: Callable[[], None]) -> Iterator[None]:
        """While entered, `close` calls the listener, from whatever thread it is called in."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def observe_with(self, observer_of: Callable[[str], Observer]) -> None:
        """From now on show every model's deltas to what this gives for its name."""
        self._observer_of = observer_of
        for model, llm in self.loaded():
            llm.observer = observer_of(model.name)

    def preload(self) -> AsyncLLM:
        """Load the first model before the event loop starts. Raises as its loading does."""
        first = self.models[0]
        if first.llm is None:
            self._take(first, first.load())
        assert first.llm is not None
        return first.llm

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Load nothing more, and close every engine."""
        if not self._is_closing:
            self._is_closing = True
            for listener in list(self._listeners):
                listener()
        await asyncio.gather(*(llm.close(drain_seconds) for _, llm in self.loaded()))

    def _release(self, model: Model) -> None:
        model.num_users -= 1
        model.last_used = time.monotonic()
        if model.num_users == 0:
            self._fell_idle.set()

    async def _loaded(self, model: Model) -> AsyncLLM:
        """Loading goes on when who asked for it leaves: it cannot be broken off, and the next one finds the model."""
        if model.llm is not None:
            return model.llm
        if model.loading is None:
            model.loading = asyncio.create_task(self._load_alone(model))
            model.loading.add_done_callback(partial(_loading_ended, model))
        return await asyncio.shield(model.loading)

    async def _load_alone(self, model: Model) -> AsyncLLM:
        """One model at a time. Raises `ApiError` 503."""
        async with self._loading:
            try:
                return await self._load(model)
            except ApiError:
                raise
            except ShuttingDownError as error:
                raise api_error(error) from None
            except (PellucidError, MemoryError, OSError) as error:
                why = "there is not enough memory" if isinstance(error, MemoryError) else str(error)
                raise ApiError(
                    503, f"the model {model.name!r} could not be loaded: {why}", param="model", code="model_load_failed"
                ) from None

    async def _load(self, model: Model) -> AsyncLLM:
        self.check_open()
        await self._make_room(model)
        llm = await _in_thread(model.load)
        try:
            self.check_open()
        except ShuttingDownError:  # it began to close meanwhile, and has not seen this one
            await llm.close()
            raise
        self._take(model, llm)
        return llm

    def check_open(self) -> None:
        """Raises `ShuttingDownError` once `close` was called."""
        if self._is_closing:
            raise ShuttingDownError()

    def _take(self, model: Model, llm: AsyncLLM) -> None:
        if self._observer_of is not None:
            llm.observer = self._observer_of(model.name)
        model.nbytes, model.last_used = llm.memory_bytes, time.monotonic()
        model.llm = llm
        model.num_loads += 1

    async def _make_room(self, model: Model) -> None:
        """Close the least recently used idle models until this one fits; wait for one to fall idle if need be."""
        if self.memory_bytes is None:
            return
        needed = await _in_thread(model.needed_bytes)
        if needed > self.memory_bytes:
            raise ApiError(
                503,
                f"the model {model.name!r} needs {needed} bytes for weights and KV cache, but the models of this "
                f"server may take {self.memory_bytes}: raise --model-memory-bytes or lower --kv-cache-memory-bytes",
                param="model",
                code="model_load_failed",
            )
        deadline = time.monotonic() + ROOM_WAIT_SECONDS
        while sum(other.nbytes for other, _ in self.loaded()) + needed > self.memory_bytes:
            self._fell_idle.clear()
            idle = [other for other, _ in self.loaded() if other.num_users == 0]
            if idle:
                await self._evict(min(idle, key=lambda other: other.last_used))
                continue
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._fell_idle.wait()
            except TimeoutError:
                raise ApiError(
                    503,
                    f"there is no room for the model {model.name!r} beside those in use; try again later",
                    param="model",
                    code="model_no_room",
                    headers={"Retry-After": "10"},
                ) from None

    async def _evict(self, model: Model) -> None:
        llm, model.llm = model.llm, None  # from here on nobody gets it
        model.nbytes = 0
        model.num_evictions += 1
        assert llm is not None
        await llm.close()
        del llm
        await asyncio.to_thread(_give_back_memory)


def end(scope: MutableMapping[str, Any]) -> None:
    """Call what was left for the end of a request, once."""
    for release in scope.pop(ON_END, ()):
        release()


def _loading_ended(model: Model, task: asyncio.Task[AsyncLLM]) -> None:
    model.loading = None
    if not task.cancelled():
        task.exception()  # whoever waits has it; with nobody left it is no error of the loop's


def _give_back_memory() -> None:
    """What the model's objects took goes back to the system, also what the allocator would keep (glibc)."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


async def _in_thread(function: Callable[[], T]) -> T:
    """As asyncio.to_thread, but the end of the process does not wait for it: a fetch may take minutes."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("T", result))

    def work() -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=work, name="pellucid-loading", daemon=True).start()
    return await future
