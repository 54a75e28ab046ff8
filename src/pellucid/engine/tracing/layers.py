"""Level 3: what each layer did to the rows of traced requests.

Norms are taken from the tensors themselves, as the forward pass shows them. Attention weights are recomputed, from the
query and the keys in the cache, as they are stored: the kernels never have a row of weights as a whole. The logit lens
(nostalgebraist 2020, "interpreting GPT: the logit lens") reads a layer's residual as if it were the last one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from pellucid.config import ModelConfig
from pellucid.engine.scheduler import ScheduledRequest
from pellucid.engine.tracing.records import LayerRecord
from pellucid.forward_batch import Float32Array
from pellucid.kernels.backend import AttentionParams
from pellucid.kernels.kv_codes import gather
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.trace.events import ATTENTION_KEYS, ATTENTION_PROMPT_ROWS, LENS_TOKENS

Int64Array = npt.NDArray[np.int64]
_FROM_BLOCK = ("residual", "attn.added", "attn.q", "mlp.input", "mlp.added", "moe.ids", "moe.weights", "moe.router")


class LayeredModel(Protocol):
    """What level 3 asks of a model; one that lacks it, such as a mock, is not shown layer by layer."""

    @property
    def config(self) -> ModelConfig: ...

    def attention_params(self, layer: int) -> AttentionParams: ...

    def lens(self, residual: Float32Array) -> Float32Array: ...


class WatchedRows:
    """The rows of one entry of a step, as they are before the step runs."""

    def __init__(self, entry: ScheduledRequest, first: int) -> None:
        """first: place of its first row in the batch."""
        self.entry = entry
        self.first = first
        self.count = entry.num_rows
        self.blocks = list(entry.block_table)
        first_told = entry.request.num_prompt_tokens - ATTENTION_PROMPT_ROWS - entry.start
        self.first_with_attention = min(max(0, first_told), self.count)
        """The first of its rows, counted from 0, whose attention is told."""
        self.first_with_lens = entry.num_new_tokens - 1 if entry.draws else self.count
        """The first of its rows that the LM head reads."""
        self.has_failed = False
        """Whether something in it was not finite: its keys are gone, and there is nothing to see in its logits."""


class LayerProbe:
    """Takes what level 3 needs of a forward pass: a few numbers of each row, the queries of chosen ones."""

    def __init__(self, config: ModelConfig, watched: Sequence[WatchedRows]) -> None:
        self._rows = np.concatenate([np.arange(w.first, w.first + w.count) for w in watched])
        chosen = [np.arange(w.first + w.first_with_attention, w.first + w.count) for w in watched]
        self._attention_rows = np.concatenate(chosen)
        read = [np.arange(w.first + w.first_with_lens, w.first + w.count) for w in watched]
        lens_rows = np.concatenate(read)
        self._lens_places = np.searchsorted(self._rows, lens_rows)
        layers, rows = config.num_layers, len(self._rows)
        self.norms = np.zeros((layers, rows, 4), dtype=np.float32)
        self.nonfinite = np.zeros((layers, rows), dtype=np.int64)
        self.queries: dict[int, Float32Array] = {}
        self.residuals = np.zeros((layers, len(lens_rows), config.hidden_size), dtype=np.float32)
        self.experts: dict[int, dict[str, npt.NDArray[Any]]] = {}
        self._before = np.zeros((rows, config.hidden_size), dtype=np.float32)
        self._added: Float32Array | None = None
        self._names: dict[str, tuple[int, str]] = {"embedding": (-1, "embedding")}
        for layer in range(layers):
            self._names |= {f"layers.{layer}.{part}": (layer, part) for part in _FROM_BLOCK}

    def wants(self, name: str) -> bool:
        return name in self._names

    def record(self, name: str, tensor: npt.NDArray[Any]) -> None:
        layer, part = self._names[name]
        if part == "attn.q":
            self.queries[layer] = tensor[self._attention_rows]
            return
        rows = tensor[self._rows]
        if part == "attn.added":
            self.norms[layer, :, 1] = _rms(rows - self._before)
            self._before = rows
        elif part == "mlp.added":
            self._added = rows
        elif part == "residual":
            self.norms[layer, :, 2] = _rms((rows if self._added is None else self._added) - self._before)
            self._note_residual(layer, rows)
        elif part.startswith("moe."):
            self.experts.setdefault(layer, {})[part] = rows
        else:  # embedding, mlp.input
            self._before = rows

    def _note_residual(self, layer: int, rows: Float32Array) -> None:
        self._before, self._added = rows, None
        self.norms[layer, :, 0] = _rms(rows)
        self.norms[layer, :, 3] = np.abs(rows).max(axis=1)
        self.nonfinite[layer] = np.count_nonzero(~np.isfinite(rows), axis=1)
        self.residuals[layer] = rows[self._lens_places]


def layer_records(
    probe: LayerProbe,
    watched: Sequence[WatchedRows],
    num_valid: Sequence[int],
    model: LayeredModel,
    storage: KVCacheStorage,
    step: int,
    max_logits_rows: int,
) -> list[LayerRecord]:
    """Records of the watched entries; of each, the first `num_valid` rows (drafts that were refused are not told).

    The keys must still be in the cache as they were in the step.
    """
    records: list[LayerRecord] = []
    lenses = _lenses(probe.residuals, model, max_logits_rows)
    row = attention_row = lens_row = 0
    for rows, valid in zip(watched, num_valid, strict=True):
        places = slice(row, row + valid)
        first = rows.first_with_attention
        attention = _attention(probe, rows, valid, attention_row, model, storage)
        record = LayerRecord(
            request=rows.entry.request,
            step=step,
            positions=np.arange(rows.entry.start, rows.entry.start + valid),
            norms=probe.norms[:, places].copy(),
            nonfinite=probe.nonfinite[:, places].copy(),
            attention=attention,
            lens={
                place: lenses[lens_row + place - rows.first_with_lens]
                for place in range(rows.first_with_lens, 0 if rows.has_failed else valid)
            },
            experts={
                layer: (part["moe.ids"][places], part["moe.weights"][places], _entropy(part["moe.router"][places]))
                for layer, part in probe.experts.items()
            },
        )
        records.append(record)
        row += rows.count
        attention_row += rows.count - first
        lens_row += rows.count - rows.first_with_lens
    return records


def _attention(
    probe: LayerProbe, rows: WatchedRows, valid: int, first_query: int, model: LayeredModel, storage: KVCacheStorage
) -> dict[int, tuple[Int64Array, Float32Array, Float32Array]]:
    """For each row with attention: keys [L, H, k], weights [L, H, k], the rest [L, H]."""
    first = rows.first_with_attention
    count = valid - first
    if count <= 0 or not probe.queries or rows.has_failed:
        return {}
    length = rows.entry.start + valid
    positions = np.arange(rows.entry.start + first, length)
    found = []
    for layer in range(model.config.num_layers):
        keys = stored_keys(storage, layer, rows.blocks, length)
        queries = probe.queries[layer][first_query : first_query + count]
        queries = queries.reshape(count, model.config.num_heads, -1)
        found.append(strongest(attention_weights(queries, keys, positions, model.attention_params(layer))))
    ids, weights, other = (np.stack(part, axis=1) for part in zip(*found, strict=True))
    return {first + i: (ids[i], weights[i], other[i]) for i in range(count)}


def stored_keys(storage: KVCacheStorage, layer: int, blocks: Sequence[int], length: int) -> Float32Array:
    """The first `length` keys of a sequence [G, length, D], as the cache has them."""
    table = np.asarray(blocks[: -(-length // storage.block_size)], dtype=np.int32)
    return gather(storage.layers[layer], table, length)[0]


def attention_weights(
    queries: Float32Array, keys: Float32Array, positions: Int64Array, params: AttentionParams
) -> Float32Array:
    """The weights [R, H, n] of queries [R, H, D] at `positions` on keys [G, n, D]; see `Backend.attention`.

    Where the layer has sinks they take part, so that a row adds up to less than 1.
    """
    num_rows, heads, dim = queries.shape
    groups, length = keys.shape[:2]
    grouped = queries.reshape(num_rows, groups, heads // groups, dim)
    scores = np.einsum("rghd,gnd->rghn", grouped, keys, optimize=True).reshape(num_rows, heads, length)
    scores = scores * np.float32(params.scale)
    if params.softcap is not None:
        cap = np.float32(params.softcap)
        scores = cap * np.tanh(scores / cap)
    distance = positions[:, None] - np.arange(length)[None, :]
    if params.slopes is not None:
        scores = scores - params.slopes[None, :, None] * distance.astype(np.float32)[:, None, :]
    visible = distance >= 0 if params.causal else np.ones_like(distance, dtype=np.bool_)
    if params.window is not None:
        visible &= distance < params.window
    scores = np.where(visible[:, None, :], scores, np.float32(-np.inf))
    largest = scores.max(axis=2, keepdims=True)
    if params.sinks is not None:
        largest = np.maximum(largest, params.sinks[None, :, None])
    weights = np.exp(scores - largest)
    total = weights.sum(axis=2, keepdims=True)
    if params.sinks is not None:
        total = total + np.exp(params.sinks[None, :, None] - largest)
    return cast(Float32Array, weights / total)


def strongest(weights: Float32Array, count: int = ATTENTION_KEYS) -> tuple[Int64Array, Float32Array, Float32Array]:
    """Of weights [R, H, n]: the keys with the largest [R, H, k] in descending order, ties by position; their weights;
    and what is left of 1 [R, H]. Keys that a row cannot see are −1."""
    order = np.argsort(-weights, axis=2, kind="stable")[:, :, :count]
    kept = np.take_along_axis(weights, order, axis=2)
    rest = np.maximum(np.float32(0.0), np.float32(1.0) - kept.sum(axis=2))
    return np.where(kept > 0, order, -1), kept, rest


def _lenses(
    residuals: Float32Array, model: LayeredModel, max_logits_rows: int
) -> list[tuple[Int64Array, Float32Array, Float32Array]]:
    """For each row of residuals [L, Q, d]: ids [L, t], probabilities [L, t], entropy [L]."""
    layers, rows, width = residuals.shape
    flat = np.ascontiguousarray(residuals.transpose(1, 0, 2)).reshape(-1, width)
    ids = np.zeros((len(flat), LENS_TOKENS), dtype=np.int64)
    shares = np.zeros((len(flat), LENS_TOKENS), dtype=np.float32)
    entropy = np.zeros(len(flat), dtype=np.float32)
    for start in range(0, len(flat), max_logits_rows):
        for place, logits in enumerate(model.lens(flat[start : start + max_logits_rows]), start=start):
            if np.isnan(logits).any():  # of a request that has failed, whose lens is not told
                continue
            ids[place], shares[place], entropy[place] = _top_tokens(logits)
    shape = (rows, layers, LENS_TOKENS)
    return list(zip(ids.reshape(shape), shares.reshape(shape), entropy.reshape(rows, layers), strict=True))


def _top_tokens(logits: Float32Array) -> tuple[Int64Array, Float32Array, float]:
    """The most probable ids, their probabilities, the entropy in nats; ties by id."""
    count = min(LENS_TOKENS, len(logits))
    threshold = np.partition(logits, len(logits) - count)[len(logits) - count]
    near = np.flatnonzero(logits >= threshold)
    ids = near[np.argsort(-logits[near], kind="stable")[:count]]
    exponents = logits - logits[ids[0]]
    weights = np.exp(exponents)
    total = float(weights.sum(dtype=np.float64))
    entropy = np.log(total) - float((weights * np.maximum(exponents, -1e4)).sum(dtype=np.float64)) / total
    shares = weights[ids] / np.float32(total)
    if count < LENS_TOKENS:
        ids, shares = np.resize(ids, LENS_TOKENS), np.resize(shares, LENS_TOKENS)
    return ids, shares, float(entropy)


def _entropy(logits: Float32Array) -> Float32Array:
    """Of softmax(logits [R, E]), row by row, in nats."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = weights / weights.sum(axis=1, keepdims=True)
    return cast(Float32Array, -(shares * np.log(np.maximum(shares, np.float32(1e-30)))).sum(axis=1))


def _rms(rows: Float32Array) -> Float32Array:
    """Root mean square of each row."""
    with np.errstate(over="ignore", invalid="ignore"):
        return cast(Float32Array, np.sqrt(np.square(rows).mean(axis=1)))
