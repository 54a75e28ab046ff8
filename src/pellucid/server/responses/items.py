"""The input of a response: items → the messages of a conversation."""

from __future__ import annotations

from typing import Any

from pellucid.server.checks import check_sent_back, refused, shown
from pellucid.server.messages import MAX_MESSAGES
from pellucid.server.openai_fields import echoes

Message = dict[str, Any]

_TEXT_PARTS = ("input_text", "output_text", "text")
_MESSAGE_ROLES = ("developer", "system", "user", "assistant")
_FIELDS: dict[str, tuple[str, ...]] = {
    "message": ("type", "role", "content"),
    "function_call": ("type", "call_id", "name", "arguments"),
    "function_call_output": ("type", "call_id", "output"),
    "reasoning": ("type", "summary", "content"),
}
"""By type, besides what clients send back of an answer's items (`echoes`)."""


def messages_of(value: Any, instructions: Any) -> list[Message]:
    """The conversation, in the form of /v1/chat/completions. Raises `ApiError`.

    An assistant's turn is one message, of however many items it consists.
    """
    if instructions is not None and not isinstance(instructions, str):
        raise refused("instructions", "instructions must be a string")
    if isinstance(value, str):
        messages: list[Message] = [{"role": "user", "content": value}]
    elif isinstance(value, list) and 0 < len(value) <= MAX_MESSAGES:
        messages = _messages(value)
    else:
        raise refused("input", f"input must be a string, or a list of 1 to {MAX_MESSAGES} items")
    if instructions:
        if messages[0]["role"] in ("system", "developer"):
            messages[0] = {**messages[0], "content": f"{instructions}\n\n{messages[0]['content']}"}
        else:
            messages.insert(0, {"role": "system", "content": instructions})
    return messages


def _messages(items: list[Any]) -> list[Message]:
    messages: list[Message] = []
    for index, item in enumerate(items):
        place = f"input[{index}]"
        kind = _kind(item, place)
        if kind == "function_call_output":
            call_id = _string(item, "call_id", place)
            content = _text(item.get("output"), f"{place}.output")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        elif kind == "message" and item["role"] != "assistant":
            messages.append({"role": item["role"], "content": _text(item.get("content"), f"{place}.content")})
        else:
            _add_to_turn(messages, kind, item, place)
    return messages


def _kind(item: Any, place: str) -> str:
    """The item's type, its fields known."""
    if not isinstance(item, dict):
        raise refused(place, f"{place} must be an object")
    kind = item.get("type") or ("message" if "role" in item else None)
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise refused(f"{place}.type", f"{place}.type is {shown(kind)}, but must be one of {', '.join(_FIELDS)}")
    check_sent_back(item, place, {*_FIELDS[kind], *echoes("input[]"), *echoes(f"input[{kind}]")})
    if kind == "message" and item.get("role") not in _MESSAGE_ROLES:
        allowed = ", ".join(_MESSAGE_ROLES)
        raise refused(f"{place}.role", f"{place}.role is {shown(item.get('role'))}, but must be one of {allowed}")
    return kind


def _add_to_turn(messages: list[Message], kind: str, item: Message, place: str) -> None:
    """To the last message where the item can be part of the same turn: reasoning, then text, then calls."""
    turn = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind == "reasoning":
        messages.append({"role": "assistant", "content": "", "reasoning_content": _reasoning(item, place)})
        return
    if turn is None or (kind == "message" and (turn["content"] or turn.get("tool_calls"))):
        turn = {"role": "assistant", "content": ""}
        messages.append(turn)
    if kind == "message":
        turn["content"] = _text(item.get("content"), f"{place}.content")
        return
    function = {name: _string(item, name, place) for name in ("name", "arguments")}
    call = {"id": _string(item, "call_id", place), "type": "function", "function": function}
    turn.setdefault("tool_calls", []).append(call)


def _reasoning(item: Message, place: str) -> str:
    if item.get("summary") not in (None, []):
        raise refused(f"{place}.summary", f"{place}.summary must be empty: summaries of reasoning are not served")
    parts = [] if item.get("content") is None else item["content"]
    if not isinstance(parts, list) or not all(
        _is_part(part, ("reasoning_text",), f"{place}.content[{index}]") for index, part in enumerate(parts)
    ):
        raise refused(f"{place}.content", f"{place}.content must be a list of reasoning_text parts")
    return "".join(part["text"] for part in parts)


def _text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused(place, f"{place} must be a string or a list of text parts")
    for index, part in enumerate(content):
        if not _is_part(part, _TEXT_PARTS, f"{place}[{index}]"):
            kind = part.get("type") if isinstance(part, dict) else part
            raise refused(
                f"{place}[{index}].type", f"{place}[{index}] is {shown(kind)}, but must be a part with text: input_text"
            )
    return "".join(part["text"] for part in content)


def _is_part(part: Any, kinds: tuple[str, ...], place: str) -> bool:
    if not isinstance(part, dict) or part.get("type") not in kinds or not isinstance(part.get("text"), str):
        return False
    check_sent_back(part, place, {"type", "text", *echoes("input[].content[]")})
    return True


def _string(item: Message, name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not (value or name == "arguments"):
        raise refused(f"{place}.{name}", f"{place}.{name} is {shown(value)}, but must be a string that is not empty")
    return value
