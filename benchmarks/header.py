"""How long a GGUF header takes to read: median of several openings, per file.

    python benchmarks/header.py model.gguf [more.gguf ...] [--repeats 11]

The last line is JSON. The file is in the page cache after the first opening, so this measures the reader, not the disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from pellucid.formats.gguf import GGUFFile


def header_seconds(path: str, repeats: int) -> list[float]:
    """Seconds of each opening."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        GGUFFile.open(path).close()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--repeats", type=int, default=11)
    arguments = parser.parse_args()
    results = []
    for path in arguments.files:
        seconds = header_seconds(path, arguments.repeats)
        file = GGUFFile.open(path)
        median, least = statistics.median(seconds), min(seconds)
        print(f"{path}: header {file.data_offset:,} bytes, median {median * 1e3:.1f} ms, least {least * 1e3:.1f} ms")
        results.append(
            {"file": path, "header_bytes": file.data_offset, "median_s": round(median, 5), "min_s": round(least, 5)}
        )
    print(json.dumps({"benchmark": "header", "repeats": arguments.repeats, "results": results}))


if __name__ == "__main__":
    main()
