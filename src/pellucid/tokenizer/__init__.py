"""Text to ids and back: the second and the last step of the journey.

    tokenizer.py             Tokenizer: built from a GGUF file's metadata; encode, decode, token_bytes
    vocabulary.py            what the metadata says: pieces, kinds, special ids, every end-of-generation id
    pre_tokenizers.py        how text is cut before merging: one row for each `tokenizer.ggml.pre` name
    backends.py              the engine for a vocabulary: byte-level BPE (the `tokenizers` library) or SentencePiece
    sentencepiece.py         SentencePiece BPE: the best score is joined first
    special_tokens.py        finding control and user-defined tokens in text, longest first, in linear time
    detokenizer.py           IncrementalDetokenizer: ids to text one by one, no half character ever shown
    chat_template.py         messages to a prompt: checks, ChatTemplate, encode_chat
    shielding.py             control strings inside messages stay text
    template_environment.py  the sandbox templates run in
    template_limits.py       what a template may use up there

Knows nothing of model files (a mapping of metadata comes in) nor of the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Tokenizer": "tokenizer",
    "Piece": "tokenizer",
    "IncrementalDetokenizer": "detokenizer",
    "ChatTemplate": "chat_template",
    "ChatPrompt": "chat_template",
    "RenderedPrompt": "chat_template",
    "encode_chat": "chat_template",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
