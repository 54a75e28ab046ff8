"""EngineStats: queues, KV blocks and counters of an engine at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment; counts are since it was made."""

    num_steps: int
    """Forward passes."""
    num_tokens_computed: int
    """Rows of all steps: prompt and output tokens, recomputed ones again."""
    num_output_tokens: int
    """Tokens drawn."""
    num_preemptions: int
    """How often a sequence gave up its blocks to be computed again."""
    num_waiting: int
    """Sequences that wait; a request with n answers is n sequences."""
    num_running: int
    """Sequences that take part in steps."""
    kv_blocks_used: int
    """Blocks that unfinished requests hold."""
    kv_blocks_cached: int
    """Further blocks, kept for prompts to come; they are given up when the free ones run out."""
    kv_blocks_touched: int
    """Blocks ever used: what the KV cache costs in memory now."""
    kv_blocks_total: int
    """Blocks of the pool."""
    prefix_cache_queried_tokens: int
    """Prompt tokens that were looked up in the prefix cache …"""
    prefix_cache_hit_tokens: int
    """… and those found there, which were not computed."""
    prefix_cache_evicted_blocks: int
    """Cached blocks given up so far because others needed the room."""
    spec_draft_tokens: int = 0
    """Guesses at tokens that were verified …"""
    spec_accepted_tokens: int = 0
    """… and those that came true."""
    kv_integrity_faults: int = 0
    """How often the check of an idle engine found the block accounts wrong, and put them right; each is a bug."""

    @property
    def prefix_cache_hit_rate(self) -> float | None:
        """Share of the prompt tokens looked up that were found; None before the first."""
        queried = self.prefix_cache_queried_tokens
        return self.prefix_cache_hit_tokens / queried if queried else None

    @property
    def spec_acceptance_rate(self) -> float | None:
        """Share of the verified guesses that came true; None before the first."""
        return self.spec_accepted_tokens / self.spec_draft_tokens if self.spec_draft_tokens else None
