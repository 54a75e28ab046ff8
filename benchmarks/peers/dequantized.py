"""A GGUF file as a bfloat16 PyTorch model, for engines that do not read GGUF; needs torch, transformers and gguf."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any


def load_bfloat16(path: Path) -> Any:
    """The causal language model with its weights dequantised to float32 and rounded to bfloat16."""
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.bfloat16, local_files_only=True
    )


def export_folder(path: Path) -> Path:
    """The same as a folder of config.json and safetensors in the cache, made on first use."""
    cache = Path(os.environ.get("PELLUCID_BENCHMARKS_CACHE", str(Path.home() / ".cache" / "pellucid" / "benchmarks")))
    folder = cache / "bfloat16" / path.stem
    if not (folder / "config.json").exists():
        making = folder.with_name(folder.name + ".part")
        model = load_bfloat16(path)
        # The weights are plain bfloat16 by now; the marks of where they came from would forbid to save them.
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(making)
        making.rename(folder)
    return folder
