"""What is asked: a mix of lengths like that of people's chats, made here from a seed, or prompts from a file.

Lengths follow log-normal distributions, as those of the ShareGPT conversations nearly do: there a prompt has 161 tokens
in the mean and an answer 338 (Kwon et al. 2023, PagedAttention, figure 11). A server's tokenizer is not known here, so
that prompts are counted in words, for which `WORDS_PER_TOKEN` stands; what they really were is in the server's usage.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.errors import InvalidParameterError, shown

if TYPE_CHECKING:
    from numpy.random import Generator

WORDS_PER_TOKEN = 0.9
"""Of the words below, full stops included, with the tokenizers of SmolLM2 and Gemma 3."""
SIGMA = 0.9
"""Standard deviation of the logarithm of both lengths."""
_WORDS = """
    the of and to in is that it was for on are as with they be at one have this from or had by hot word but what
    some we can out other were all there when up use your how said an each she which do their time if will way
    about many then them write would like so these her long make thing see him two has look more day could go
    come did number sound no most people my over know water than call first who may down side been now find any
    new work part take get place made live where after back little only round man year came show every good me
    give our under name very through just form sentence great think say help low line differ turn cause much
    mean before move right boy old too same tell does set three want air well also play small end put home read
    hand port large spell add even land here must big high such follow act why ask men change went light kind
    off need house picture try us again animal point mother world near build self earth father head stand own
    page should country found answer school grow study
""".split()  # noqa: SIM905 - a list literal would take a line for each


@dataclass(frozen=True, slots=True)
class Turn:
    """What a person says, and how long the answer may be."""

    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that follow one another, each with all that was said before."""

    turns: tuple[Turn, ...]
    system: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    """A whole conversation from a file, to which the one turn's text belongs already."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How conversations are made. Lengths are tokens, of which the generator's words are an estimate."""

    input_len: int = 161
    output_len: int = 338
    max_len: int = 1024
    """No prompt and no answer is longer."""
    turns: int = 1
    system_len: int = 0
    """Of a system prompt that all conversations share."""

    def conversations(self, count: int, seed: int) -> list[Conversation]:
        """The same ones for the same arguments, whichever machine makes them."""
        import numpy as np

        random = np.random.default_rng(seed)
        system = sentences(random, self.system_len) if self.system_len else ""
        return [
            Conversation(
                tuple(
                    Turn(sentences(random, self._length(random, self.input_len)), self._length(random, self.output_len))
                    for _ in range(self.turns)
                ),
                system,
            )
            for _ in range(count)
        ]

    def _length(self, random: Generator, mean: int) -> int:
        """Log-normal with this mean, then cut to 4 … max_len."""
        mu = math.log(mean) - SIGMA**2 / 2
        return int(min(self.max_len, max(4, round(math.exp(mu + SIGMA * float(random.standard_normal()))))))


def sentences(random: Generator, num_tokens: int) -> str:
    """Common words, without meaning, that are about so many tokens."""
    count = max(1, round(num_tokens * WORDS_PER_TOKEN))
    words = [_WORDS[i] for i in random.integers(0, len(_WORDS), count)]
    starts, at = {0}, int(random.integers(5, 14))
    while at < count:
        starts.add(at)
        at += int(random.integers(5, 14))
    parts = [word.capitalize() if i in starts else word for i, word in enumerate(words)]
    return " ".join(f"{word}." if i + 1 in starts or i + 1 == count else word for i, word in enumerate(parts))


def read_file(path: Path, count: int, default_max_tokens: int) -> list[Conversation]:
    """Conversations from a file of JSON lines, from the top again where `count` is more than it has.

    A line has `prompt` (text) or `messages`, and may have `max_tokens`. Raises `InvalidParameterError` naming the line.
    """
    found: list[Conversation] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip() and len(found) < count:
                    found.append(_parsed(line, f"{path.name}, line {number}", default_max_tokens))
    except UnicodeDecodeError as error:
        raise InvalidParameterError("dataset", f"{path.name} is not UTF-8 at byte {error.start}") from None
    if not found:
        raise InvalidParameterError("dataset", f"{path.name} has no line")
    return [found[i % len(found)] for i in range(count)]


def _parsed(line: str, place: str, default_max_tokens: int) -> Conversation:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidParameterError("dataset", f"{place}: no valid JSON: {error}") from None
    prompt = value.get("prompt") if isinstance(value, dict) else None
    messages = value.get("messages") if isinstance(value, dict) else None
    if (not isinstance(prompt, str) or not prompt) == (not isinstance(messages, list) or not messages):
        raise InvalidParameterError("dataset", f"{place}: it must have either prompt, a text, or messages, a list")
    max_tokens = value.get("max_tokens", default_max_tokens)
    if type(max_tokens) is not int or max_tokens < 1:
        raise InvalidParameterError(
            "dataset", f"{place}: max_tokens is {shown(max_tokens)}, but must be a whole number from 1"
        )
    if messages:
        return Conversation((Turn("", max_tokens),), messages=tuple(messages))
    return Conversation((Turn(str(prompt), max_tokens),))
