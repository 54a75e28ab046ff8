"""One stream on llama-cpp-python: decode and prefill tokens per second and load time; the last line is JSON.

    python benchmarks/peers/llama_cpp_latency.py MODEL.gguf [--threads 2] [--repeats 5]

For a virtual environment of its own, with numpy and llama-cpp-python built for this machine:
`CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-binary llama-cpp-python llama-cpp-python`. Prefill is one prompt of
512 tokens, decode 128 greedy tokens after a prompt of 128, each the median of several runs after one to warm up.
`decode` calls the C interface from a plain loop, `generate` is the Python package's own generator.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from importlib.metadata import version
from pathlib import Path

import llama_cpp
from llama_cpp_context import LlamaContext, system_info

TEXT = Path(__file__).resolve().parents[2] / "tests" / "golden" / "text_prose.txt"
PREFILL_TOKENS = 512
PROMPT_TOKENS = 128
DECODE_TOKENS = 128


def prefill_seconds(context: LlamaContext, token_ids: list[int]) -> float:
    """Seconds from the prompt's ids to the last position's logits."""
    context.clear()
    start = time.perf_counter()
    context.push(token_ids)
    return time.perf_counter() - start


def decode_seconds(context: LlamaContext, token_ids: list[int]) -> float:
    """Seconds of 128 greedy steps, the prompt not counted; end tokens do not end it."""
    context.clear()
    logits = context.push(token_ids)
    start = time.perf_counter()
    for _ in range(DECODE_TOKENS):
        logits = context.push([int(logits[-1].argmax())])
    return time.perf_counter() - start


def generate_seconds(model: llama_cpp.Llama, token_ids: list[int]) -> float:
    """Seconds from the first to the last of 129 tokens of the package's own greedy generator."""
    model.reset()
    stream = model.generate(token_ids, temp=0.0, repeat_penalty=1.0)
    next(stream)
    start = time.perf_counter()
    for _ in range(DECODE_TOKENS):
        next(stream)
    seconds = time.perf_counter() - start
    stream.close()
    return seconds


def load_seconds(path: Path, threads: int) -> float:
    """Seconds until a model and its context are ready; the file is in the page cache."""
    start = time.perf_counter()
    with LlamaContext(path, threads):
        return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    path, threads, repeats = arguments.model, arguments.threads, arguments.repeats

    load = [load_seconds(path, threads) for _ in range(repeats + 1)][1:]
    with LlamaContext(path, threads) as context:
        token_ids = context.tokenize(TEXT.read_text(encoding="utf-8"))
        if len(token_ids) < PREFILL_TOKENS:
            raise SystemExit(f"{TEXT} has {len(token_ids)} tokens, but {PREFILL_TOKENS} are needed")
        prefill = [prefill_seconds(context, token_ids[:PREFILL_TOKENS]) for _ in range(repeats + 1)][1:]
        decode = [decode_seconds(context, token_ids[:PROMPT_TOKENS]) for _ in range(repeats + 1)][1:]
    model = llama_cpp.Llama(str(path), n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)
    generate = [generate_seconds(model, token_ids[:PROMPT_TOKENS]) for _ in range(repeats + 1)][1:]
    model.close()

    results = {
        "decode_tok_s": DECODE_TOKENS / statistics.median(decode),
        "decode_best_tok_s": DECODE_TOKENS / min(decode),
        "generate_tok_s": DECODE_TOKENS / statistics.median(generate),
        "prefill_512_tok_s": PREFILL_TOKENS / statistics.median(prefill),
        "prefill_512_best_tok_s": PREFILL_TOKENS / min(prefill),
        "load_s": statistics.median(load),
    }
    for name, value in results.items():
        print(f"{name:24s} {value:10.2f}")
    print(
        json.dumps(
            {
                "benchmark": "llama_cpp_latency",
                "version": version("llama-cpp-python"),
                "system": system_info(),
                "model": path.name,
                "threads": threads,
                "repeats": repeats,
                **{name: round(value, 3) for name, value in results.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
