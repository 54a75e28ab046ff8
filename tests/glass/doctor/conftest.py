"""Small models, and real ones with one thing changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
for folder in ("glass", ".", "server", "models", "trace"):
    sys.path.append(str(Path(__file__).parent.parent.parent / folder))

from pellucid.engine.llm import LLM  # noqa: E402


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random layers, bytes, BOS 0 that nobody asks for."""
    from tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_with_bos(tiny_path: Path) -> Path:
    """The same, with BOS before prompts."""
    from planted import changed

    return changed(tiny_path, tiny_path.with_name("bos.gguf"), {"tokenizer.ggml.add_bos_token": True})


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> Iterator[LLM]:
    with LLM(str(tiny_path), max_model_len=256) as llm:
        yield llm


@pytest.fixture(scope="session")
def turn_over_path(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 whose template closes turns with a token that the file does not name as an end: a classic of "
    "converters."""
    from planted import changed, metadata_of

    metadata = metadata_of(smollm2_path)
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[2] = "<|turn_over|>"
    return changed(
        smollm2_path,
        tmp_path_factory.mktemp("end") / "turn_over.gguf",
        {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.eos_token_id": 0,
            "tokenizer.chat_template": metadata["tokenizer.chat_template"].replace("<|im_end|>", "<|turn_over|>"),
        },
    )


@pytest.fixture(scope="session")
def overflowing_path(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 with a norm in layer 12 that no float32 can hold the consequences of."""
    from planted import changed

    target = tmp_path_factory.mktemp("inf") / "overflowing.gguf"
    return changed(smollm2_path, target, tensors={"blk.12.ffn_norm.weight": lambda x: x * 1e38})
