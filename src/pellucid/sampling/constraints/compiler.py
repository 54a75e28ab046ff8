"""The model's vocabulary for llguidance, and grammars compiled for it within limits.

A grammar is untrusted input to a recursive compiler: its length is capped, it runs on a stack of its own that is deep
enough for any grammar of that length, with limits on its automata, and what it did not enforce it must say.
"""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pellucid.errors import InvalidParameterError, one_line
from pellucid.kernels.deep_stack import on_deep_stack
from pellucid.sampling.constraints.constraint import ROW_IS_FULL, TOO_MANY, Constraint, MaskArray
from pellucid.sampling.constraints.grammar_text import (
    OPTIONS,
    grammar_text,
    json_expression,
    names_tokens,
    schemas_in,
)
from pellucid.sampling.constraints.json_schema import wide_parts
from pellucid.structured_outputs import NAME, StructuredOutputsParams, refusal

MAX_KEPT = 32
"""Compiled grammars kept, the last used ones."""
STACK_BYTES = 512 * 1024**2
"""Of the compiling thread: a chain of thousands of rules would overflow an ordinary one."""
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 400_000,
    "step_lexer_fuel": 200_000,  # about 14 ms
    "step_max_items": 50_000,  # about 3 ms
    "max_lexer_states": 20_000,  # 1 to 2 KB each
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}


class VocabularyLike(Protocol):
    """What is asked of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]: ...

    def token_bytes(self, token_id: int, /) -> bytes: ...

    def is_special(self, token_id: int, /) -> bool: ...


class _Tokens:
    """The vocabulary under the names that llguidance looks for."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, spellings: list[bytes], special: list[int], eos: int, encode: Callable[..., list[int]]) -> None:
        self.tokens = spellings
        self.special_token_ids = special
        self.eos_token_id = eos
        # llguidance keeps this object where the garbage collector cannot see: what it leads to would never be freed.
        self._encode = weakref.WeakMethod(encode)

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
        encode = self._encode()
        assert encode is not None, "the tokenizer is gone"
        return encode(plain, add_special_tokens=False)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokens: Any
    """llguidance's."""
    token_bytes: Sequence[bytes]
    end_bits: MaskArray
    special_bits: MaskArray
    """Control tokens that are no end tokens."""


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A matcher that has read nothing and computed no mask: every answer begins with a copy of it."""

    kind: str
    token_bytes: Sequence[bytes]
    end_bits: MaskArray
    forbidden: MaskArray | None
    """Control tokens, unless the grammar may name them: byte patterns can contain their spelling."""
    _template: Any

    def start(self) -> Constraint:
        """The state of a new answer."""
        return Constraint(self._template.deep_copy(), self.kind, self.token_bytes, self.end_bits, self.forbidden)


class GrammarCompiler:
    """Compiles for one tokenizer; may be used from several threads. The vocabulary is built at the first use."""

    def __init__(self, tokenizer: VocabularyLike, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._kept: OrderedDict[StructuredOutputsParams, CompiledGrammar] = OrderedDict()
        self._kept_lock = threading.Lock()
        self._compile_lock = threading.Lock()
        self._vocabulary: _Vocabulary | None = None

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """The grammar, from those kept or compiled now (one at a time).

        Raises `InvalidParameterError` naming structured_outputs where it cannot be compiled, has what would not be
        enforced, or can be satisfied by no text.
        """
        found = self._find(params)
        if found is not None:
            return found
        with self._compile_lock:
            found = self._find(params)
            if found is None:
                text = grammar_text(params)
                found = on_deep_stack(lambda: self._compile(params, text), STACK_BYTES)
                with self._kept_lock:
                    self._kept[params] = found
                    while len(self._kept) > MAX_KEPT:
                        self._kept.popitem(last=False)
        return found

    def is_kept(self, params: StructuredOutputsParams) -> bool:
        """Whether `compile` has it at once."""
        return self._find(params) is not None

    def _find(self, params: StructuredOutputsParams) -> CompiledGrammar | None:
        with self._kept_lock:
            found = self._kept.get(params)
            if found is not None:
                self._kept.move_to_end(params)
            return found

    def _compile(self, params: StructuredOutputsParams, text: str) -> CompiledGrammar:
        for schema in schemas_in(text):
            for part in wide_parts(schema):
                self._check_part(params.kind, part)
        vocabulary = self._read_vocabulary()
        matcher = self._matcher(params.kind, text)
        warnings = matcher.get_grammar_warnings()
        if warnings:
            raise refusal(params.kind, f"would not be enforced as it stands: {one_line('; '.join(warnings))}")
        forbidden = None if names_tokens(params) else vocabulary.special_bits
        compiled = CompiledGrammar(params.kind, vocabulary.token_bytes, vocabulary.end_bits, forbidden, matcher)
        first = compiled.start()
        first.fill_mask()
        if first.error is not None:
            raise InvalidParameterError(NAME, f"{first.error}: no text satisfies it")
        return compiled

    def _matcher(self, kind: str, text: str) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        try:
            grammar = LLMatcher.grammar_from_lark(text)
            tokens = self._read_vocabulary().tokens
            matcher = LLMatcher(tokens, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
        except ValueError as error:
            raise refusal(kind, f"cannot be compiled: {one_line(str(error))}") from None
        if matcher.is_error():
            raise refusal(kind, f"cannot be compiled: {_reason(matcher.get_error())}")
        return matcher

    def _check_part(self, kind: str, part: dict[str, Any]) -> None:
        """Refuse before work starts what can be read no further than an opening bracket: hundreds of properties that
        may each be left out, or alternatives that begin alike, are more readings at once than the parser holds.

        Where parts add up the answer shows it; the request then fails with the same words.
        """
        try:
            matcher = self._matcher(kind, f"start: {json_expression(json.dumps(part))}{OPTIONS}")
        except InvalidParameterError:  # compiling the whole shows what is wrong, if anything is
            return
        if matcher.consume_tokens(self._tokenizer.encode("{", add_special_tokens=False)):
            matcher.compute_bitmask()
        if matcher.is_error() and ROW_IS_FULL in matcher.get_error():
            raise refusal(kind, TOO_MANY)

    def _read_vocabulary(self) -> _Vocabulary:
        if self._vocabulary is None:
            from llguidance import LLTokenizer

            size = self._vocab_size
            special = [i for i in range(size) if self._tokenizer.is_special(i)]
            token_bytes = [self._tokenizer.token_bytes(i) for i in range(size)]
            ends = sorted(self._tokenizer.eos_ids)
            spellings = token_bytes
            if not ends:  # llguidance wants one: this one has no logit
                ends, special, spellings = [size], [*special, size], [*token_bytes, b"<end>"]
            wrapped = _Tokens(spellings, special, ends[0], self._tokenizer.encode)
            tokens = LLTokenizer(wrapped, eos_token=ends, slices=LLTokenizer.json_slices())  # type: ignore[arg-type]
            end_bits = _bits(ends, tokens.vocab_size)
            special_bits = _bits(special, tokens.vocab_size) & ~end_bits
            self._vocabulary = _Vocabulary(tokens, token_bytes, end_bits, special_bits)
        return self._vocabulary


def _bits(ids: list[int], size: int) -> MaskArray:
    flags = np.zeros(-(-size // 32) * 32, dtype=np.uint8)
    flags[ids] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


_FRAME = re.compile(r"^at 1\(8\): (?:failed to compile JSON schema: )?")


def _reason(text: str) -> str:
    """The first line that says what is wrong; the rest shows our own frame of the grammar."""
    return one_line(_FRAME.sub("", text.split("\n   1 | ")[0]))
