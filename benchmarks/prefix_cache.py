"""What the prefix cache saves: TTFT of a prompt that shares its first tokens with an earlier one, cold and warm.

    python benchmarks/prefix_cache.py [--runs 7] [--model smollm2:135m] [--shared 1000] [--rest 16]

Every run has a prefix of its own: the first prompt with it is cold, the second, which ends otherwise, is warm.
The last line of output is JSON. Milliseconds, medians.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics

from pellucid.engine.llm import LLM
from pellucid.outputs import RequestOutput
from pellucid.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


def ask(llm: LLM, prompt: list[int]) -> RequestOutput:
    """One request, alone."""
    return llm.generate(prompt, PARAMS)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--shared", type=int, default=1000, help="tokens that both prompts begin with")
    parser.add_argument("--rest", type=int, default=16, help="further tokens of each prompt")
    args = parser.parse_args()
    draw = random.Random(0)
    with LLM(model=args.model) as llm:

        def ids(count: int) -> list[int]:
            return [draw.randrange(300, llm.config.vocab_size) for _ in range(count)]

        ask(llm, ids(64))
        cold, warm, num_cached = [], [], []
        for _ in range(args.runs):
            shared = ids(args.shared)
            first, second = ask(llm, shared + ids(args.rest)), ask(llm, shared + ids(args.rest))
            cold.append((first.metrics.ttft or 0.0) * 1000)
            warm.append((second.metrics.ttft or 0.0) * 1000)
            num_cached.append(second.num_cached_tokens)
    result = {
        "bench": "prefix_cache",
        "model": args.model,
        "shared_tokens": args.shared,
        "rest_tokens": args.rest,
        "cached_tokens": statistics.median(n or 0 for n in num_cached),
        "cold_ttft_ms": round(statistics.median(cold), 1),
        "warm_ttft_ms": round(statistics.median(warm), 1),
        "warm_over_cold": round(statistics.median(w / c for w, c in zip(warm, cold, strict=True)), 4),
    }
    print(f"TTFT cold {result['cold_ttft_ms']} ms, warm {result['warm_ttft_ms']} ms: {result['warm_over_cold']:.1%}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
