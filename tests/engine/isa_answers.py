"""What one instruction set answers, as JSON. A program of its own: PELLUCID_ISA is the whole process's.

PELLUCID_ISA=avx2 python isa_answers.py MODEL.gguf
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from golden.fidelity import Fidelity, golden_path, load_golden
from golden.replay import chunk_sizes, compare, load_head, replay
from many_schedules import Schedules
from real_engines import Engines
from test_many_schedules import SHORT, TEXT, short_requests

from pellucid.kernels.dispatch import make_backend
from pellucid.kernels.native import NativeBackend
from pellucid.models.loading import load_model

NUM_ROWS = 272
"""Of the golden document: past the first of attention's splits."""
NUM_SCHEDULES = 3


def golden_figures(path: Path) -> dict[str, Any]:
    """How far the first rows of a golden document are from the truth, and their bits."""
    backend = make_backend("native", 2)
    assert isinstance(backend, NativeBackend)
    decoder = load_model(path, backend)
    document = load_golden(golden_path("smollm2-135m")).documents["prose"]
    ours = replay(decoder, document.token_ids[:NUM_ROWS], chunk_sizes(NUM_ROWS))
    result = Fidelity()
    compare(result, decoder, load_head(path), document, ours)
    return {
        "isa": backend.isa,
        "mean_kl": result.mean_kl,
        "max_kl": result.max_kl,
        "hidden": sha256(ours.tobytes()).hexdigest(),
    }


def main(path: Path) -> None:
    answer = golden_figures(path)
    engines = Engines(path)
    requests = short_requests(engines.make().tokenizer.encode(TEXT))
    schedules = Schedules(engines, requests, 64, SHORT)
    schedules.check(range(NUM_SCHEDULES), max_num_batched_tokens=16)
    answer["alone"] = {str(key): repr(bits) for key, bits in schedules.all_alone().items()}  # floats to the last bit
    print(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
