"""How far an engine's logits are from the golden ones of float32, computed in the engine's own process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.protocol import Engine

ROWS = 128
"""Most rows whose logits are held at a time."""


def compare(engine: Engine, golden: Path, head: Path, limit: int) -> dict[str, Any]:
    """KL(float32 ‖ engine) and greedy agreement over the golden documents, at most `limit` positions of them.

    `head` is the float32 LM head [vocab, d] as .npy; it is mapped, so that workers share its pages.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from golden.fidelity import Fidelity, apply_head, load_golden

    documents = list(load_golden(golden).documents.values())
    weights = np.load(head, mmap_mode="r")
    result = Fidelity()
    share = -(-limit // len(documents))
    for document in documents:
        token_ids = document.token_ids[:share].tolist()
        engine.prepare(1, len(token_ids))
        start = 0
        for logits in engine.logits(token_ids):
            reference = apply_head(document.hidden[start : start + len(logits)], weights)
            result.add(reference, np.ascontiguousarray(logits[:, : reference.shape[1]], dtype=np.float32))
            start += len(logits)
        if start != len(token_ids):
            raise RuntimeError(f"the engine gave {start} rows of logits for {len(token_ids)} tokens")
    return {**result.summary()}
