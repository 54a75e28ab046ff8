"""Mailbox: everything arrives in order, in the loop; nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from pellucid.engine import mailbox as mailbox_module
from pellucid.engine.mailbox import Mailbox


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def sent(num: int, *, close: bool = True) -> list[int]:
    """What arrives of `num` numbers that another thread puts."""
    arrived: list[int] = []

    async def body() -> None:
        loop, here = asyncio.get_running_loop(), threading.get_ident()

        def arrive(number: int) -> None:
            assert threading.get_ident() == here
            arrived.append(number)

        mailbox: Mailbox[int] = Mailbox(arrive)

        def work() -> None:
            for number in range(num):
                mailbox.put(loop, number)
            if close:
                mailbox.close(loop)

        await asyncio.to_thread(work)
        await asyncio.sleep(0.05)

    asyncio.run(body())
    return arrived


@pytest.mark.parametrize("has_eventfd", [True, False])
def test_everything_arrives_in_order(has_eventfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_eventfd:
        monkeypatch.delattr(mailbox_module.os, "eventfd", raising=False)
    assert sent(2000) == list(range(2000))


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="the system has no eventfd")
def test_a_loop_that_listens_is_not_called_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        mailbox: Mailbox[int] = Mailbox(lambda _: came.set())
        mailbox.put(loop, 0)
        await asyncio.wait_for(came.wait(), 5)
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *_: pytest.fail("by asyncio's own way"))
        for number in range(3):
            came.clear()
            mailbox.put(loop, number)
            await asyncio.wait_for(came.wait(), 5)
        monkeypatch.undo()
        mailbox.close(loop)
        await asyncio.sleep(0.01)

    asyncio.run(body())


@pytest.mark.parametrize("close", [True, False])
def test_no_descriptor_is_left(close: bool) -> None:
    sent(3, close=close)
    gc.collect()
    before = descriptors()
    for _ in range(5):
        sent(3, close=close)
    gc.collect()
    assert descriptors() <= before


def test_a_closed_loop_is_told_and_holds_nothing() -> None:
    class Item:
        pass

    loop = asyncio.new_event_loop()
    mailbox: Mailbox[Any] = Mailbox(lambda _: None)
    mailbox.put(loop, Item())
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    item = Item()
    known = weakref.ref(item)
    with pytest.raises(RuntimeError, match="closed"):
        mailbox.put(loop, item)
    del item
    gc.collect()
    assert known() is None
