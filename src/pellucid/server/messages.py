"""The messages of a conversation, checked, as the chat template gets them."""

from __future__ import annotations

from typing import Any

from pellucid.errors import InvalidParameterError
from pellucid.server.api_errors import api_error
from pellucid.server.checks import check_sent_back, refused, shown
from pellucid.server.openai_fields import echoes
from pellucid.tokenizer import chat_template

_EVERY = ("role", "content", "name")
MESSAGE_FIELDS: dict[str, tuple[str, ...]] = {
    "developer": _EVERY,
    "system": _EVERY,
    "user": _EVERY,
    "assistant": (*_EVERY, "tool_calls", "reasoning_content"),
    "tool": (*_EVERY, "tool_call_id"),
}
"""By role."""
ROLES = tuple(MESSAGE_FIELDS)
_OTHER_NAMES = {"reasoning": "reasoning_content"}
"""What newer clients call a field."""
MAX_MESSAGES = 10_000


def check_messages(messages: Any, *, maps_developer: bool) -> list[dict[str, Any]]:
    """Messages for the template: contents are texts, the arguments of calls objects. Raises `ApiError`.

    maps_developer: the template does not know the role `developer`, so it becomes `system`.
    """
    if not isinstance(messages, list):
        raise refused("messages", "messages must be a list of {role, content} objects")
    if len(messages) > MAX_MESSAGES:
        raise refused("messages", f"messages has {len(messages)} entries, more than {MAX_MESSAGES}")
    plain = [_check_message(m, f"messages[{i}]", maps_developer) for i, m in enumerate(messages)]
    try:
        return chat_template.check_messages(plain)
    except InvalidParameterError as error:
        raise api_error(error) from None


def _check_message(message: Any, place: str, maps_developer: bool) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise refused(place, f"{place} must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise refused(f"{place}.role", f"{place}.role is {shown(role)}, but must be one of {', '.join(ROLES)}")
    allowed = MESSAGE_FIELDS[role]
    sent_back = echoes("messages[]") if role == "assistant" else ()
    plain: dict[str, Any] = {}
    for given, value in message.items():
        name = _OTHER_NAMES.get(given, given) if role == "assistant" else given
        if value is None or (name not in allowed and (value in ([], "") or name in sent_back)):
            continue
        if name not in allowed:
            raise refused(
                f"{place}.{given[:64]}",
                f"{place}.{shown(given)} is not served; a message of the role {role} has {', '.join(allowed)}",
            )
        plain[name] = value
    for name in ("name", "tool_call_id", "reasoning_content"):
        if name in plain and not isinstance(plain[name], str):
            raise refused(f"{place}.{name}", f"{place}.{name} must be a string")
    if role == "tool" and "tool_call_id" not in plain:
        raise refused(f"{place}.tool_call_id", f"{place}.tool_call_id is missing: a result says which call it is of")
    if "tool_calls" in plain:
        plain["tool_calls"] = _check_calls(plain["tool_calls"], f"{place}.tool_calls")
    return {**plain, "role": "system"} if role == "developer" and maps_developer else plain


def _check_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise refused(place, f"{place} must be a list of calls")
    return [_check_call(call, f"{place}[{index}]") for index, call in enumerate(calls)]


def _check_call(call: Any, place: str) -> dict[str, Any]:
    kind = call.get("type", "function") if isinstance(call, dict) else None
    function = call.get("function") if isinstance(call, dict) else None
    if kind != "function" or not isinstance(function, dict):
        raise refused(place, f'{place} must be {{"id": …, "type": "function", "function": {{"name", "arguments"}}}}')
    check_sent_back(call, place, {"id", "type", "function", *echoes("messages[].tool_calls[]")})
    check_sent_back(function, f"{place}.function", {"name", "arguments", *echoes("messages[].tool_calls[].function")})
    name, arguments = function.get("name"), function.get("arguments", "{}")
    if not isinstance(name, str) or not name:
        raise refused(f"{place}.function.name", f"{place}.function.name must be a string with the tool's name")
    if not isinstance(arguments, str):
        raise refused(f"{place}.function.arguments", f"{place}.function.arguments must be a string that holds JSON")
    if not isinstance(call.get("id", ""), str):
        raise refused(f"{place}.id", f"{place}.id must be a string")
    given = {"id": call["id"]} if "id" in call else {}
    return {**given, "type": "function", "function": {"name": name, "arguments": arguments}}
