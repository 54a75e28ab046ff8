"""What generate, chat and bench share: a model, fetched with a bar if it must be, made into an LLM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.cli import console
from pellucid.config import DEFAULT_MODEL, EngineArgs
from pellucid.sampling_params import PRESETS, SamplingParams

if TYPE_CHECKING:
    from pellucid.engine.llm import LLM

PRESET_HELP = f"Values that belong together: {', '.join(PRESETS)}. Flags given beside it win."


_to_close: list[LLM] = []
"""What this process has loaded and what has something to save at its end."""


def load_llm(engine: dict[str, Any]) -> LLM:
    """Check the arguments, fetch the model with a bar if it must be, and load it; `close_all` ends what it began."""
    args = EngineArgs(**engine)
    from pellucid.engine.llm import LLM
    from pellucid.engine.llm_engine import LLMEngine

    llm = LLM.from_engine(LLMEngine.from_args(args, progress=console.progress()))
    if args.kv_cache_save is not None:
        _to_close.append(llm)
    return llm


def close_all() -> None:
    """Save the KV caches that are to be kept. Raises `KVCacheFileError`."""
    while _to_close:
        _to_close.pop().close()


def sampling_params(preset: str | None, given: dict[str, Any]) -> SamplingParams:
    """The preset's values, if there is one, with the given ones over them."""
    return SamplingParams(**given) if preset is None else SamplingParams.from_preset(preset, **given)


def local_path(engine: dict[str, Any]) -> tuple[str, Path]:
    """The model's name and its file, fetched with a bar if it must be, for verbs that only read the header."""
    from pellucid.model_store.store import resolve

    model = str(engine.get("model", DEFAULT_MODEL))
    return model, resolve(model, progress=console.progress())
