"""All families, by the name a GGUF file or a config.json gives; a family's module is imported when one asks for it."""

from __future__ import annotations

from importlib import import_module

from pellucid.errors import UnsupportedModelError, shown
from pellucid.models.architectures.base import Architecture, GGUFForm, HFForm

GGUF_FAMILIES: dict[str, str] = {
    "bert": "bert",
    "bloom": "bloom",
    "cohere2": "cohere",
    "command-r": "cohere",
    "deepseek2": "deepseek",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3": "gemma3",
    "gpt-oss": "gpt_oss",
    "gpt2": "gpt2",
    "gptneox": "gpt_neox",
    "granite": "granite",
    "llama": "llama",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen3moe": "qwen",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}
"""`general.architecture` → module."""

HF_FAMILIES: dict[str, str] = {
    "bert": "bert",
    "bloom": "bloom",
    "cohere": "cohere",
    "cohere2": "cohere",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3_text": "gemma3",
    "gpt2": "gpt2",
    "gpt_neox": "gpt_neox",
    "gpt_oss": "gpt_oss",
    "granite": "granite",
    "llama": "llama",
    "mistral": "mistral",
    "mixtral": "mixtral",
    "olmo2": "olmo2",
    "openai-gpt": "gpt1",
    "opt": "opt",
    "phi3": "phi3",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen3_moe": "qwen",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "xglm": "xglm",
}
"""`model_type` → module."""


def architecture(module: str) -> Architecture:
    """What a family's module declares."""
    declared: Architecture = import_module(f"pellucid.models.architectures.{module}").ARCHITECTURE
    return declared


def find_gguf(name: object, file_name: str) -> GGUFForm:
    """The family of a GGUF file. Raises `UnsupportedModelError` naming it and those supported."""
    if isinstance(name, str) and name in GGUF_FAMILIES:
        return next(form for form in architecture(GGUF_FAMILIES[name]).gguf if form.name == name)
    raise _unknown("architecture", name, sorted(GGUF_FAMILIES), file_name)


def find_hf(name: object, file_name: str) -> HFForm:
    """The family of a config.json. Raises `UnsupportedModelError` naming it and those supported."""
    if isinstance(name, str) and name in HF_FAMILIES:
        return next(form for form in architecture(HF_FAMILIES[name]).hf if form.name == name)
    raise _unknown("model_type", name, sorted(HF_FAMILIES), file_name)


def _unknown(key: str, name: object, known: list[str], file_name: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{file_name}: {key} {shown(name)} is not supported; supported are {', '.join(known)}")
