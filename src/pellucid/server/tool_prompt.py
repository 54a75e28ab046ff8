"""Tools for models whose chat template has no place for them.

They are told of in the system message, calls are asked for in the form of `FALLBACK_FAMILY`, and the history's calls
and results become text, so that any template with system, user and assistant turns can show them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pellucid.server.output.families import ToolFamily

_INSTRUCTIONS = """\
These functions can be called, each described by a JSON schema:
<tools>
{tools}
</tools>

To call one, write its name and arguments as a JSON object between tags, and nothing else:
<tool_call>
{{"name": "NAME", "arguments": {{"PARAMETER": VALUE}}}}
</tool_call>
Results come back between <tool_response> tags. Where no function helps, answer in plain words."""


_OWN_FORM = """\
## Tools

You have access to the following tools:
{tools}

To call tools, write exactly this, the arguments as JSON that follows the tool's parameters, with further calls before \
the last mark:
{form}"""
"""For families with a form of their own; the headings are those that DeepSeek's documents give for V3.1."""


def messages_with_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], family: ToolFamily | None = None
) -> list[dict[str, Any]]:
    """The conversation with the tools, the calls and the results in its texts.

    family: where it shows calls, the template writes those of the history, and only the tools become text.
    """
    if family is not None and family.shows_calls:
        plain, text = list(messages), _in_own_form(tools, family)
    else:
        plain, text = _without_tool_roles(messages), _INSTRUCTIONS.format(tools=_listed(tools))
    if not tools:
        return plain
    if plain and plain[0].get("role") == "system":
        return [{**plain[0], "content": _joined(plain[0].get("content"), text)}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _listed(tools: Sequence[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)


def _in_own_form(tools: Sequence[dict[str, Any]], family: ToolFamily) -> str:
    parts = []
    for tool in tools:
        function = tool["function"]
        described = f"\nDescription: {function['description']}" if function.get("description") else ""
        parameters = json.dumps(function.get("parameters") or {}, ensure_ascii=False)
        parts.append(f"\n### {function['name']}{described}\n\nParameters: {parameters}")
    before, after = family.around_arguments or ("", "")
    form = f"{family.form.head}{before.replace('{name}', 'NAME')}ARGUMENTS{after}{family.form.foot}"
    return _OWN_FORM.format(tools="\n".join(parts), form=form)


def _without_tool_roles(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    was_tool = False
    for message in messages:
        is_tool = message.get("role") == "tool"
        if is_tool:
            text = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
            if was_tool:
                result[-1]["content"] += f"\n{text}"
            else:
                result.append({"role": "user", "content": text})
        elif message.get("tool_calls"):
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            calls = "\n".join(map(_call, message["tool_calls"]))
            result.append({**rest, "content": _joined(message.get("content"), calls, "\n")})
        else:
            result.append(message)
        was_tool = is_tool
    return result


def _call(call: dict[str, Any]) -> str:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {text or "{}"}}}\n</tool_call>'


def _joined(content: str | None, text: str, between: str = "\n\n") -> str:
    return f"{content}{between}{text}" if content else text
