"""The draw's random number: a pure function of the seed, the sample index and the position.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3) turns a
counter and a key into 128 random bits without any state, so that batching, streaming, preemption and
speculation cannot change what a request draws. Written out here because NumPy has only the 64-bit variant,
and ten lines of 32-bit arithmetic can be repeated in any language that shows a trace.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10: four 32-bit words of counter and two of key to four 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def draw_counter(sample_index: int, position: int) -> tuple[int, int, int, int]:
    """The counter's words: position (low, high), sample index, and 0, which is free for another use of the seed."""
    return position & _MASK, position >> 32 & _MASK, sample_index & _MASK, 0


def uniform(seed: int, sample_index: int, position: int) -> float:
    """The number u in [0, 1) that draws the token at `position` (0-based, counted from the prompt's first id).

    The key is the seed's low and high 32 bits (0 <= seed < 2**64). Of the four words out, w0 is the high and w1
    the low half of a 64-bit number whose upper 53 bits, divided by 2**53, are u: every u is a float64 exactly.
    """
    w0, w1, _, _ = philox4x32(draw_counter(sample_index, position), (seed & _MASK, seed >> 32 & _MASK))
    return float((w0 << 21) | (w1 >> 11)) * 2.0**-53
