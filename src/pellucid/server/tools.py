"""The tools of a request: checked, and what may be done with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pellucid.server.checks import boolean, check_inner, refused, shown

MAX_TOOLS = 128
MAX_TOOLS_CHARS = 512 * 1024
"""Names, descriptions and schemas together, as JSON."""
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_TOOL_FIELDS = ("name", "description", "parameters", "strict")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that an answer may call."""

    tools: tuple[dict[str, Any], ...]
    """In the form of /v1/chat/completions, which is what templates take: `{"type": "function", "function": …}`."""
    required: tuple[str, ...] | None
    """The answer has to be a call of one of these; None: the model decides."""
    parallel: bool
    """Whether there may be more than one call."""

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The JSON schema of each tool's parameters; {} takes anything."""
        return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in self.tools}

    @property
    def strict(self) -> frozenset[str]:
        """Tools whose arguments have to follow their schema."""
        return frozenset(tool["function"]["name"] for tool in self.tools if tool["function"].get("strict"))


def parse_tools(body: Mapping[str, Any], *, flat: bool = False) -> ToolUse | None:
    """The fields tools, tool_choice and parallel_tool_calls; None where no tool may be called. Raises `ApiError`.

    flat: as /v1/responses has them, `{"type": "function", "name": …}` without the object inside.
    """
    tools = _check_tools(body.get("tools"), flat)
    names = [tool["function"]["name"] for tool in tools]
    parallel = boolean(body, "parallel_tool_calls", True)
    choice = body.get("tool_choice")
    if choice is None or choice == "auto":
        return ToolUse(tuple(tools), None, parallel) if tools else None
    if choice == "none":
        return None
    if not tools:
        raise refused("tool_choice", f"tool_choice is {shown(choice)}, but there are no tools")
    if choice == "required":
        return ToolUse(tuple(tools), tuple(names), parallel)
    if isinstance(choice, dict) and choice.get("type") == "function":
        return ToolUse(tuple(tools), (_named(choice, "tool_choice", names, flat),), parallel=False)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        if flat:
            return _allowed(choice, "tool_choice", tools, parallel, flat)
        check_inner(choice, "tool_choice", ("type", "allowed_tools"))
        return _allowed(choice.get("allowed_tools"), "tool_choice.allowed_tools", tools, parallel, flat)
    raise refused(
        "tool_choice",
        f"tool_choice is {shown(choice)}, but must be none, auto, required, or an object that names a function or "
        "allowed_tools",
    )


def _named(choice: Any, place: str, names: list[str], flat: bool) -> str:
    """The function that an object names, which has the form of a tool."""
    named = choice
    if not flat and isinstance(choice, dict):
        check_inner(choice, place, ("type", "function"))
        named, place = choice.get("function"), f"{place}.function"
    if isinstance(named, dict):
        check_inner(named, place, ("type", "name") if flat else ("name",))
    name = named.get("name") if isinstance(named, dict) else None
    if not isinstance(name, str) or name not in names:
        raise refused("tool_choice", f"tool_choice names {shown(name)}, which is not among the tools")
    return name


def _allowed(choice: Any, place: str, tools: list[dict[str, Any]], parallel: bool, flat: bool) -> ToolUse:
    """Only some of the tools; the model is shown no others."""
    mode = choice.get("mode") if isinstance(choice, dict) else None
    listed = choice.get("tools") if isinstance(choice, dict) else None
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise refused("tool_choice", "allowed_tools must have a mode, auto or required, and a list of tools")
    check_inner(choice, place, ("type", "mode", "tools") if flat else ("mode", "tools"))
    names = [tool["function"]["name"] for tool in tools]
    allowed = {_named(item, f"{place}.tools[{index}]", names, flat) for index, item in enumerate(listed)}
    kept = tuple(tool for tool in tools if tool["function"]["name"] in allowed)
    required = tuple(tool["function"]["name"] for tool in kept) if mode == "required" else None
    return ToolUse(kept, required, parallel)


def _check_tools(tools: Any, flat: bool) -> list[dict[str, Any]]:
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise refused("tools", "tools must be a list")
    if len(tools) > MAX_TOOLS:
        raise refused("tools", f"tools has {len(tools)} entries, more than {MAX_TOOLS}")
    checked = [_check_tool(tool, f"tools[{index}]", flat) for index, tool in enumerate(tools)]
    seen: set[str] = set()
    for index, tool in enumerate(checked):
        name = tool["function"]["name"]
        if name in seen:
            raise refused(f"tools[{index}]", f"tools has {shown(name)} twice")
        seen.add(name)
    num_chars = len(json.dumps(checked)) if checked else 0
    if num_chars > MAX_TOOLS_CHARS:
        raise refused("tools", f"tools takes {num_chars} characters as JSON, more than {MAX_TOOLS_CHARS}")
    return checked


def _check_tool(tool: Any, place: str, flat: bool) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise refused(f"{place}.type", f"{place}.type is {shown(kind)}, but only tools of the type function are served")
    if flat:
        function, inner = {name: value for name, value in tool.items() if name != "type"}, place
    else:
        function, inner = tool.get("function"), f"{place}.function"
        check_inner(tool, place, ("type", "function"))
    if not isinstance(function, dict):
        raise refused(inner, f"{inner} must be an object with a name")
    return {"type": "function", "function": _check_function(function, inner)}


def _check_function(function: dict[str, Any], place: str) -> dict[str, Any]:
    check_inner(function, place, _TOOL_FIELDS)
    plain = {key: function[key] for key in _TOOL_FIELDS if function.get(key) is not None}
    name = plain.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise refused(
            f"{place}.name",
            f"{place}.name is {shown(name)}, but must be 1 to 128 letters, digits or any of _ . : / -",
        )
    if not isinstance(plain.get("description", ""), str):
        raise refused(f"{place}.description", f"{place}.description must be a string")
    if not isinstance(plain.get("parameters", {}), dict):
        raise refused(f"{place}.parameters", f"{place}.parameters must be a JSON schema, an object")
    if not isinstance(plain.get("strict", False), bool):
        raise refused(f"{place}.strict", f"{place}.strict must be true or false")
    return plain
