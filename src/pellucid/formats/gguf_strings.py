"""Arrays of strings as a GGUF file has them, each a uint64 length and its bytes: a quarter of a million may follow.

A length below 256 is followed by seven zeros, so that strings can be found all at once; what is found is held to the
lengths, and what does not agree is left to the reader that goes one by one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LEAST_BYTES, MOST_BYTES = 1 << 12, 1 << 18
"""Looked at together: little where the last look found little."""
FEW = 64
"""Strings read one by one before the next look: strings made to be missed by it cost no more than twice the time."""


def cut_strings(data: npt.NDArray[np.uint8], most: int) -> tuple[list[str], int]:
    """The strings that `data` begins with, at most so many, and the bytes they take with their lengths.

    Leaves the last one, and all from the first that is empty, longer than 255 bytes or has seven zeros; and all where
    one has a zero or is no UTF-8.
    """
    if len(data) < 16:  # two lengths
        return [], 0
    zero = data == 0
    four = zero[:-3] & zero[1:-2] & zero[2:-1] & zero[3:]
    seven = four[:-3] & four[3:]
    places = np.flatnonzero(seven[1:] & ~zero[: len(seven) - 1])[: most + 1]
    if len(places) < 2 or places[0] != 0:
        return [], 0
    agrees = places[:-1] + 8 + data[places[:-1]] == places[1:]
    count = len(agrees) if agrees.all() else int(agrees.argmin())
    taken = int(places[count])
    kept = np.ones(taken, np.bool_)
    for i in range(7):  # the eighth byte of each length, a zero, stands between the strings
        kept[places[:count] + i] = False
    try:
        strings = data[:taken][kept].tobytes().decode("utf-8").split("\0")[1:]
    except UnicodeDecodeError:
        return [], 0
    return (strings, taken) if len(strings) == count else ([], 0)
