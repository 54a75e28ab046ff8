"""All families, by the name a GGUF file or a config.json gives."""

from __future__ import annotations

from pellucid.errors import UnsupportedModelError, shown
from pellucid.models.architectures import (
    bert,
    bloom,
    cohere,
    deepseek,
    gemma,
    gemma3,
    gpt1,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    opt,
    phi3,
    qwen,
    smollm3,
    stablelm,
    starcoder2,
    xglm,
)
from pellucid.models.architectures.base import Architecture, GGUFForm, HFForm

_MODULES = (
    bert,
    bloom,
    cohere,
    deepseek,
    gemma,
    gemma3,
    gpt1,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    opt,
    phi3,
    qwen,
    smollm3,
    stablelm,
    starcoder2,
    xglm,
)
ARCHITECTURES: tuple[Architecture, ...] = tuple(module.ARCHITECTURE for module in _MODULES)

GGUF_FORMS: dict[str, GGUFForm] = {form.name: form for family in ARCHITECTURES for form in family.gguf}
HF_FORMS: dict[str, HFForm] = {form.name: form for family in ARCHITECTURES for form in family.hf}


def find_gguf(name: object, file_name: str) -> GGUFForm:
    """The family of a GGUF file. Raises `UnsupportedModelError` naming it and those supported."""
    if isinstance(name, str) and name in GGUF_FORMS:
        return GGUF_FORMS[name]
    raise _unknown("architecture", name, sorted(GGUF_FORMS), file_name)


def find_hf(name: object, file_name: str) -> HFForm:
    """The family of a config.json. Raises `UnsupportedModelError` naming it and those supported."""
    if isinstance(name, str) and name in HF_FORMS:
        return HF_FORMS[name]
    raise _unknown("model_type", name, sorted(HF_FORMS), file_name)


def _unknown(key: str, name: object, known: list[str], file_name: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{file_name}: {key} {shown(name)} is not supported; supported are {', '.join(known)}")
