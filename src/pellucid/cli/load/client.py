"""One request over HTTP: when its pieces came, what it cost, how it failed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

CHAT, COMPLETIONS = "chat", "completions"
PATHS = {CHAT: "/chat/completions", COMPLETIONS: "/completions"}


@dataclass(slots=True)
class Result:
    """Moments are seconds of time.perf_counter()."""

    due: float
    """When it was to be sent; latencies count from here, so that a late client hides nothing."""
    sent: float = 0.0
    token_times: list[float] = field(default_factory=list)
    """When each piece of text came; a server may put several tokens in one."""
    end: float = 0.0
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_output_tokens: int = 0
    """As the server's usage says, else the number of pieces."""
    has_usage: bool = False
    text: str = ""
    finish_reason: str | None = None
    failure: str | None = None
    """None when it went well: else one word or two of what happened, to be counted."""
    detail: str = ""
    """The failure in the server's words."""

    @property
    def ttft(self) -> float | None:
        """Seconds to the first piece of text."""
        return self.token_times[0] - self.due if self.token_times else None

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for fewer than two tokens, or where all came in one piece."""
        if self.num_output_tokens < 2 or len(self.token_times) < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.num_output_tokens - 1)

    @property
    def itl(self) -> list[float]:
        """Seconds between neighbouring pieces."""
        return [later - earlier for earlier, later in zip(self.token_times, self.token_times[1:], strict=False)]

    @property
    def e2e(self) -> float:
        """Seconds to the end of the answer."""
        return self.end - self.due


@dataclass(frozen=True, slots=True)
class Target:
    """The server, and what every body has besides the prompt."""

    model: str
    endpoint: str = CHAT
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def body(self, messages: Sequence[Mapping[str, Any]], max_tokens: int) -> dict[str, Any]:
        """A streamed request for these messages; as text where the endpoint takes no messages."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == CHAT:
            body["messages"] = list(messages)
        else:
            body["prompt"] = "\n".join(str(message.get("content", "")) for message in messages)
        return {**body, **self.extra_body}


async def ask(
    client: httpx.AsyncClient, path: str, body: Mapping[str, Any], due: float, *, result: Result | None = None
) -> Result:
    """Send one streamed request and read its answer to the end. Failures are in the result.

    result: one to fill in, for who wants to look while the answer comes.
    """
    import httpx

    result = Result(due) if result is None else result
    result.sent = time.perf_counter()
    try:
        async with client.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                result.failure, result.detail = _refusal(response)
            else:
                await _read(response, result)
    except httpx.TimeoutException as error:
        result.failure, result.detail = "timeout", type(error).__name__
    except httpx.ConnectError as error:
        result.failure, result.detail = "no connection", str(error)
    except httpx.HTTPError as error:
        result.failure, result.detail = "broken connection", f"{type(error).__name__}: {error}"
    result.end = time.perf_counter()
    return result


async def _read(response: httpx.Response, result: Result) -> None:
    buffer = b""
    is_done = False
    async for part in response.aiter_bytes():
        now = time.perf_counter()
        buffer += part
        *lines, buffer = buffer.split(b"\n")
        for data in _data(lines):
            if data == b"[DONE]":
                is_done = True
            else:
                try:
                    _take(json.loads(data), now, result)
                except (ValueError, TypeError, AttributeError):
                    result.failure, result.detail = "unreadable answer", repr(data[:100])
                    return
    if not result.has_usage:
        result.num_output_tokens = len(result.token_times)
    if result.failure is None and not (is_done or result.finish_reason):
        result.failure, result.detail = "cut answer", "the stream ended before its answer did"


def _data(lines: Sequence[bytes]) -> Iterator[bytes]:
    for line in lines:
        if line.startswith(b"data:"):
            yield line[5:].strip()


def _take(chunk: Mapping[str, Any], now: float, result: Result) -> None:
    error = chunk.get("error")
    if error is not None:
        result.failure, result.detail = f"error in stream {_code(error)}", str(error)[:200]
        return
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        if text or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls"):
            result.token_times.append(now)
            result.text += text
        result.finish_reason = choice.get("finish_reason") or result.finish_reason
    usage = chunk.get("usage")
    if usage:
        result.has_usage = True
        result.num_output_tokens = int(usage.get("completion_tokens") or 0)
        result.num_prompt_tokens = usage.get("prompt_tokens")
        result.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _refusal(response: httpx.Response) -> tuple[str, str]:
    """`429 queue_full` and the server's sentence."""
    try:
        error = response.json()["error"]
        code, message = _code(error), error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        code, message = "", response.text
    return f"{response.status_code} {code}".strip(), str(message)[:200]


def _code(error: Any) -> str:
    return str((error.get("code") or error.get("type") or "") if isinstance(error, Mapping) else "")[:60]
