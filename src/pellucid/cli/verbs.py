"""The table of verbs. The help of a verb stands here once; its module is imported when it is used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """One command."""

    module: str
    """Where its function lies."""
    function: str
    help: str
    """One line, shown in the list of verbs and at the top of the verb's own help."""


VERBS: dict[str, Verb] = {
    "generate": Verb("pellucid.cli.generate", "generate", "Continue a prompt, as it is, with no chat template."),
    "chat": Verb("pellucid.cli.chat", "chat", "Talk to a model; the conversation is remembered."),
    "serve": Verb("pellucid.cli.serve", "serve", "Serve a model over HTTP with an OpenAI-compatible API."),
    "explain": Verb("pellucid.cli.explain", "explain", "Show a request's journey: tokens, layers, sampling, time."),
    "sweep": Verb("pellucid.cli.sweep", "sweep", "Compare sampling settings on the same prompts, side by side."),
    "doctor": Verb("pellucid.cli.doctor", "doctor", "Find what is wrong with a model or a trace, and say what helps."),
    "tokenize": Verb("pellucid.cli.tokenize", "tokenize", "Show the pieces, ids and bytes of a text."),
    "inspect": Verb("pellucid.cli.inspect", "inspect", "Show what a model file holds and what memory it takes."),
    "quantize": Verb("pellucid.cli.quantize", "quantize", "Write a model's weights to a GGUF file in smaller types."),
    "pull": Verb("pellucid.cli.pull", "pull", "Fetch a model into the model cache."),
    "list": Verb("pellucid.cli.list", "list_", "Show the models that are in the cache, and those that can be pulled."),
    "bench": Verb("pellucid.cli.bench", "", "Measure: batches of requests here, or a load on a server."),
}

SUBVERBS: dict[str, dict[str, Verb]] = {
    "bench": {
        "latency": Verb("pellucid.cli.bench", "latency", "Time to first token, time per token, and their spread."),
        "serve": Verb("pellucid.cli.bench_serve", "serve", "A load on any OpenAI-compatible server, and what it bore."),
    },
}

PROGRAM_HELP = "Pellucid: an LLM inference engine you can see through."

EXAMPLES = (
    'pellucid generate "The capital of France is"',
    'pellucid chat --preset factual --system "Answer in one sentence."',
    "cat story.txt | pellucid generate --preset creative --max-tokens 200",
)
