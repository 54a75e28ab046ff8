"""What was generated → the items of a response's output, and the events that tell of them one by one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

from pellucid.server.output.events import CallArguments, CallStart, Content, Event, Reasoning

Json = dict[str, Any]

_PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


class OutputItems:
    """The items so far. One is open at a time; another kind of text, or `close`, completes it.

    new_call_id: makes the ids that results of calls refer to.
    """

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self.items: list[Json] = []
        self._new_call_id = new_call_id
        self._is_open = False

    def add(self, event: Event, logprobs: list[Json] | None = None) -> Iterator[Json]:
        """Take what was generated; gives the events, not numbered yet. logprobs: of a content's tokens."""
        if isinstance(event, CallStart):
            yield from self._open("function_call", call_id=self._new_call_id(), name=event.name, arguments="")
        elif isinstance(event, CallArguments):
            self._last["arguments"] += event.fragment
            yield self._about_item("response.function_call_arguments.delta", delta=event.fragment)
        elif isinstance(event, Content):
            if not self._is_in("message"):
                yield from self._open("message", role="assistant", content=[])
                yield from self._open_part({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
            yield from self._more("response.output_text.delta", event.text, logprobs)
        elif isinstance(event, Reasoning):
            if not self._is_in("reasoning"):
                yield from self._open("reasoning", summary=[], content=[])
                yield from self._open_part({"type": "reasoning_text", "text": ""})
            yield from self._more("response.reasoning_text.delta", event.text, None)

    def close(self, status: str = "completed") -> Iterator[Json]:
        """Complete the item that is open; `incomplete`: the answer was cut off in it."""
        if not self._is_open:
            return
        self._is_open = False
        item = self._last
        item["status"] = status
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._about_item("response.function_call_arguments.done", **done)
        else:
            part = item["content"][0]
            if item["type"] == "message":
                yield self._about_part("response.output_text.done", text=part["text"], logprobs=part["logprobs"])
            else:
                yield self._about_part("response.reasoning_text.done", text=part["text"])
            yield self._about_part("response.content_part.done", part=part)
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    @property
    def _last(self) -> Json:
        return self.items[-1]

    def _is_in(self, kind: str) -> bool:
        return self._is_open and self._last["type"] == kind

    def _open(self, kind: str, **fields: Any) -> Iterator[Json]:
        yield from self.close()
        self._is_open = True
        item: Json = {"id": f"{_PREFIX[kind]}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **fields}
        self.items.append(item)
        shown = {**item, "content": []} if "content" in item else dict(item)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": shown}

    def _open_part(self, part: Json) -> Iterator[Json]:
        self._last["content"].append(part)
        yield self._about_part("response.content_part.added", part=dict(part))

    def _more(self, kind: str, text: str, logprobs: list[Json] | None) -> Iterator[Json]:
        part = self._last["content"][0]
        part["text"] += text
        fields: Json = {"delta": text}
        if "logprobs" in part:
            part["logprobs"] = [*part["logprobs"], *(logprobs or [])]
            fields["logprobs"] = logprobs or []
        yield self._about_part(kind, **fields)

    def _about_item(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "item_id": self._last["id"], "output_index": len(self.items) - 1, **fields}

    def _about_part(self, kind: str, **fields: Any) -> Json:
        return self._about_item(kind, content_index=0, **fields)
