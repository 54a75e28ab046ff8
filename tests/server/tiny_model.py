"""A GGUF file that the whole server can run on, loaded in milliseconds: two random layers, bytes, a template."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _module(name: str, folder: str) -> ModuleType:
    """A helper of another test folder, whether its tests run too or not."""
    if name not in sys.modules:
        path = Path(__file__).parent.parent / folder / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def write_tiny_model(path: Path, context_length: int = 1024) -> Path:
    """The same bytes each time."""
    models, tokenizers = _module("small_models", "models"), _module("small_tokenizers", "tokenizer")
    vocabulary = tokenizers.byte_level_metadata(eos_token_id=3, chat_template=None)
    vocabulary["tokenizer.chat_template"] = TEMPLATE
    random = np.random.default_rng(11)
    tensors = models.llama_tensors(random)
    shape = (len(vocabulary["tokenizer.ggml.tokens"]), models.LLAMA_SHAPE["hidden"])
    _, kind, _ = tensors["token_embd.weight"]
    values = random.standard_normal(shape).astype(np.float32) * np.float32(0.35)
    tensors["token_embd.weight"] = (shape, kind, models.quantize(values, kind))
    metadata = models.llama_metadata(**{"llama.context_length": context_length}) | vocabulary
    result: Path = models.write_llama(path, metadata, tensors)
    return result
