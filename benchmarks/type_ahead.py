"""What type-ahead saves: TTFT of a prompt whose text was prefilled while it was typed, against the same prompt cold.

    python benchmarks/type_ahead.py [--runs 5] [--model smollm2:135m] [--tokens 2000]

Every run has a text of its own. It is prefilled as the WebSocket does it: the text so far, without its last tokens,
every `--step` tokens; the request comes when the last of it is typed. The last line of output is JSON. Milliseconds,
medians.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics

from pellucid.engine.llm import LLM
from pellucid.sampling_params import SamplingParams
from pellucid.server.prefill import HELD_BACK_TOKENS

PARAMS = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


def ttft(llm: LLM, prompt: list[int], salt: str) -> tuple[float, int]:
    """Milliseconds to the first token, and the tokens that were found."""
    output = llm.generate(prompt, PARAMS, cache_salt=salt)[0]
    return (output.metrics.ttft or 0.0) * 1000, output.num_cached_tokens or 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of the whole prompt")
    parser.add_argument("--step", type=int, default=200, help="tokens typed from one prefill to the next")
    args = parser.parse_args()
    draw = random.Random(0)
    with LLM(model=args.model) as llm:
        ttft(llm, [300] * 64, "warm-up")
        cold, ahead, found = [], [], []
        for number in range(args.runs):
            prompt = [draw.randrange(300, llm.config.vocab_size) for _ in range(args.tokens)]
            cold.append(ttft(llm, prompt, f"cold {number}")[0])
            for typed in [*range(args.step, args.tokens, args.step), args.tokens]:
                llm.prefill(prompt[: typed - HELD_BACK_TOKENS], cache_salt=f"ahead {number}")
            milliseconds, num_cached = ttft(llm, prompt, f"ahead {number}")
            ahead.append(milliseconds)
            found.append(num_cached)
    result = {
        "bench": "type_ahead",
        "model": args.model,
        "prompt_tokens": args.tokens,
        "cached_tokens": statistics.median(found),
        "cold_ttft_ms": round(statistics.median(cold), 1),
        "ahead_ttft_ms": round(statistics.median(ahead), 1),
        "ahead_over_cold": round(statistics.median(a / c for a, c in zip(ahead, cold, strict=True)), 4),
    }
    ratio = result["ahead_over_cold"]
    print(f"TTFT cold {result['cold_ttft_ms']} ms, typed ahead {result['ahead_ttft_ms']} ms: {ratio:.1%}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
