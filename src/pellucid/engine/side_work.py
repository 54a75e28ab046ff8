"""Work of requests beside the event loop: texts to encode, grammars to compile.

The threads that asyncio has for this are few, and everybody's: a handful of texts of megabytes would keep the short
prompts of all others waiting. So what is large, or may take long, goes to a thread of its own, one for each kind of
work, in the order in which it came. More than one would take the cores from the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

LARGE = 64 * 1024
"""Characters, or tokens, from which on a text is large: some 20 ms of encoding."""

T = TypeVar("T")


class SideWork:
    """One kind of work. Made where it may be; its thread begins with the first large piece."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"pellucid-{name}")

    async def run(self, size: int, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Carry it out in a thread, of its own kind where it is LARGE; a piece that is cancelled never begins."""
        if size < LARGE:
            return await asyncio.to_thread(work, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *arguments, **options))

    def close(self) -> None:
        """What has not begun is cancelled."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def text_size(prompt: Any) -> int:
    """Characters of a text, of messages, or of a list of texts, about; 0 for token ids and for what is no prompt."""
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, Mapping):
        return text_size(prompt.get("content") or prompt.get("text"))
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        return sum(text_size(part) for part in prompt if isinstance(part, str | Mapping))
    return 0
