"""Jobs of AsyncLLM: work beside the requests, a piece after each step."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from test_async_llm import FOREVER, total, with_llm

from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.overflow import FittedPrompt
from pellucid.errors import EngineDeadError, NonFiniteError, QueueFullError, ShuttingDownError
from pellucid.sampling_params import SamplingParams


def counting(up_to: int, log: list[Any] | None = None) -> Any:
    """A job that tells every second piece, and notes that it was closed."""

    def job(engine: LLMEngine) -> Iterator[int | None]:
        try:
            for i in range(up_to):
                yield i if i % 2 == 0 else None
        finally:
            if log is not None:
                log.append("closed")

    return job


def holding(num_blocks: int, num_pieces: int) -> Any:
    """A job that holds blocks while its pieces run."""

    def job(engine: LLMEngine) -> Iterator[str | None]:
        while not engine.kv.grow(-1, num_blocks * engine.kv.block_size):
            yield None
        try:
            for _ in range(num_pieces):
                yield "held"
        finally:
            engine.kv.free(-1)

    return job


def test_items_come_in_order_beside_a_stream_that_goes_on() -> None:
    async def test(llm: AsyncLLM) -> None:
        stream = await llm.submit([FittedPrompt(list(b"abc"))], [FOREVER])
        await anext(stream)
        log: list[Any] = []
        steps = llm.stats.num_steps
        items = [item async for item in await llm.run_job(counting(40, log))]
        assert items == list(range(0, 40, 2))
        assert log == ["closed"]
        assert llm.stats.num_steps - steps >= 38  # a step for each piece
        stream.abort()

    with_llm(test).check_integrity()


def test_two_jobs_take_turns() -> None:
    async def test(llm: AsyncLLM) -> None:
        order: list[str] = []
        both_are_there = threading.Event()

        def job(name: str) -> Any:
            def pieces(engine: LLMEngine) -> Iterator[None]:
                while not both_are_there.is_set():
                    yield None
                for _ in range(3):
                    order.append(name)
                    yield None

            return pieces

        first, second = await asyncio.gather(llm.run_job(job("a")), llm.run_job(job("b")))
        both_are_there.set()
        assert [item async for item in first] == [item async for item in second] == []
        assert "".join(order) in ("ababab", "bababa")

    with_llm(test)


@pytest.mark.parametrize("how", ["close", "drop"])
def test_leaving_ends_the_job(how: str) -> None:
    async def test(llm: AsyncLLM) -> None:
        log: list[Any] = []
        stream = await llm.run_job(counting(10**9, log))
        assert await anext(stream) == 0
        if how == "close":
            stream.abort()
        else:
            del stream
            gc.collect()
        while not log:
            await asyncio.sleep(0.001)
        assert llm.num_unfinished == 0

    with_llm(test)


def test_a_job_that_fails_ends_alone() -> None:
    def job(engine: LLMEngine) -> Iterator[int]:
        yield 1
        raise NonFiniteError("a number is not finite")

    async def test(llm: AsyncLLM) -> None:
        stream = await llm.run_job(job)
        assert await anext(stream) == 1
        with pytest.raises(NonFiniteError):
            await anext(stream)
        assert (await total(llm, "abc", SamplingParams(max_tokens=2))).finished
        assert llm.num_unfinished == 0

    with_llm(test)


def test_requests_wait_for_blocks_that_a_job_holds() -> None:
    async def test(llm: AsyncLLM) -> None:
        blocks = llm.stats.kv_blocks_total
        stream = await llm.run_job(holding(blocks - 1, 30))
        assert await anext(stream) == "held"
        alone = await total(llm, "a" * 100, SamplingParams(max_tokens=5, seed=1))
        beside = [item async for item in stream]
        assert len(beside) == 29
        assert alone.finished
        # a job that wants blocks which a request holds gets them when it is done
        going = asyncio.create_task(total(llm, "b" * 200, SamplingParams(max_tokens=30, seed=1, ignore_eos=True)))
        assert len([item async for item in await llm.run_job(holding(blocks, 2))]) == 2
        assert (await going).finished

    with_llm(test).check_integrity()


def test_running_requests_wait_too_when_a_job_has_the_last_blocks() -> None:
    async def test(llm: AsyncLLM) -> None:
        params = SamplingParams(max_tokens=300, seed=1, ignore_eos=True)
        expected = (await total(llm, "a", params)).outputs[0].token_ids
        going = asyncio.create_task(total(llm, "a", params))
        while llm.stats.num_running == 0:
            await asyncio.sleep(0)
        free = llm.stats.kv_blocks_total - llm.stats.kv_blocks_used
        items = [item async for item in await llm.run_job(holding(free - 1, 300))]
        assert len(items) == 300
        assert (await going).outputs[0].token_ids == expected

    with_llm(test, enable_prefix_caching=False).check_integrity()


def test_the_end_of_the_engine_ends_jobs() -> None:
    async def test(llm: AsyncLLM) -> None:
        stream = await llm.run_job(counting(10**9))
        await llm.close()
        with pytest.raises(ShuttingDownError):
            [_ async for _ in stream]
        with pytest.raises(ShuttingDownError):
            await llm.run_job(counting(1))

    with_llm(test)


def test_an_engine_that_fails_ends_jobs() -> None:
    async def test(llm: AsyncLLM) -> None:
        job = await llm.run_job(counting(10**9))

        def fail(batch: object) -> None:
            raise RuntimeError("a wire has come loose")

        llm._engine.model.on_forward = fail  # type: ignore[attr-defined]
        with pytest.raises(EngineDeadError):
            await total(llm, "abc", FOREVER)
        with pytest.raises(EngineDeadError):
            [_ async for _ in job]

    with_llm(test)


def test_jobs_have_a_limit_too() -> None:
    async def test(llm: AsyncLLM) -> None:
        jobs = [await llm.run_job(counting(10**9)) for _ in range(llm.max_sequences)]
        with pytest.raises(QueueFullError):
            await llm.run_job(counting(1))
        for job in jobs:
            job.abort()

    with_llm(test, max_queue=2)
