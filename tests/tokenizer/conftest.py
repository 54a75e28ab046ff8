"""The tokenizers of the real models, the corpus and the golden ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pellucid.formats.gguf import GGUFFile
from pellucid.tokenizer.tokenizer import Tokenizer

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    """Byte-level BPE, 49,152 tokens."""
    with GGUFFile.open(smollm2_path) as file:
        return Tokenizer.from_gguf(file.metadata)


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path) -> Tokenizer:
    """SentencePiece BPE with byte fallback, 262,144 tokens."""
    with GGUFFile.open(gemma3_path) as file:
        return Tokenizer.from_gguf(file.metadata)


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    """Texts in many languages and shapes."""
    texts: list[str] = json.loads((HERE / "corpus.json").read_text(encoding="utf-8"))
    return texts


@pytest.fixture(scope="session")
def golden() -> Callable[[str], dict[str, Any]]:
    """golden(name): what tools/make_tokenizer_goldens.py wrote."""

    def load(name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((HERE / "golden" / f"{name}.json").read_text(encoding="utf-8"))
        return content

    return load
