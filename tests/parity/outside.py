"""The outside truth: transformers in float32 with its plain attention."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from parity.families import SmallModel


def load_outside(folder: str | Path) -> Any:
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    cls = getattr(transformers, json.loads((Path(folder) / "config.json").read_text())["architectures"][0])
    model, report = cls.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    missing = [name for name in report["missing_keys"] if "position" not in name]
    assert not missing, f"transformers found no {missing}"
    assert not report["unexpected_keys"], report["unexpected_keys"]
    return model.eval()


def outside_logits(folder: str | Path, token_ids: list[int]) -> np.ndarray:
    """[T, vocab] of the whole text at once."""
    import torch

    with torch.no_grad():
        return np.asarray(load_outside(folder)(torch.tensor([token_ids])).logits[0].numpy())


def outside_hidden(folder: str | Path, token_ids: list[int]) -> np.ndarray:
    """[T, hidden_size] of an encoder."""
    import torch

    with torch.no_grad():
        return np.asarray(load_outside(folder)(torch.tensor([token_ids])).last_hidden_state[0].numpy())


def describe(model: SmallModel) -> dict[str, Any]:
    """The config and the tensors' shapes as transformers saves the model."""
    import torch
    import transformers

    torch.manual_seed(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    made = getattr(transformers, model.cls)(getattr(transformers, model.config_class)(**model.config))
    with tempfile.TemporaryDirectory() as folder:
        made.float().save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        with (Path(folder) / "model.safetensors").open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    del config["transformers_version"]
    header.pop("__metadata__", None)
    return {"config": config, "shapes": {name: entry["shape"] for name, entry in sorted(header.items())}}
