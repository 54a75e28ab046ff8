"""DeepSeek's reasoning and tool calls over HTTP, and what its chat templates ask of the history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from http_server import RunningServer
from scripted import DEEPSEEK, say, scripted_engine

TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather now.", "parameters": {"type": "object"}},
}
ARGUMENTS = '{"city": "Köln"}'
CALL = f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
CALLS = f"<｜tool▁calls▁begin｜>{CALL}{CALL}<｜tool▁calls▁end｜>"
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer(scripted_engine(DEEPSEEK)) as running:
        yield running


def both(server: RunningServer, text: str, **options: Any) -> tuple[str, str, list[str], str]:
    """Content, reasoning, the calls' arguments and the finish_reason, the same streamed and not."""
    body = {"messages": [{"role": "user", "content": say(text)}], **options}
    choice = server.post(PATH, body).json()["choices"][0]
    message = choice["message"]
    arguments = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    whole = (message["content"] or "", message.get("reasoning_content", ""), arguments, choice["finish_reason"])
    content, reasoning, told, reason = "", "", [], None
    lines = server.post(PATH, {**body, "stream": True}).text.split("\n\n")
    for line in lines:
        if not line.startswith("data: {"):
            continue
        choice = json.loads(line.removeprefix("data: "))["choices"][0]
        content += choice["delta"].get("content") or ""
        reasoning += choice["delta"].get("reasoning_content") or ""
        for call in choice["delta"].get("tool_calls", ()):
            told += [""] if "id" in call else []
            told[call["index"]] += call["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    assert (content, reasoning, told, reason) == whole
    return whole


def test_calls_and_reasoning(server: RunningServer) -> None:
    assert both(server, CALLS, tools=[TOOL]) == ("", "", [ARGUMENTS, ARGUMENTS], "tool_calls")
    assert both(server, f"I look.{CALLS}", tools=[TOOL], parallel_tool_calls=False)[:3] == ("I look.", "", [ARGUMENTS])
    assert both(server, CALLS) == (CALLS, "", [], "stop")
    thinking = {"chat_template_kwargs": {"thinking": True}}
    assert both(server, "Hm.</think>Yes.", **thinking) == ("Yes.", "Hm.", [], "stop")
    assert both(server, f"Hm. {CALL}</think>{CALLS}", tools=[TOOL], **thinking)[:3] == (
        "",
        f"Hm. {CALL}",
        [ARGUMENTS, ARGUMENTS],
    )
    assert both(server, "Yes.", reasoning_effort="none") == ("Yes.", "", [], "stop")


def test_a_call_is_forced(server: RunningServer) -> None:
    answer = both(server, f"{CALLS} and more", tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert answer[0] == ""
    assert len(answer[2]) == 1


def test_the_history_and_the_tools_reach_the_template(server: RunningServer) -> None:
    function = {"name": "get_weather", "arguments": ARGUMENTS}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "Rain"},
    ]
    ids = server.post("/tokenize", {"messages": messages, "tools": [TOOL]}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json()["prompt"] == (
        "Be brief.\n\n## Tools\n\nYou have access to the following tools:\n\n### get_weather\n"
        "Description: The weather now."
        '\n\nParameters: {"type": "object"}\n\nTo call tools, write exactly this, the arguments as JSON '
        "that follows the tool's parameters, with further calls before the last mark:\n"
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        f"<｜User｜>Weather?<｜Assistant｜><｜tool▁calls▁begin｜>{CALL}<｜tool▁calls▁end｜>"
        "<｜tool▁output▁begin｜>Rain<｜tool▁output▁end｜></think><s>assistant:"
    )
