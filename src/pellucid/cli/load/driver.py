"""When each request is sent: conversations that arrive at random moments, or so many at once without a pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pellucid.cli.load.client import PATHS, Result, Target, ask
from pellucid.cli.load.workload import Conversation

if TYPE_CHECKING:
    import httpx

OnResult = Callable[[Result], None]


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds from the beginning at which conversations arrive: a Poisson process of `rate` a second."""
    import numpy as np

    gaps = np.random.default_rng(seed).exponential(1.0 / rate, count)
    return [float(moment) for moment in np.cumsum(gaps) - gaps[0]]


def new_client(base_url: str, api_key: str | None, timeout: float) -> httpx.AsyncClient:
    """As many connections as are needed; each is used again. `timeout`: seconds without a byte from the server."""
    import httpx

    return httpx.AsyncClient(
        base_url=base_url.rstrip("/"),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx.Timeout(timeout, connect=min(timeout, 30.0)),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        verify=base_url.startswith("https"),  # reading the machine's certificates takes a while
    )


async def drive(
    client: httpx.AsyncClient,
    target: Target,
    conversations: Sequence[Conversation],
    *,
    concurrency: int | None = None,
    start_times: Sequence[float] | None = None,
    on_result: OnResult = lambda result: None,
) -> tuple[list[Result], float]:
    """Hold all conversations; gives the results and the seconds it took. Cancelling ends it with what there is.

    concurrency: conversations at once, None for no bound. start_times: when each is due, in seconds from now; else as
    soon as there is a place.
    """
    places = asyncio.Semaphore(concurrency or len(conversations))
    results: list[Result] = []
    began = time.perf_counter()

    async def hold(conversation: Conversation, after: float | None) -> None:
        if after is not None:
            await asyncio.sleep(began + after - time.perf_counter())
        async with places:
            due = time.perf_counter() if after is None else began + after
            async for result in _talk(client, target, conversation, due):
                results.append(result)
                on_result(result)

    moments: Sequence[float | None] = start_times or [None] * len(conversations)
    tasks = [asyncio.create_task(hold(one, moment)) for one, moment in zip(conversations, moments, strict=True)]
    try:
        await asyncio.gather(*tasks)
    except asyncio.CancelledError:  # Ctrl-C: what was measured so far is kept
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return results, time.perf_counter() - began


async def _talk(client: httpx.AsyncClient, target: Target, conversation: Conversation, due: float) -> Any:
    """The turns one after the other, each with what was said before; a turn that fails ends it."""
    messages: list[Mapping[str, Any]] = list(conversation.messages)
    if conversation.system:
        messages.append({"role": "system", "content": conversation.system})
    for turn in conversation.turns:
        if not conversation.messages:
            messages.append({"role": "user", "content": turn.text})
        result = await ask(client, PATHS[target.endpoint], target.body(messages, turn.max_tokens), due)
        yield result
        if result.failure is not None:
            return
        messages.append({"role": "assistant", "content": result.text})
        due = time.perf_counter()


async def first_model(client: httpx.AsyncClient) -> str:
    """The first model that the server lists. Raises httpx.HTTPError or LookupError."""
    response = await client.get("/models")
    response.raise_for_status()
    return str(response.json()["data"][0]["id"])
