"""The engine's own error for each weight type: KL(float32 ‖ ours) on the same weights; the last line is JSON.

    python benchmarks/weight_types.py [--model smollm2:135m] [--tokens 512] [--types q4_0,q8_0] [--threads 2]

The model, dequantised to float32, is taken as if it had been published so, and made into each type in memory. Measured
is how far the compiled kernels, with the default keys and values, are from NumPy in float32 on exactly these rounded
weights: what our arithmetic costs, and not what the type costs. Types that nothing here can make out of floats are
left out. Rows that a type does not divide take another one (docs/quantization.md), so a row of the table names the
types that really were in the model.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.config import QUANTIZATIONS
from pellucid.formats.block_types import BF16, F16, BlockType
from pellucid.formats.dequantize import dequantize
from pellucid.formats.gguf import GGUFFile
from pellucid.kernels.backend import Backend
from pellucid.kernels.dispatch import make_backend
from pellucid.model_store.store import resolve
from pellucid.models.decoder import Decoder
from pellucid.models.loading import pack_model, read_config
from pellucid.models.quantization import Quantizer
from pellucid.models.sources import StoredTensor, TensorSource, array_tensor, gguf_source

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from golden.fidelity import Fidelity, Float32Array, Int32Array, row_chunks
from golden.replay import CHUNK, Replay

from benchmarks.fidelity import find_golden

TYPES = ("f32", "f16", "bf16", *QUANTIZATIONS)
DOCUMENT = "prose"


def as_float(source: TensorSource) -> TensorSource:
    """All tensors in float32."""
    plain = {name: array_tensor(name, dequantize(t.data, t.type, t.shape)) for name, t in source.items()}
    return TensorSource(source.label, plain)


def as_half(tensor: StoredTensor, kind: BlockType) -> StoredTensor:
    """A float32 matrix in 16 bits, rounded to the nearest; vectors stay as they are."""
    if len(tensor.shape) < 2:
        return tensor
    values = tensor.data.view(np.float32)
    if kind is F16:
        return replace(tensor, type=kind, data=values.astype(np.float16).view(np.uint8))
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return replace(tensor, type=kind, data=rounded.astype(np.uint16).view(np.uint8))


def in_type(plain: TensorSource, name: str, form: Any) -> TensorSource:
    """The tensors in one of `TYPES`."""
    if name == "f32":
        return plain
    if name in ("f16", "bf16"):
        kind = F16 if name == "f16" else BF16
        return TensorSource(plain.label, {key: as_half(tensor, kind) for key, tensor in plain.items()})
    quantizer = Quantizer(name, form.tensors)  # type: ignore[arg-type]
    made = {key: quantizer.quantized(key.removesuffix(".weight"), tensor) for key, tensor in plain.items()}
    return TensorSource(plain.label, made)


def logits_of(decoder: Decoder, ids: Int32Array, kv_dtype: Any) -> list[Float32Array]:
    """Of every position, chunk by chunk."""
    replay = Replay(decoder, len(ids), kv_dtype)
    return [decoder.compute_logits(replay.push(ids[rows])).copy() for rows in row_chunks(len(ids), CHUNK)]


def compared(reference: list[Float32Array], ours: list[Float32Array]) -> Fidelity:
    result = Fidelity()
    for one, other in zip(reference, ours, strict=True):
        result.add(one, other)
    return result


def main() -> None:
    """Measure type by type and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    path = Path(resolve(options.model))
    ids = find_golden(path).documents[DOCUMENT].token_ids[: options.tokens]
    native, reference = make_backend("native", options.threads), make_backend("reference")
    with GGUFFile.open(path) as file:
        form, config = read_config(file)
        plain = as_float(gguf_source(file))

    def decoder(source: TensorSource, backend: Backend) -> Decoder:
        return pack_model(form, config, TensorSource(source.label, dict(source.items())), backend)  # it is emptied

    results: list[dict[str, Any]] = []
    print(f"{'type':6} {'mean KL':>10} {'largest':>10} {'agreement':>9}  {len(ids)} tokens")
    for name in options.types.split(","):
        begin = time.perf_counter()
        source = in_type(plain, name, form)
        kinds = Counter(tensor.type.name for tensor in source.tensors if len(tensor.shape) > 1)
        truth = logits_of(decoder(source, reference), ids, "float32")
        ours = logits_of(decoder(source, native), ids, "int16")
        found = compared(truth, ours)
        row = {"type": name, "matrices": dict(kinds), **found.summary()}
        results.append(row | {"seconds": round(time.perf_counter() - begin, 1)})
        print(
            f"{name:6} {found.mean_kl:10.1e} {found.max_kl:10.1e} {found.agreement:9.2%}  "
            + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
            flush=True,
        )
    print(json.dumps({"benchmark": "weight_types", "model": path.name, "tokens": len(ids), "results": results}))


if __name__ == "__main__":
    main()
