"""AsyncLLM: deltas, aborts, failures, the queue, the end."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from http_server import mock_engine, wait_for

from pellucid.engine import engine_thread
from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.output_processor import add_delta
from pellucid.engine.overflow import FittedPrompt
from pellucid.errors import (
    ContextLengthExceededError,
    EngineDeadError,
    InvalidParameterError,
    QueueFullError,
    ShuttingDownError,
)
from pellucid.outputs import RequestOutput
from pellucid.sampling_params import SamplingParams

FOREVER = SamplingParams(temperature=0, ignore_eos=True)


def with_llm(test: Any, *, max_queue: int = 64, **options: Any) -> LLMEngine:
    """Run `test(llm)` in an event loop, close, and check that nothing is left."""
    engine = mock_engine(**options)
    before = set(threading.enumerate())  # servers of other tests may run

    async def body() -> None:
        llm = AsyncLLM(engine, max_queue=max_queue)
        try:
            await asyncio.wait_for(test(llm), 20)
        finally:
            await llm.close()

    asyncio.run(body())
    assert not [t for t in set(threading.enumerate()) - before if t.name == "pellucid-engine"]
    return engine


async def total(llm: AsyncLLM, prompt: Any, params: SamplingParams, **options: Any) -> RequestOutput:
    whole: RequestOutput | None = None
    async for delta in llm.generate(prompt, params, **options):
        whole = add_delta(whole, delta)
    assert whole is not None
    return whole


def solo(prompt: Any, params: SamplingParams) -> list[list[int]]:
    """The answers' ids without any AsyncLLM."""
    engine = mock_engine()
    engine.add_request("solo", prompt, params)
    whole: RequestOutput | None = None
    while engine.has_unfinished_requests():
        for delta in engine.step():
            whole = add_delta(whole, delta)
    assert whole is not None
    return [output.token_ids for output in whole.outputs]


def test_text_ids_and_messages() -> None:
    params = SamplingParams(max_tokens=8, seed=3, n=2)

    async def test(llm: AsyncLLM) -> None:
        for prompt in ("abc", list(b"abc")):
            whole = await total(llm, prompt, params)
            assert [output.token_ids for output in whole.outputs] == solo(list(b"abc"), params)
            assert whole.finished
        chat = await total(llm, [{"role": "user", "content": "hi"}], params)
        assert chat.prompt == "<s>user:hi<|im_end|><s>assistant:"
        goes_on = [{"role": "assistant", "content": "hi"}]
        assert (await total(llm, goes_on, params, continue_final_message=True)).prompt == "<s>assistant:hi"

    with_llm(test).check_integrity()


def test_many_at_once_each_equal_to_its_solo_run() -> None:
    async def test(llm: AsyncLLM) -> None:
        prompts = [f"prompt {i}" for i in range(24)]
        params = [SamplingParams(max_tokens=20 + i, seed=i) for i in range(24)]
        wholes = await asyncio.gather(*(total(llm, p, q) for p, q in zip(prompts, params, strict=True)))
        for whole, prompt, one in zip(wholes, prompts, params, strict=True):
            assert [output.token_ids for output in whole.outputs] == solo(prompt, one)

    with_llm(test).check_integrity()


@pytest.mark.parametrize("how", ["close", "cancel", "drop", "break"])
def test_leaving_early_frees_the_blocks(how: str) -> None:
    async def test(llm: AsyncLLM) -> None:
        stream = await llm.submit([FittedPrompt(list(b"abc"))], [FOREVER])
        await anext(stream)
        assert llm.stats.kv_blocks_used
        if how == "close":
            await stream.aclose()
        elif how == "drop":
            del stream
            gc.collect()
        elif how == "cancel":

            async def read() -> None:
                async for _ in stream:
                    pass

            task = asyncio.create_task(read())
            await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            stream.abort()
            async for _ in llm.generate("other", FOREVER):
                break
            gc.collect()
            await asyncio.sleep(0)  # the generator that was left is finalized by the loop
        await asyncio.sleep(0.1)
        assert llm.stats.kv_blocks_used == 0
        assert llm.num_unfinished == 0
        assert (await total(llm, "abc", SamplingParams(max_tokens=2))).finished

    with_llm(test, step_seconds=0.005).check_integrity()


def test_an_abort_takes_effect_within_one_step() -> None:
    async def test(llm: AsyncLLM) -> None:
        stream = await llm.submit([FittedPrompt(list(b"abc"))], [FOREVER])
        await anext(stream)
        steps = llm.stats.num_steps
        stream.abort()
        await asyncio.to_thread(wait_for, lambda: llm.stats.kv_blocks_used == 0)
        assert llm.stats.num_steps <= steps + 1

    with_llm(test, step_seconds=0.02)


def test_refusals_come_before_anything_runs() -> None:
    async def test(llm: AsyncLLM) -> None:
        with pytest.raises(ContextLengthExceededError):
            await total(llm, "a" * 5000, SamplingParams())
        with pytest.raises(InvalidParameterError):
            await total(llm, [99999], SamplingParams())
        with pytest.raises(InvalidParameterError):  # the second of a group: none of it runs
            await llm.submit([FittedPrompt([1]), FittedPrompt([])], [FOREVER, FOREVER])
        with pytest.raises(InvalidParameterError, match="at most"):
            await llm.submit([FittedPrompt([1])], [SamplingParams(n=100)])
        assert llm.num_unfinished == 0

    engine = with_llm(test)
    assert engine.stats.num_steps == 0


def test_the_queue_has_a_limit() -> None:
    async def test(llm: AsyncLLM) -> None:
        streams = [await llm.submit([FittedPrompt([1])], [FOREVER]) for _ in range(6)]
        with pytest.raises(QueueFullError):
            await llm.submit([FittedPrompt([1])], [FOREVER])
        streams[0].abort()
        streams.append(await llm.submit([FittedPrompt([1])], [FOREVER]))

    with_llm(test, max_num_seqs=4, max_queue=2, step_seconds=0.002).check_integrity()


def test_an_engine_that_fails_tells_everyone() -> None:
    async def test(llm: AsyncLLM) -> None:
        streams = [await llm.submit([FittedPrompt([i + 1])], [FOREVER]) for i in range(3)]
        for stream in streams:
            await anext(stream)

        def fail(batch: object) -> None:
            raise RuntimeError("a wire has come loose")

        llm._engine.model.on_forward = fail  # type: ignore[attr-defined]
        for stream in streams:
            with pytest.raises(EngineDeadError, match="wire"):
                [_ async for _ in stream]
        assert not llm.is_alive
        with pytest.raises(EngineDeadError):
            await total(llm, "abc", SamplingParams())

    with_llm(test, step_seconds=0.002)


def test_closing_drains_then_aborts() -> None:
    async def test(llm: AsyncLLM) -> None:
        short = asyncio.create_task(total(llm, "short", SamplingParams(max_tokens=10, ignore_eos=True)))
        long = asyncio.create_task(total(llm, "long", FOREVER))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(llm.close(0.5))
        await asyncio.sleep(0.02)
        assert llm.is_alive
        assert not llm.is_ready
        with pytest.raises(ShuttingDownError):
            await total(llm, "new", SamplingParams())
        await closing
        assert (await short).outputs[0].finish_reason == "length"
        assert (await long).outputs[0].finish_reason == "abort"
        assert not llm.is_alive

    with_llm(test, step_seconds=0.005).check_integrity()


def test_no_busy_waiting_when_idle() -> None:
    async def test(llm: AsyncLLM) -> None:
        await total(llm, "abc", SamplingParams(max_tokens=2))
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - cpu < 0.1 * (time.monotonic() - began)

    with_llm(test)


def test_a_loop_that_is_gone_holds_nothing() -> None:
    engine = mock_engine(step_seconds=0.002)

    async def leave(llm: AsyncLLM) -> Any:
        stream = await llm.submit([FittedPrompt([1])], [FOREVER])
        await anext(stream)
        return stream

    def in_a_loop(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    llm = AsyncLLM(engine)
    stream = in_a_loop(leave(llm))
    wait_for(lambda: engine.stats.kv_blocks_used == 0)
    del stream
    in_a_loop(llm.close())
    engine.check_integrity()


@pytest.mark.parametrize("fault", ["leak", "tree"])
def test_an_idle_engine_is_checked_and_begins_anew(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A block that nobody holds is free again, and a tree that is not sound gives nobody its blocks."""
    monkeypatch.setattr(engine_thread, "IDLE_SECONDS", 0.02)
    prompt = list(b"a prompt of some length, which fills blocks: 3 of them")
    params = SamplingParams(max_tokens=20, temperature=0, seed=1)

    async def test(llm: AsyncLLM) -> None:
        first = await total(llm, prompt, params)
        await asyncio.sleep(0.2)
        assert (llm.stats.kv_integrity_faults, llm.stats.kv_blocks_cached > 2) == (0, True)
        kv = llm._engine.kv
        if fault == "leak":
            assert kv.pool.allocate(3) is not None
        else:
            next(iter(kv.cache._nodes.values())).parent = 5
        again = await total(llm, [9, 9, 9], params)  # an engine that has done nothing is not checked again
        await asyncio.to_thread(wait_for, lambda: llm.stats.kv_integrity_faults == 1)
        await asyncio.sleep(0.1)
        assert (llm.stats.kv_integrity_faults, llm.stats.kv_blocks_used, llm.stats.kv_blocks_cached) == (1, 0, 0)
        assert again.finished
        assert "has been emptied" in caplog.text
        last = await total(llm, prompt, params)
        assert (last.num_cached_tokens, last.outputs) == (0, first.outputs)

    with_llm(test, enable_prefix_caching=True).check_integrity()
