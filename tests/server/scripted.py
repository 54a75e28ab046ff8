"""A model that says what its prompt tells it to: whatever stands in the last SAY[[…]]END of the conversation."""

from __future__ import annotations

from typing import Any

import numpy as np
from http_server import ChatTokenizer, mock_model

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.forward_batch import Float32Array, ForwardBatch, ForwardOutput
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.trace.probe import Probe

QWEN_LIKE = (
    "{% if tools %}<s>system:call as <tool_call>{% for t in tools %}{{ t | tojson }}{% endfor %}<|im_end|>{% endif %}"
    "{% for m in messages %}<s>{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{% endif %}"
)
THINKING = (
    QWEN_LIKE.removesuffix("{% endif %}") + "{% if enable_thinking is not defined %}<think>\n{% endif %}{% endif %}"
)
"""The generation prompt opens the reasoning itself."""
HARMONY = (
    "{% for t in tools or [] %}<|start|>developer<|message|>{{ t | tojson }}<|end|>{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary"
    "<|message|>{{ m.content }}<|end|>"
    "{% elif m.role != 'assistant' %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>"
    "{% elif m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    "{% if m.thinking or m.content %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking or m.content }}<|end|>"
    "{% endif %}{% set f = m.tool_calls[0].function %}{% set last.name = f.name %}"
    "<|start|>assistant to=functions.{{ f.name }}"
    "<|channel|>commentary json<|message|>{{ f.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:<|start|>assistant{% endif %}"
)
DEEPSEEK = (
    "{% if thinking is not defined %}{% set thinking = false %}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '<｜User｜>' + m['content'] + '<｜Assistant｜>' }}{% endif %}"
    "{% if m['role'] == 'assistant' and m['tool_calls'] is defined and m['tool_calls'] is not none %}"
    "{% if m['content'] is not none %}{{ m['content'] }}{% endif %}{{ '<｜tool▁calls▁begin｜>' }}"
    "{% for tool in m['tool_calls'] %}{{ '<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>'"
    " + tool['function']['arguments'] + '<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }}"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] }}{% endif %}"
    "{% if m['role'] == 'tool' %}"
    "{{ '<｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{% if thinking %}<s>assistant:<think>\n{% else %}</think><s>assistant:{% endif %}{% endif %}"
)
"""As DeepSeek-V3.1's: it has no place for tools, and joins the arguments of calls, as text, to other texts."""
HARMONY = "{% set last = namespace(name='') %}{% set effort = reasoning_effort or 'medium' %}" + HARMONY
"""Its demands on the history are those of gpt-oss: one call in a message, not both a text and `thinking` beside it."""
BEGIN, END = "SAY[[", "]]END"


def say(text: str) -> str:
    """A message that makes the model say so."""
    return f"{BEGIN}{text}{END}"


MAX_DRAWN = 32
"""Rows of one request from which tokens may be drawn in a step: the last known token's, and guesses."""


class ScriptedModel(mock_model.MockModel):  # type: ignore[misc]
    """Its prompt is read back through the KV cache, as the mock model's is."""

    def forward(self, batch: ForwardBatch, kv: KVCacheStorage, probe: Probe | None = None) -> ForwardOutput:
        output: ForwardOutput = super().forward(batch, kv, probe)
        for s, seq_len in enumerate(batch.seq_lens):
            table = batch.block_table[s, : -(-int(seq_len) // kv.block_size)]
            tokens = mock_model.key_numbers(kv.layers[0])[table].reshape(-1)[:seq_len].astype(np.int64).tolist()
            first, end = int(batch.query_start_loc[s]), int(batch.query_start_loc[s + 1])
            for row in range(max(first, end - MAX_DRAWN), end):
                output.hidden[row] = (_next_token(tokens[: len(tokens) - (end - 1 - row)]), 0, 0)
        return output

    def compute_logits(self, hidden: Float32Array) -> Float32Array:
        logits = np.zeros((len(hidden), mock_model.VOCAB_SIZE), dtype=np.float32)
        logits[np.arange(len(hidden)), hidden[:, 0].astype(np.int64)] = 60.0
        return logits


def _next_token(tokens: list[int]) -> int:
    last = max((i for i, token in enumerate(tokens) if token == mock_model.BOS), default=0)
    prompt = bytes(t if t < 256 else 0 for t in tokens[:last]).decode("utf-8", "replace")
    script = prompt.rpartition(BEGIN)[2].partition(END)[0].encode()
    turn = bytes(t if t < 256 else 0 for t in tokens[last + 1 :])
    said = len(turn) - len(b"assistant:")
    for opening in (b"<think></think>", b"<think>\n", b"<|start|>assistant"):
        if turn[len(b"assistant:") :].startswith(opening) and not script.startswith(opening):
            said -= len(opening)
    return script[said] if 0 <= said < len(script) else mock_model.EOS


def scripted_engine(template: str = QWEN_LIKE, *, context: int = 8192, **options: Any) -> LLMEngine:
    defaults = {"model": "scripted", "max_num_seqs": 8, "max_num_batched_tokens": 512, "seed": 0}
    args = EngineArgs(**{**defaults, **options})
    tokenizer = ChatTokenizer()
    tokenizer.chat_template = template
    tokenizer.chat_templates = {"default": template}
    return LLMEngine(ScriptedModel(context), tokenizer, args)
