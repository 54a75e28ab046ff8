"""Store what transformers computes inside small models: residuals, attention weights and a logit lens, in float32.

    python tools/make_layer_goldens.py

Needs `pip install '.[parity]'`. Writes tests/trace/golden_layers.npz, for test_against_transformers.py.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from parity.families import BY_NAME, write_folder

ROOT = Path(__file__).parent.parent
FAMILIES = ("llama", "gemma2", "gemma3", "gpt-oss", "qwen3moe", "gpt-neox", "bloom", "gpt1", "deepseek-v2")
"""Grouped heads, softcaps, windows, sinks and experts, parallel blocks, ALiBi, norms after sums, latent attention."""
WITH_LENS = ("llama", "gemma2", "gemma3", "gpt-oss", "qwen3moe")
POSITIONS = (30, 43)


def main() -> None:
    import torch
    import transformers

    found: dict[str, np.ndarray] = {"positions": np.array(POSITIONS)}
    for name in FAMILIES:
        small = BY_NAME[name]
        with tempfile.TemporaryDirectory() as folder:
            write_folder(small, Path(folder))
            cls = getattr(transformers, small.cls)
            model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
            with torch.no_grad():
                ids = torch.tensor([small.token_ids()])
                out = model(ids, output_hidden_states=True, output_attentions=True)
                # the last of hidden_states is behind the final norm where there is one
                hidden = torch.stack(out.hidden_states[:-1])[:, 0, POSITIONS]
                found[f"{name}.hidden"] = hidden.numpy()
                attention = torch.stack([a[0][:, POSITIONS, : ids.shape[1]] for a in out.attentions])
                found[f"{name}.attention"] = attention.numpy()
                if name in WITH_LENS:
                    found[f"{name}.lens"] = _lens(model, hidden[1:, -1]).numpy()
        print(name, hidden.shape, attention.shape, flush=True)
    path = ROOT / "tests" / "trace" / "golden_layers.npz"
    np.savez_compressed(path, **found)
    print(path, path.stat().st_size, "bytes; transformers", transformers.__version__)


def _lens(model: Any, residual: Any) -> Any:
    """Probabilities [layers, vocab] of residuals [layers, d]."""
    import torch

    logits = model.lm_head(model.model.norm(residual))
    cap = getattr(model.config, "final_logit_softcapping", None)
    if cap is not None:
        logits = torch.tanh(logits / cap) * cap
    return torch.softmax(logits, dim=-1)


if __name__ == "__main__":
    main()
