"""All families, by the name a GGUF file gives."""

from __future__ import annotations

from pellucid.errors import UnsupportedModelError, shown
from pellucid.models.architectures import gemma3, llama
from pellucid.models.architectures.base import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    module.ARCHITECTURE.gguf_name: module.ARCHITECTURE for module in (llama, gemma3)
}


def find_architecture(name: object, file_name: str) -> Architecture:
    """The family of a file. Raises `UnsupportedModelError` naming it and those supported."""
    if isinstance(name, str) and name in ARCHITECTURES:
        return ARCHITECTURES[name]
    raise UnsupportedModelError(
        f"{file_name}: architecture {shown(name)} is not supported; supported are {', '.join(sorted(ARCHITECTURES))}"
    )
