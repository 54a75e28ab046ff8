"""How a folder of sentence-transformers makes one vector of a text: modules.json and the pooling's config.json."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pellucid.config import ModelConfig
from pellucid.errors import ModelFileError, UnsupportedModelError, shown
from pellucid.formats.json_file import is_there, read_text
from pellucid.models.architectures.keys import JSONConfig

MAX_SIZES = 64
"""Sizes that a config.json may list: no more than a family trains for."""
_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_KINDS = ("Transformer", "Pooling", "Normalize")


def read_pooling(folder: Path, config: ModelConfig) -> ModelConfig:
    """The config with the folder's pooling and normalisation; as it is where the folder has no modules.json.

    Raises `UnsupportedModelError` for modules or pooling modes we do not have, `ModelFileError` for damaged files.
    """
    if not is_there(folder / "modules.json"):
        return config
    modules = _read(folder / "modules.json")
    if not isinstance(modules, list) or not all(
        isinstance(m, dict) and isinstance(m.get("type"), str) for m in modules
    ):
        raise ModelFileError("modules.json: must be a list of modules with a type")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    unknown = next((kind for kind in kinds if kind not in _KINDS), None)
    if unknown is not None:
        raise UnsupportedModelError(
            f"modules.json: the module {shown(unknown)} is not supported; supported are: {', '.join(_KINDS)}"
        )
    changes: dict[str, Any] = {"normalize_embeddings": "Normalize" in kinds}
    for module, kind in zip(modules, kinds, strict=True):
        if kind == "Pooling":
            changes["pooling"] = _mode(folder, module.get("path"))
    return dataclasses.replace(config, **changes)


def shortening(keys: JSONConfig) -> dict[str, Any]:
    """Whether a text's vector may be cut, and to how many numbers: config.json's is_matryoshka, matryoshka_dimensions.

    Raises `ModelFileError` for values of another kind.
    """
    sizes: tuple[int, ...] = ()
    if keys.has("matryoshka_dimensions"):
        numbers = keys.numbers("matryoshka_dimensions")
        if not 0 < len(numbers) <= MAX_SIZES or not all(size >= 1 and size == int(size) for size in numbers):
            given = shown(keys.get("matryoshka_dimensions"))
            raise keys.refuse(f"matryoshka_dimensions is {given}, but must be a list of whole numbers from 1")
        sizes = tuple(map(int, numbers))
    return {"can_shorten_embeddings": bool(sizes) or keys.flag("is_matryoshka"), "embedding_sizes": sizes}


def _mode(folder: Path, place: Any) -> str:
    if not isinstance(place, str) or Path(place).name != place:
        raise ModelFileError(f"modules.json: the pooling's path is {shown(place)}, but must be a folder beside it")
    name = f"{place}/config.json"
    values = _read(folder / place / "config.json")
    if not isinstance(values, dict):
        raise ModelFileError(f"{name}: must be an object")
    modes = [key for key, value in values.items() if key.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UnsupportedModelError(
            f"{name}: the pooling {', '.join(modes) or 'none'} is not supported; one of {', '.join(_MODES)} is"
        )
    return _MODES[modes[0]]


def _read(path: Path) -> Any:
    import json

    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise ModelFileError(f"{path.name}: not valid JSON") from None
