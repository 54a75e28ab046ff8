"""Store what transformers answers for the small model of every family: configs, shapes and logits of some
positions (of encoders hidden states).

    python tools/make_parity_goldens.py [NAME …]

Needs `pip install '.[parity]'`. Writes tests/parity/golden/: models.json and logits.npz.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from parity.families import BY_NAME, ENCODERS, GOLDENS, SmallModel, write_folder
from parity.outside import describe, outside_hidden, outside_logits

POSITIONS = (0, 1, 7, 8, 9, 23, 31, 32, 40, 43)
"""Around windows, scalings' limits and block ends."""


def main(names: list[str]) -> None:
    GOLDENS.mkdir(exist_ok=True)
    path = GOLDENS / "logits.npz"
    models: dict[str, Any] = json.loads((GOLDENS / "models.json").read_text()) if path.exists() else {}
    logits: dict[str, np.ndarray] = dict(np.load(path)) if path.exists() else {}
    for model in [BY_NAME[name] for name in names] or BY_NAME.values():
        models[model.name] = describe(model)
        logits[model.name] = _logits(model, models[model.name])
        print(f"{model.name}: largest value {np.abs(logits[model.name]).max():.3f}", flush=True)
    order = [name for name in BY_NAME if name in models]
    models["transformers"] = importlib.metadata.version("transformers")
    lines = [f"{json.dumps(name)}: {json.dumps(models[name], sort_keys=True)}" for name in ("transformers", *order)]
    (GOLDENS / "models.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    np.savez_compressed(path, positions=np.array(POSITIONS), **{name: logits[name] for name in order})


def _logits(model: SmallModel, description: dict[str, Any]) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        write_folder(model, Path(folder), description)
        outside = outside_hidden if model in ENCODERS else outside_logits
        return outside(folder, model.token_ids())[list(POSITIONS)].astype(np.float32)


if __name__ == "__main__":
    main(sys.argv[1:])
