"""What a product with packed weights costs one thread: nanoseconds of a unit, 16 rows × 32 columns of weights times one
row of activations, by type and number of rows; the last line is JSON.

    python benchmarks/products.py [--types Q4_1,Q8_0] [--precision fast] [--isa avx2] [--threads 1]

The matrix, 512 × 768, lies in the second-level cache or near it, so that arithmetic is seen and not memory. The call
and the coding of the activations are in the figures: a tenth or so with one row. Times the clock they are cycles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace

import numpy as np

from pellucid.config import BLOCK_SIZE
from pellucid.formats.block_types import BLOCK_TYPES_BY_NAME, BlockType
from pellucid.forward_batch import SequencePart, batch_of
from pellucid.kernels.backend import Step, WeightPart
from pellucid.kernels.native import NativeBackend

ROWS, COLUMNS = 512, 768
UNITS = ROWS * COLUMNS // 512
COUNTS = (1, 2, 4, 16, 64, 512)
"""Rows of activations."""
TYPES = "Q4_0,Q4_1,Q5_0,Q8_0,Q4_K,Q6_K,IQ4_NL,F32,F16,BF16"


def some_weights(weight_type: BlockType) -> WeightPart:
    """Arbitrary blocks: bytes small enough that no scale, minimum or number in them is infinite."""
    data = np.random.default_rng(1).integers(0, 0x38, weight_type.nbytes((ROWS, COLUMNS)), dtype=np.uint8)
    return WeightPart("weights", data, weight_type, ROWS, COLUMNS)


def fast_step(backend: NativeBackend, count: int) -> Step:
    """One prompt of `count` rows, all of which may be fast."""
    batch = batch_of([SequencePart([0] * count, 0, range(-(-count // BLOCK_SIZE)))], BLOCK_SIZE)
    return backend.step(replace(batch, fast_rows=np.ones(count, dtype=np.bool_)))


def nanoseconds(backend: NativeBackend, weight_type: BlockType, precision: str, count: int) -> float:
    """The median of some runs, per unit and thread."""
    matrix = backend.matrix([some_weights(weight_type)])
    x = np.random.default_rng(2).standard_normal((count, COLUMNS)).astype(np.float32)
    out = np.empty((count, ROWS), dtype=np.float32)
    step = fast_step(backend, count) if precision == "fast" else None
    times = []
    for _ in range(max(7, 400 // count)):
        begin = time.perf_counter()
        backend.linear(x, None, 0.0, matrix, out, step)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e9 * backend.threads / (UNITS * count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=TYPES, help="names with commas between them")
    parser.add_argument("--precision", choices=["exact", "fast"], default="exact")
    parser.add_argument("--isa", default="", help="instruction set; default the fastest")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    backend = NativeBackend(options.threads, options.isa)
    names = options.types.split(",")
    unknown = [name for name in names if name not in BLOCK_TYPES_BY_NAME]
    if unknown:
        parser.error(f"--types: no type {', '.join(unknown)}: choose from {', '.join(BLOCK_TYPES_BY_NAME)}")
    print(f"{backend.isa}, {options.precision}, threads {backend.threads}; nanoseconds of a unit and row")
    print("| rows |" + "".join(f" {count} |" for count in COUNTS) + "\n" + "|---" * (1 + len(COUNTS)) + "|")
    found: dict[str, dict[int, float]] = {}
    for name in names:
        found[name] = {n: nanoseconds(backend, BLOCK_TYPES_BY_NAME[name], options.precision, n) for n in COUNTS}
        print(f"| {name} |" + "".join(f" {value:.1f} |" for value in found[name].values()), flush=True)
    print(json.dumps({"benchmark": "products", "isa": backend.isa, "precision": options.precision, "ns": found}))


if __name__ == "__main__":
    main()
