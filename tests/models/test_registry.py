"""The table of families is what their modules declare: all of them, and nothing else."""

from __future__ import annotations

from pathlib import Path

from pellucid.models.architectures import registry

NOT_FAMILIES = {"__init__", "base", "common", "keys", "registry"}


def test_the_tables_name_every_form_of_every_module() -> None:
    folder = Path(registry.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - NOT_FAMILIES
    gguf = {form.name: module for module in modules for form in registry.architecture(module).gguf}
    hf = {form.name: module for module in modules for form in registry.architecture(module).hf}
    assert gguf == registry.GGUF_FAMILIES
    assert hf == registry.HF_FAMILIES


def test_a_name_finds_its_own_form() -> None:
    assert all(registry.find_gguf(name, "f").name == name for name in registry.GGUF_FAMILIES)
    assert all(registry.find_hf(name, "f").name == name for name in registry.HF_FAMILIES)
