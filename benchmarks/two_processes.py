"""What two processes get from the same cores: one decodes a stream alone, then both do, in turn; the last line is JSON.

    python benchmarks/two_processes.py [--rounds 7] [--seconds 2] [--model smollm2:135m] [--threads N]

Each process has an engine of its own with all usable cores, as two users of a machine have, and decodes answers of 128
tokens one after the other. Steps count while all of a measurement decode. Tokens per second, medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.sampling_params import SamplingParams

PROMPT = "Once upon a time, in a village by the sea, there lived a baker who"
PARAMS = SamplingParams(temperature=0, ignore_eos=True, max_tokens=128)
WARM_UP_STEPS = 8


def work(orders: Connection, model: str, threads: int | None) -> None:
    """One process: from each message to the next it decodes; then it gives back when each step was done."""
    engine = LLMEngine.from_args(EngineArgs(model=model, threads=threads, max_model_len=1024, speculative_method="off"))
    orders.send("loaded")
    while orders.recv():
        times: list[float] = []
        while not orders.poll():
            if not engine.has_unfinished_requests():
                engine.add_request("one", PROMPT, PARAMS)
            engine.step()
            times.append(time.monotonic())
            if len(times) == WARM_UP_STEPS:
                orders.send("begun")
        orders.recv()
        engine.abort("one")
        orders.send(times[WARM_UP_STEPS - 1 :])


def rates(answers: list[list[float]]) -> list[float]:
    """Tokens per second of each process while all of them were decoding."""
    begin, end = max(times[0] for times in answers), min(times[-1] for times in answers)
    return [sum(begin < at <= end for at in times) / (end - begin) for times in answers]


def decode(processes: list[Connection], seconds: float) -> list[float]:
    """All of them at once, for so long after the last has begun."""
    for orders in processes:
        orders.send("begin")
    for orders in processes:
        orders.recv()
    time.sleep(seconds)
    for orders in processes:
        orders.send("end")
    return rates([orders.recv() for orders in processes])


def main() -> None:
    """Print one line for each round and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    context = get_context("spawn")
    ends = [context.Pipe() for _ in range(2)]
    for _, theirs in ends:
        context.Process(target=work, args=(theirs, options.model, options.threads), daemon=True).start()
        theirs.close()  # so that a process that ends is noticed
    both = [ours for ours, _ in ends]
    for orders in both:
        assert orders.recv() == "loaded"
    alone, together = [], []
    for round_ in range(options.rounds):
        alone.append(decode([both[round_ % 2]], options.seconds)[0])
        together.append(sum(decode(both, options.seconds)))
        print(f"round {round_ + 1}: one alone {alone[-1]:.1f} tok/s, two together {together[-1]:.1f}", flush=True)
    for orders in both:
        orders.send("")
    result = {
        "benchmark": "two_processes",
        "model": options.model,
        "alone_tokens_per_s": round(statistics.median(alone), 1),
        "together_tokens_per_s": round(statistics.median(together), 1),
        "together_over_alone": round(statistics.median(t / a for t, a in zip(together, alone, strict=True)), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
