"""A model without weights whose logits depend on the whole history, read back through the KV cache.

`forward` stores each row's token id and position at its slot and computes a hash over all tokens of the sequence
from the block table. Any mistake in slots, tables, chunks, sharing or preemption changes the hash, and with it
the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pellucid.config import EngineArgs, ModelConfig, Precision, RopeConfig, SpeculativeMethod
from pellucid.engine.llm_engine import LLMEngine
from pellucid.forward_batch import Float32Array, ForwardBatch, ForwardOutput
from pellucid.kv_cache.storage import KVCacheStorage, KVLayer
from pellucid.trace.probe import Probe

EOS, IM_END, BOS = 256, 257, 258
VOCAB_SIZE = 260
SPECIAL = {EOS: "<|endoftext|>", IM_END: "<|im_end|>", BOS: "<s>", 259: "<tool>"}
NAN_TOKEN = ord("#")
"""A sequence that has this token gets NaN logits."""
INF_TOKEN = ord("!")
"""This token's key cannot be stored."""
LETTERS = range(ord("a"), ord("h"))
CONTEXT_LENGTH = 256
BLOCK_BYTES = 2 * 2 * 1 * (2 * 2 + 4) * 16
"""K and V, layers, KV heads, bytes of a head of two int16 and their scale, tokens."""

_random = np.random.default_rng(7)
_WEIGHTS = _random.integers(1, 2**31, size=CONTEXT_LENGTH).astype(np.uint64)
_FACTORS = _random.integers(1, 2**31, size=VOCAB_SIZE).astype(np.uint64) | np.uint64(1)
_BIAS = np.zeros(VOCAB_SIZE, dtype=np.float32)
_BIAS[list(LETTERS)] = 4.0
_BIAS[[EOS, IM_END, NAN_TOKEN, INF_TOKEN]] = (2.0, 1.5, -99.0, -99.0)
_BIAS[0xC3], _BIAS[0xA9] = 3.0, 3.0  # two bytes of é: characters that fall apart


def history_hash(tokens: Sequence[int], positions: Sequence[int]) -> int:
    """A hash of all tokens at their positions; 32 bits."""
    places = np.asarray(positions, dtype=np.int64) % CONTEXT_LENGTH
    terms = (np.asarray(tokens, dtype=np.uint64) + np.uint64(1)) * _WEIGHTS[places]
    return int(terms.sum() % np.uint64(2**32 - 5))


def logits_of_hash(number: int) -> Float32Array:
    """Logits [VOCAB_SIZE], all different in practice, with letters and end tokens likely."""
    mixed = (np.uint64(number) * _FACTORS) % np.uint64(2**31 - 1)
    return (mixed.astype(np.float64) / 2**31 * 4.0).astype(np.float32) + _BIAS


class MockModel:
    """See the module. Checks its input as a strict kernel would, and counts what it did."""

    def __init__(self, context_length: int = CONTEXT_LENGTH) -> None:
        self.config = ModelConfig(
            architecture="mock",
            name="mock",
            vocab_size=VOCAB_SIZE,
            hidden_size=3,
            num_layers=2,
            num_heads=1,
            num_kv_heads=1,
            head_dim=2,
            intermediate_size=1,
            context_length=context_length,
            norm_eps=1e-5,
            rope=RopeConfig(10000.0, 2),
        )
        self.is_draft = False
        self.num_forwards = 0
        self.rows: list[int] = []
        """Rows of every forward pass."""
        self.logits_rows: list[int] = []
        """Rows of every call of compute_logits."""
        self.on_forward: Callable[[ForwardBatch], None] | None = None

    def forward(self, batch: ForwardBatch, kv: KVCacheStorage, probe: Probe | None = None) -> ForwardOutput:
        check_batch(batch, kv, is_draft=self.is_draft)
        if self.on_forward is not None:
            self.on_forward(batch)
        self.num_forwards += 1
        self.rows.append(len(batch.token_ids))
        blocks, offsets = np.divmod(batch.slot_mapping, kv.block_size)
        stored_tokens, stored_positions = (key_numbers(layer) for layer in kv.layers)
        stored_tokens[blocks, offsets] = batch.token_ids
        stored_positions[blocks, offsets] = batch.positions + 1
        hidden = np.zeros((len(batch.token_ids), 3), dtype=np.float32)
        for s, seq_len in enumerate(batch.seq_lens):
            table = batch.block_table[s, : -(-int(seq_len) // kv.block_size)]
            tokens = stored_tokens[table].reshape(-1)[:seq_len].astype(np.int64)
            positions = stored_positions[table].reshape(-1)[:seq_len].astype(np.int64) - 1
            for row in range(batch.query_start_loc[s], batch.query_start_loc[s + 1]):
                length = int(batch.positions[row]) + 1
                number = history_hash(tokens[:length], positions[:length])
                hidden[row] = (number & 0xFFFF, number >> 16, float((tokens[:length] == NAN_TOKEN).any()))
        return ForwardOutput(hidden=hidden, nonfinite=batch.token_ids == INF_TOKEN)

    def compute_logits(self, hidden: Float32Array) -> Float32Array:
        assert hidden.flags.c_contiguous
        assert hidden.dtype == np.float32
        self.logits_rows.append(len(hidden))
        logits = np.stack([logits_of_hash(int(low) + (int(high) << 16)) for low, high, _ in hidden])
        logits[hidden[:, 2] > 0] = np.nan
        return logits


class NoisyModel(MockModel):
    """A draft model that is right most of the time: its logits are the mock's, some of them moved."""

    def __init__(self, seed: int = 0, share: float = 0.3, noise: float = 2.0) -> None:
        super().__init__()
        self.is_draft = True
        self._random = np.random.default_rng(seed)
        self._share = share
        self._noise = noise

    def compute_logits(self, hidden: Float32Array) -> Float32Array:
        logits = super().compute_logits(hidden)
        for row in logits:
            if self._random.random() < self._share:
                row[: ord("h")] += self._random.normal(0, self._noise, size=ord("h")).astype(np.float32)
        return logits


def key_numbers(layer: KVLayer) -> np.ndarray:
    """The first number of every token's key [blocks, block_size]: where the model keeps what it is to remember."""
    return layer.keys[:, 0, 0] if layer.keys.ndim == 4 else layer.keys[:, 0, 0, :, 0]


def check_cached_blocks(engine: LLMEngine) -> None:
    """Every block in the prefix cache holds the keys of the very tokens that it is found by."""
    for block, node in engine.kv.cache._nodes.items():
        assert tuple(key_numbers(engine.storage.layers[0])[block].astype(int)) == node.token_ids


def check_batch(batch: ForwardBatch, kv: KVCacheStorage, *, is_draft: bool) -> None:
    """The contract of ForwardBatch. A draft model fills in blocks that are shared: with the same numbers as anyone."""
    num_rows, num_seqs = len(batch.token_ids), len(batch.seq_lens)
    for array, dtype, shape in (
        (batch.token_ids, np.int32, (num_rows,)),
        (batch.positions, np.int32, (num_rows,)),
        (batch.slot_mapping, np.int64, (num_rows,)),
        (batch.query_start_loc, np.int32, (num_seqs + 1,)),
        (batch.seq_lens, np.int32, (num_seqs,)),
        (batch.block_table, np.int32, (num_seqs, batch.block_table.shape[1])),
    ):
        assert array.dtype == dtype
        assert array.shape == shape
        assert array.flags.c_contiguous
    assert num_rows > 0
    assert batch.query_start_loc[0] == 0
    assert batch.query_start_loc[-1] == num_rows
    assert len(set(batch.slot_mapping.tolist())) == num_rows, "two rows write one slot"
    written = set((batch.slot_mapping // kv.block_size).tolist())
    holders: dict[int, int] = {}
    for s in range(num_seqs):
        start, end = batch.query_start_loc[s], batch.query_start_loc[s + 1]
        assert end > start
        assert batch.positions[start:end].tolist() == list(range(batch.seq_lens[s] - (end - start), batch.seq_lens[s]))
        for block in batch.block_table[s, : -(-batch.seq_lens[s] // kv.block_size)].tolist():
            holders[block] = holders.get(block, 0) + 1
        for row in range(start, end):
            block, offset = divmod(int(batch.slot_mapping[row]), kv.block_size)
            assert offset == batch.positions[row] % kv.block_size
            assert block == batch.block_table[s, batch.positions[row] // kv.block_size]
    assert is_draft or all(holders[block] == 1 for block in written), "a shared block is written"


class ByteTokenizer:
    """Bytes are tokens 0 to 255; four control tokens follow. Without BOS unless `add_bos`."""

    def __init__(self, *, add_bos: bool = False) -> None:
        self.vocab_size = VOCAB_SIZE
        self.eos_ids = frozenset((EOS, IM_END))
        self.eos_id, self.bos_id = EOS, BOS
        self.add_bos = add_bos
        self.add_space_prefix = False
        self.chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        return ([BOS] if self.add_bos and add_special_tokens else []) + list(text.encode())

    def least_tokens(self, text: str) -> int:
        return len(text.encode("utf-8", "surrogatepass")) // 4

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = [i for i in ids if not (skip_special_tokens and i in SPECIAL)]
        return b"".join(self.token_bytes(i) for i in kept).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return SPECIAL[token_id].encode() if token_id in SPECIAL else bytes([token_id])

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in SPECIAL


def make_engine(
    *,
    num_blocks: int = 64,
    max_model_len: int = CONTEXT_LENGTH,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    seed: int | None = 0,
    add_bos: bool = False,
    enable_prefix_caching: bool = True,
    speculative_method: SpeculativeMethod = "off",
    num_speculative_tokens: int = 7,
    draft_model: MockModel | None = None,
    precision: Precision = "exact",
) -> LLMEngine:
    """An engine over a new MockModel with a pool of exactly `num_blocks` blocks."""
    args = EngineArgs(
        model="mock",
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_step_ms=600_000,  # a machine that stands still for a moment must not cut steps here
        kv_cache_memory_bytes=num_blocks * BLOCK_BYTES * (1 if draft_model is None else 2),
        seed=seed,
        enable_prefix_caching=enable_prefix_caching,
        speculative_method=speculative_method,
        speculative_model=None if draft_model is None else "mock",
        num_speculative_tokens=num_speculative_tokens,
        precision=precision,
    )
    return LLMEngine(
        MockModel(max(max_model_len, CONTEXT_LENGTH)), ByteTokenizer(add_bos=add_bos), args, draft_model=draft_model
    )
