"""The history of a conversation as chat templates of the harmony format take it.

They call the reasoning `thinking`, allow one call in a message, with its result behind it, and take reasoning or text
beside a call, not both: both go into the channel `analysis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]


def harmony_history(messages: Sequence[Message]) -> list[Message]:
    """The same conversation, with calls one by one."""
    result: list[Message] = []
    at = 0
    while at < len(messages):
        message = _with_thinking(messages[at])
        at += 1
        calls = message.get("tool_calls") or []
        if not calls:
            result.append(message)
            continue
        results: list[Message] = []
        while at < len(messages) and messages[at].get("role") == "tool":
            results.append(messages[at])
            at += 1
        result += _one_by_one(message, calls, results)
    return result


def _with_thinking(message: Message) -> Message:
    calls, reasoning = message.get("tool_calls"), message.get("reasoning_content")
    if not reasoning:
        return message
    if calls and message.get("content"):
        reasoning = f"{reasoning}\n\n{message['content']}"
    rest = {key: value for key, value in message.items() if key != "content" or not calls}
    return {**rest, "thinking": reasoning}


def _one_by_one(message: Message, calls: Sequence[Message], results: Sequence[Message]) -> list[Message]:
    """Each call with its result behind it; results of no call of this message stand behind the last."""
    listed: list[Message] = []
    ids = [call.get("id") for call in calls]
    for index, call in enumerate(calls):
        listed.append({**message, "tool_calls": [call]} if index == 0 else {"role": "assistant", "tool_calls": [call]})
        is_last = index == len(calls) - 1
        for result in results:
            of = result.get("tool_call_id")
            if of == call.get("id") or (is_last and of not in ids):
                listed.append(result)
    return listed
