"""The response object of /v1/responses, whole or as a stream of events."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from pellucid.outputs import CompletionOutput, RequestOutput
from pellucid.server.answers import Answers, Json
from pellucid.server.api_errors import ApiError
from pellucid.server.output.choice import ChoiceParser
from pellucid.server.output.events import Content, Event
from pellucid.server.output.token_logprobs import PieceLogprobs
from pellucid.server.responses.output import OutputItems
from pellucid.server.responses.request import ResponsesRequest


class ResponseAnswers(Answers):
    """One answer. Whole or streamed, it is put together from the same events."""

    end_mark = b""
    request: ResponsesRequest

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "keep": False})
        family = None if self.request.format is None else self.request.format.tools
        self._output = OutputItems(lambda: "" if family is None else family.new_id())
        self._parser: ChoiceParser | None = None
        self._drawn: list[int] = []
        self._prompt = ""
        self._logprobs: PieceLogprobs | None = None
        if self.request.includes_logprobs:
            params = self.request.params
            self._logprobs = PieceLogprobs(self._tokenizer, params.skip_special_tokens, params.logprobs or 0)
        self._num_events = 0
        self._finish_reason: str | None = None
        self._refusal: ApiError | None = None

    def opening(self) -> list[Json]:
        return [self._numbered({"type": kind, "response": self._response()}) for kind in _OPENING]

    def closing(self) -> list[Json]:
        response = self._response()
        return [self._numbered({"type": f"response.{response['status']}", "response": response})]

    def failed(self, refusal: ApiError) -> list[Json]:
        self._refusal = refusal
        error = {name: refusal.body["error"][name] for name in ("message", "code", "param")}
        failed = {"type": "response.failed", "response": self._response()}
        return [self._numbered({"type": "error", **error}), self._numbered(failed)]

    def frame(self, chunk: Json) -> bytes:
        return f"event: {chunk['type']}\n".encode() + super().frame(chunk)

    def body(self) -> Json:
        return self._response()

    def usage(self) -> Json:
        format, num_reasoning = self.request.format, 0
        if format is not None and format.reasoning is not None:
            num_reasoning = self.request.num_reasoning_tokens(self._drawn, self._prompt, self._tokenizer)
        return {
            "input_tokens": self.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.num_completion_tokens,
            "output_tokens_details": {"reasoning_tokens": num_reasoning},
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
        }

    def _frames(self, place: int, delta: RequestOutput, completion: CompletionOutput) -> list[bytes]:
        return [self.frame(chunk) for chunk in self._chunks(delta, completion)]

    def _chunks(self, delta: RequestOutput, completion: CompletionOutput) -> Iterator[Json]:
        if self._parser is None:
            self._prompt = delta.prompt or ""
            self._parser = self.request.parser(self._prompt)
        self._drawn += completion.token_ids
        if self._logprobs is not None:
            self._logprobs.take(completion)
        is_end = completion.finish_reason is not None
        events = self._parser.push(completion.text) + (self._parser.finish() if is_end else [])
        for event in events:
            yield from self._told(event)
        if is_end:
            self._finish_reason = completion.finish_reason
            if not self._output.items:
                yield from self._told(Content(""))
            yield from map(self._numbered, self._output.close(self._status))

    def _told(self, event: Event) -> Iterator[Json]:
        """The logprobs of tokens of reasoning and calls are in no text."""
        logprobs: list[Json] = []
        if self._logprobs is not None and isinstance(event, Content):
            logprobs = self._logprobs.of(event.at, event.text)
        yield from map(self._numbered, self._output.add(event, logprobs))

    def _numbered(self, event: Json) -> Json:
        numbered = {**copy.deepcopy(event), "sequence_number": self._num_events}
        self._num_events += 1
        return numbered

    @property
    def _status(self) -> str:
        if self._refusal is not None:
            return "failed"
        if self._finish_reason is None:
            return "in_progress"
        return "incomplete" if self._finish_reason == "length" else "completed"

    def _response(self) -> Json:
        status, refusal = self._status, self._refusal
        is_over = status in ("completed", "incomplete")
        return {
            "id": self.name,
            "object": "response",
            "created_at": self._head["created"],
            "status": status,
            "error": None if refusal is None else {"code": "server_error", "message": refusal.message},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._head["model"],
            "output": self._output.items,
            "usage": self.usage() if is_over else None,
            **self.request.echoed,
            **({"pellucid": self.additions()} if is_over else {}),
        }


_OPENING = ("response.created", "response.in_progress")
