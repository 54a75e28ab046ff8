"""Beam search: the sequences of highest probability that a beam of them finds (Graves 2012; Sutskever et al. 2014).

Follows transformers' rules, so that both give the same sequences: candidates are the best continuations of all beams
together, finished ones are kept apart and scored by length, and the search ends as `early_stopping` says.

Beams share the KV blocks of what they have in common. A block is copied only where a beam is about to write into one
that another beam holds too: the last, partly filled one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid.beam_search_params import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.model_runner import Model
from pellucid.errors import InvalidParameterError, NonFiniteError
from pellucid.forward_batch import Float32Array, SequencePart, batch_of
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.tokenizer.detokenizer import IncrementalDetokenizer

_FIRST_KEY = -1
"""Keys of beams count down from here: the scheduler's sequences have keys from 1 up."""


@dataclass(slots=True)
class _Beam:
    key: int
    tokens: list[int]
    score: float
    """Sum of the tokens' logprobs."""


@dataclass(slots=True)
class _Finished:
    tokens: list[int]
    total: float
    score: float
    is_eos: bool


def beam_search(engine: LLMEngine, prompt: list[int], params: BeamSearchParams) -> BeamSearchOutput:
    """One search with the engine's model and KV cache, which nobody else uses meanwhile; see `BeamSearch.run`."""
    tokenizer: Any = engine.tokenizer
    search = BeamSearch(
        engine.model, engine.storage, engine.kv, max_num_batched_tokens=engine.args.max_num_batched_tokens
    )
    sequences = search.run(prompt, params, frozenset() if params.ignore_eos else frozenset(tokenizer.eos_ids))
    for sequence in sequences:
        text = IncrementalDetokenizer(tokenizer)
        has_end = sequence.finish_reason == "stop"
        ids = sequence.token_ids[:-1] if has_end else sequence.token_ids
        sequence.text = "".join([*map(text.push, ids), text.flush()])
    return BeamSearchOutput(prompt, sequences)


class BeamSearch:
    """One search over a model and a KV cache that nobody else uses meanwhile."""

    def __init__(
        self, model: Model, storage: KVCacheStorage, kv: KVCacheManager, *, max_num_batched_tokens: int
    ) -> None:
        self._model = model
        self._storage = storage
        self._kv = kv
        self._chunk = max_num_batched_tokens
        self._next_key = _FIRST_KEY

    def run(
        self, prompt: Sequence[int], params: BeamSearchParams, end_token_ids: frozenset[int]
    ) -> list[BeamSearchSequence]:
        """The beam_width best sequences, without text, the best first.

        Raises `InvalidParameterError` where the KV cache has no room for so many beams, `NonFiniteError` where the
        model gives NaN; the blocks are free again in any case.
        """
        self._check_room(len(prompt), params)
        beams = [_Beam(self._new_key(), [], 0.0)]
        try:
            logits = self._prefill(beams[0].key, prompt)
            return self._search(beams, logits, len(prompt), params, end_token_ids)
        finally:
            for beam in beams:
                self._kv.free(beam.key)

    def _search(
        self,
        beams: list[_Beam],
        logits: Float32Array,
        num_prompt: int,
        params: BeamSearchParams,
        end_token_ids: frozenset[int],
    ) -> list[BeamSearchSequence]:
        """`beams` is changed in place, so that the caller can free what they hold."""
        width, finished, can_improve = params.beam_width, list[_Finished](), True
        for length in range(1, params.max_tokens + 1):
            candidates = _best_continuations(beams, logits, max(2, 1 + len(end_token_ids)) * width)
            ends = [token in end_token_ids or length == params.max_tokens for _, token, _ in candidates]
            is_full = len(finished) == width
            if can_improve and not (is_full and params.early_stopping is True):
                for (parent, token, score), is_end in zip(candidates[:width], ends[:width], strict=True):
                    if is_end:
                        tokens = [*beams[parent].tokens, token]
                        value = score / length**params.length_penalty
                        finished.append(_Finished(tokens, score, value, token in end_token_ids))
                finished = sorted(finished, key=lambda found: -found.score)[:width]
            running = [c for c, is_end in zip(candidates, ends, strict=True) if not is_end][:width]
            if not running:
                break
            can_improve = can_improve and _can_improve(finished, running[0][2], length, params)
            if not can_improve or (len(finished) == width and params.early_stopping is True):
                break
            self._fork(beams, running, num_prompt + length - 1)
            logits = self._decode(beams, num_prompt + length - 1)
        return [
            BeamSearchSequence("", found.tokens, found.total, found.score, "stop" if found.is_eos else "length")
            for found in finished
        ]

    def _fork(self, beams: list[_Beam], chosen: list[tuple[int, int, float]], num_tokens: int) -> None:
        """Beams that go on become their continuations; `num_tokens` of each parent are in the cache."""
        going_on = {parent for parent, _, _ in chosen}
        for index, beam in enumerate(beams):
            if index not in going_on:
                self._kv.free(beam.key)
        used: set[int] = set()
        children: list[_Beam] = []
        for parent, token, score in chosen:
            key = beams[parent].key
            if parent in used:
                key = self._new_key()
                copied = self._kv.fork(beams[parent].key, key, num_tokens)
                if copied is not None:
                    self._storage.copy_block(*copied)
            used.add(parent)
            children.append(_Beam(key, [*beams[parent].tokens, token], score))
        beams[:] = children

    def _prefill(self, key: int, prompt: Sequence[int]) -> Float32Array:
        """Logits [1, vocab] after the prompt, which is computed in chunks."""
        self._grow(key, len(prompt))
        hidden = np.empty((0, 0), dtype=np.float32)
        for start in range(0, len(prompt), self._chunk):
            part = prompt[start : start + self._chunk]
            hidden = self._forward([key], [part], start)[-1:]
        return self._logits(hidden)

    def _decode(self, beams: list[_Beam], position: int) -> Float32Array:
        """Logits [beams, vocab] after each beam's newest token, which stands at `position`."""
        keys = [beam.key for beam in beams]
        for key in keys:
            self._grow(key, position + 1)
        rows: list[Float32Array] = []
        for first in range(0, len(beams), self._chunk):
            part = slice(first, first + self._chunk)
            newest = [beam.tokens[-1:] for beam in beams[part]]
            rows.append(self._forward(keys[part], newest, position).copy())
        return self._logits(np.concatenate(rows))

    def _logits(self, hidden: Float32Array) -> Float32Array:
        logits = self._model.compute_logits(np.ascontiguousarray(hidden))
        if np.isnan(logits).any():
            raise NonFiniteError("the model gives NaN instead of logits: this beam search ends here")
        return logits

    def _forward(self, keys: list[int], parts: Sequence[Sequence[int]], start: int) -> Float32Array:
        """Hidden states of each sequence's `parts`, which begin at position `start` in all of them."""
        work = [SequencePart(part, start, self._kv.block_table(key)) for key, part in zip(keys, parts, strict=True)]
        output = self._model.forward(batch_of(work, self._kv.block_size), self._storage)
        if output.nonfinite.any():
            raise NonFiniteError("a key or value of this beam search is not finite: it ends here")
        return output.hidden

    def _grow(self, key: int, num_tokens: int) -> None:
        if not self._kv.grow(key, num_tokens):
            raise AssertionError("the KV cache has no room that was there before the search")

    def _check_room(self, num_prompt: int, params: BeamSearchParams) -> None:
        """Blocks of the prompt once, and of what each beam may write on its own."""
        shared = num_prompt // self._kv.block_size
        own = self._kv.blocks_for(num_prompt + params.max_tokens) - shared
        needed = shared + params.beam_width * own
        if needed > self._kv.num_available:
            raise InvalidParameterError(
                "beam_width",
                f"beam_width is {params.beam_width}, for which {needed} KV blocks are needed, but "
                f"{self._kv.num_available} are free: lower beam_width or max_tokens, or raise kv_cache_memory_bytes",
            )

    def _new_key(self) -> int:
        self._next_key -= 1
        return self._next_key


def _best_continuations(beams: list[_Beam], logits: Float32Array, count: int) -> list[tuple[int, int, float]]:
    """(beam, token, score) of the `count` best continuations of all beams; equal ones by beam, then token."""
    top = logits.max(axis=1, keepdims=True)
    shifted = logits - top
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float32))
    scores = (logprobs + np.array([[beam.score] for beam in beams], dtype=np.float32)).reshape(-1)
    count = min(count, len(scores))
    best = np.argpartition(-scores, count - 1)[:count] if count < len(scores) else np.arange(len(scores))
    best = best[np.lexsort((best, -scores[best]))]
    vocab = logits.shape[1]
    return [(int(i) // vocab, int(i) % vocab, float(scores[i])) for i in best]


def _can_improve(finished: list[_Finished], best_running: float, length: int, params: BeamSearchParams) -> bool:
    """Whether a running beam may still beat the worst finished one, by transformers' estimate."""
    if len(finished) < params.beam_width:
        return True
    reach = params.max_tokens if params.early_stopping == "never" and params.length_penalty > 0 else length
    return bool(best_running / reach**params.length_penalty > finished[-1].score)
