"""Intake: what a caller asks for → the sequences of a request, checked. Nothing is queued here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.config import EngineArgs
from pellucid.engine.output_processor import TokenizerLike
from pellucid.engine.overflow import truncated_prompt
from pellucid.engine.validation import (
    check_params,
    check_text_length,
    checked_client,
    checked_priority,
    checked_processors,
    checked_prompt,
    checked_salt,
)
from pellucid.errors import InvalidParameterError
from pellucid.outputs import Overflow
from pellucid.request import LogitsProcessor, Request
from pellucid.sampling.constraints.compiler import CompiledGrammar, GrammarCompiler
from pellucid.sampling_params import MAX_SEED, SamplingParams


@dataclass(frozen=True, slots=True)
class NewRequest:
    """The sequences of a request, n of them, and its prompt's text where that is known."""

    sequences: list[Request]
    text: str | None
    overflow: Overflow | None


class Intake:
    """Checks requests, numbers them, and gives a seed to those without one. Used by the engine's thread only."""

    def __init__(self, args: EngineArgs, tokenizer: TokenizerLike, vocab_size: int, max_model_len: int) -> None:
        self.grammars = GrammarCompiler(tokenizer, vocab_size)
        """For structured_outputs; its `compile` may be called from any thread."""
        self._args = args
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._num_requests = 0
        self._num_sequences = 0

    def request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        prompt_text: str | None,
        priority: int,
        cache_salt: str,
        client: str,
        logits_processors: Sequence[LogitsProcessor],
        overflow: Overflow | None,
    ) -> NewRequest:
        """As `LLMEngine.add_request`."""
        text = prompt if isinstance(prompt, str) else prompt_text
        if isinstance(prompt, str):
            if params.overflow == "error":
                check_text_length(self._tokenizer, prompt, self._max_model_len)
            prompt = self._tokenizer.encode(prompt)
        ids = checked_prompt(prompt, self._vocab_size)
        if isinstance(params, SamplingParams) and params.overflow != "error" and overflow is None:
            fitted = truncated_prompt(ids, text, params, self._tokenizer, self._max_model_len)
            ids, text, overflow = list(fitted.token_ids), fitted.text, fitted.overflow
        check_params(params, len(ids), self._vocab_size, self._max_model_len)
        salt, processors = checked_salt(cache_salt), checked_processors(logits_processors)
        client, priority = checked_client(client), checked_priority(priority)
        grammar = None if params.structured_outputs is None else self.grammars.compile(params.structured_outputs)
        sequences = self._sequences(request_id, ids, params, priority, salt, client, processors, grammar)
        return NewRequest(sequences, text, overflow)

    def prefill(self, request_id: str, token_ids: Sequence[int], *, cache_salt: str, client: str) -> NewRequest:
        """As `LLMEngine.add_prefill`."""
        if not self._args.enable_prefix_caching:
            raise InvalidParameterError("enable_prefix_caching", "prefill needs enable_prefix_caching, which is off")
        ids = checked_prompt(token_ids, self._vocab_size)
        params = SamplingParams(max_tokens=1)
        check_params(params, len(ids), self._vocab_size, self._max_model_len)
        whole = len(ids) - len(ids) % self._args.block_size
        if whole == 0:
            raise InvalidParameterError(
                "prompt", f"prompt has {len(ids)} tokens, but the cache holds whole blocks of {self._args.block_size}"
            )
        salt, client = checked_salt(cache_salt), checked_client(client)
        [request] = self._sequences(request_id, ids[:whole], params, 0, salt, client, (), None)
        request.prefill_only = True
        return NewRequest([request], None, None)

    def _sequences(
        self,
        request_id: str,
        ids: list[int],
        params: SamplingParams,
        priority: int,
        cache_salt: str,
        client: str,
        processors: tuple[LogitsProcessor, ...],
        grammar: CompiledGrammar | None,
    ) -> list[Request]:
        seed = params.seed if params.seed is not None else self._next_seed()
        eos_ids = frozenset() if params.ignore_eos else self._tokenizer.eos_ids
        cache_key: tuple[str, ...] = ()
        if self._args.enable_prefix_caching:
            cache_key = (cache_salt, self._args.kv_cache_dtype, self._args.precision)
        elif params.n > 1:
            cache_key = (f"arrival {self._num_requests}",)
        siblings: list[Request] = []
        for sample_index in range(params.n):
            self._num_sequences += 1
            siblings.append(
                Request(
                    key=self._num_sequences,
                    request_id=request_id,
                    prompt_token_ids=ids,
                    params=params,
                    seed=seed,
                    max_output_tokens=params.max_tokens or self._max_model_len - len(ids),
                    end_token_ids=eos_ids | frozenset(params.stop_token_ids),
                    sample_index=sample_index,
                    arrival=self._num_requests,
                    priority=priority,
                    client=client,
                    logits_processors=processors,
                    constraint=None if grammar is None else grammar.start(),
                    cache_key=cache_key,
                    siblings=siblings,
                )
            )
        self._num_requests += 1
        return siblings

    def _next_seed(self) -> int:
        """A seed for a request without one: in order from the engine's own, else from the operating system."""
        if self._args.seed is not None:
            return (self._args.seed + self._num_requests) % (MAX_SEED + 1)
        return int.from_bytes(os.urandom(8), "little") >> 1
