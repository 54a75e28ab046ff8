"""The answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pellucid.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from pellucid.server.answers import Answers, Json
from pellucid.server.output.token_logprobs import TextOffsets
from pellucid.server.parsing import CompletionRequest
from pellucid.server.wire import finite


class CompletionAnswers(Answers):
    """/v1/completions. Its logprobs are of all tokens drawn, the one that ended the answer and a stop string's too."""

    kind = "text_completion"
    chunk_kind = "text_completion"
    request: CompletionRequest

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._offsets: dict[int, TextOffsets] = {}
        self._prompt_rows: dict[int, Sequence[TokenLogprobs | None]] = {}

    def _choice(self, place: int, total: RequestOutput, completion: CompletionOutput) -> Json:
        return {
            "index": self._index(place, completion),
            "text": self._prompt_text(total) + completion.text,
            "logprobs": self._logprobs(place, completion, total.prompt_token_ids, total.prompt_logprobs),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
            **({} if self.request.echo else self._prompt_logprobs(total)),
        }

    def _frames(self, place: int, delta: RequestOutput, completion: CompletionOutput) -> list[bytes]:
        index, text = self._index(place, completion), completion.text
        if delta.prompt_logprobs is not None:
            self._prompt_rows[place] = delta.prompt_logprobs
        is_first = index not in self._begun
        self._begun.add(index)
        prompt_rows = self._prompt_rows.get(place) if is_first else None
        if is_first:
            text = self._prompt_text(delta) + text
        logprobs = None
        if self.request.params.logprobs is not None:
            logprobs = self._logprobs(place, completion, delta.prompt_token_ids, prompt_rows)
        if completion.finish_reason is not None:
            choice = self._text_choice(index, text, logprobs)
            ending = {"finish_reason": completion.finish_reason, "stop_reason": completion.stop_reason}
            return [self.frame(self._chunk({**choice, **ending}, place))]
        return [self._text_frame(place, index, text, logprobs)] if text or logprobs else []

    def _text_choice(self, index: int, text: str, logprobs: Any) -> Json:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None, "stop_reason": None}

    def _prompt_text(self, output: RequestOutput) -> str:
        if not self.request.echo:
            return ""
        if output.prompt is not None:
            return output.prompt
        skip = self.request.params.skip_special_tokens
        return str(self._tokenizer.decode(output.prompt_token_ids, skip_special_tokens=skip))

    def _logprobs(
        self,
        place: int,
        completion: CompletionOutput,
        prompt_ids: Sequence[int],
        prompt_rows: Sequence[TokenLogprobs | None] | None,
    ) -> Json | None:
        num_top = self.request.params.logprobs
        if num_top is None or completion.logprobs is None:
            return None
        rows: list[tuple[int, TokenLogprobs | None]] = []
        if self.request.echo and prompt_rows is not None:
            rows += zip(prompt_ids, prompt_rows, strict=True)
        rows += zip(completion.token_ids, completion.logprobs, strict=True)
        if not rows:
            return None
        index = self._index(place, completion)
        if index not in self._offsets:
            self._offsets[index] = TextOffsets(self._tokenizer, self.request.params.skip_special_tokens)
        offsets = self._offsets[index]
        return {
            "text_offset": [offsets.next(token_id)[0] for token_id, _ in rows],
            "tokens": [self._tokenizer.token_text(token_id) for token_id, _ in rows],
            "token_logprobs": [None if e is None else finite(e[token_id].logprob) for token_id, e in rows],
            "top_logprobs": [None if e is None else _by_text(e) for _, e in rows] if num_top else None,
        }


def _by_text(entries: TokenLogprobs) -> dict[str, float]:
    """Tokens that look alike (parts of characters) share a name: the chosen one, or the most probable, keeps it."""
    found: dict[str, float] = {}
    for entry in entries.values():
        found.setdefault(entry.decoded_token, finite(entry.logprob))
    return found
