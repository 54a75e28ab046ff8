"""What type-ahead saves: TTFT of a prompt whose text was prefilled while it was typed, against the same prompt cold.

    python benchmarks/type_ahead.py [--runs 5] [--model smollm2:135m] [--tokens 2000]

    python benchmarks/type_ahead.py --url http://127.0.0.1:8000      the same of a running server, over its WebSocket

Every run has a text of its own. It is prefilled as the WebSocket does it: the text so far, without its last tokens,
every `--step` tokens; the request comes when the last of it is typed. The last line of output is JSON. Milliseconds,
medians.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

from pellucid.engine.llm import LLM
from pellucid.sampling_params import SamplingParams
from pellucid.server.type_ahead import HELD_BACK_TOKENS

PARAMS = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


def ttft(llm: LLM, prompt: list[int], salt: str) -> tuple[float, int]:
    """Milliseconds to the first token, and the tokens that were found."""
    output = llm.generate(prompt, PARAMS, cache_salt=salt)[0]
    return (output.metrics.ttft or 0.0) * 1000, output.num_cached_tokens or 0


def over_http(url: str, args: argparse.Namespace) -> list[tuple[float, float, int]]:
    """(cold, ahead, tokens found) of each run against a running server, typed into its WebSocket."""
    import asyncio

    import numpy as np
    from websockets.asyncio.client import connect

    from pellucid.cli.load.client import COMPLETIONS, PATHS, Target, ask
    from pellucid.cli.load.driver import new_client
    from pellucid.cli.load.workload import sentences

    async def asked(client: Any, text: str, salt: str) -> tuple[float, int]:
        target = Target(args.model, COMPLETIONS, {"prompt": text, "cache_salt": salt, "ignore_eos": True})
        result = await ask(client, PATHS[COMPLETIONS], target.body([], 2), time.perf_counter())
        if result.failure is not None or result.ttft is None:
            raise SystemExit(f"{result.failure}: {result.detail}")
        return result.ttft * 1000, result.num_cached_tokens or 0

    async def typed(text: str, salt: str) -> None:
        words = text.split(" ")
        async with connect(f"ws{url.removeprefix('http')}/v1/prefill/ws") as socket:
            await socket.send(json.dumps({"model": args.model, "cache_salt": salt}))
            await socket.recv()
            for count in [*range(args.step, len(words), args.step), len(words)]:
                await socket.send(json.dumps({"prompt": " ".join(words[:count])}))
                answer = json.loads(await socket.recv())
                if answer["type"] != "prefilled":
                    raise SystemExit(str(answer))

    async def go() -> list[tuple[float, float, int]]:
        found = []
        async with new_client(f"{url}/v1", None, 600.0) as client:
            await asked(client, "warm up", "warm-up")
            for number in range(args.runs):
                text = sentences(np.random.default_rng(number), args.tokens)
                cold, _ = await asked(client, text, f"cold {number}")
                await typed(text, f"ahead {number}")
                found.append((cold, *await asked(client, text, f"ahead {number}")))
        return found

    return asyncio.run(go())


def in_process(args: argparse.Namespace) -> list[tuple[float, float, int]]:
    """The same by `LLM.prefill`."""
    draw = random.Random(0)
    found = []
    with LLM(model=args.model) as llm:
        ttft(llm, [300] * 64, "warm-up")
        for number in range(args.runs):
            prompt = [draw.randrange(300, llm.config.vocab_size) for _ in range(args.tokens)]
            cold, _ = ttft(llm, prompt, f"cold {number}")
            for typed in [*range(args.step, args.tokens, args.step), args.tokens]:
                llm.prefill(prompt[: typed - HELD_BACK_TOKENS], cache_salt=f"ahead {number}")
            found.append((cold, *ttft(llm, prompt, f"ahead {number}")))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of the whole prompt")
    parser.add_argument("--step", type=int, default=200, help="tokens (over HTTP: words) from one prefill to the next")
    parser.add_argument("--url", help="a running server, http://127.0.0.1:8000, in place of an engine of its own")
    args = parser.parse_args()
    runs = over_http(args.url, args) if args.url else in_process(args)
    cold, ahead, found = zip(*runs, strict=True)
    result = {
        "bench": "type_ahead",
        "model": args.model,
        "over_http": bool(args.url),
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
