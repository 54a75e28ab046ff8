"""One stream with and without speculation: tokens per second after the first, and that the answers are the same.

    python benchmarks/speculation.py [--model smollm2:135m] [--rounds 3] [--max-tokens 200] [--method auto]
                                     [--draft-model NAME] [--tasks edit,free] [--num-speculative-tokens 7]
    python benchmarks/speculation.py --floats --draft-quantization q4_0 --method draft_model
    python benchmarks/speculation.py --draft-layers 20 --method draft_model
    python benchmarks/speculation.py --costs

Both engines share the weights and answer each prompt in turn, in changing order. The last line of output is JSON.
--floats takes the model with its matrices in F16; --draft-quantization and --draft-layers make the draft model of the
model's own weights, in that type or of so many first layers; --costs gives what steps of some rows take.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from draft_models import first_layers, in_blocks, in_floats

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.loading import load_draft_model, load_parts
from pellucid.engine.model_runner import Model
from pellucid.engine.output_processor import add_delta
from pellucid.forward_batch import SequencePart, batch_of
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.model_store.store import resolve
from pellucid.outputs import RequestOutput
from pellucid.sampling_params import SamplingParams
from pellucid.tokenizer.chat_template import encode_chat

PLACE = """The lighthouse on the northern cape was built in 1847 by a company of stonemasons from the mainland. It is \
forty-one metres tall and its lamp can be seen from eighteen miles away on a clear night. For almost a century a \
keeper and his family lived in the small house beside the tower, growing vegetables in the walled garden and receiving \
letters once a week by boat. In 1962 the lamp was made automatic, and the last keeper, a quiet man called Thomas \
Arden, moved to the village on the other side of the bay. He visited the tower every Sunday until his death in 1989."""
MINUTES = """The meeting of the allotment society began at seven. The treasurer reported that the society has 412 \
pounds in the bank and that nine members have not paid for this year. The water tank beside plot twelve leaks and will \
be repaired in March by the council. Mrs. Okafor proposed a shared greenhouse; eleven members were in favour and three \
against, so the secretary will ask two firms for a price. The next meeting is on the second Tuesday of May."""
CODE = """def load_settings(path):
    with open(path) as file:
        lines = file.read().splitlines()
    settings = {}
    for line in lines:
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, value = line.split("=", 1)
        settings[key.strip()] = value.strip()
    return settings
"""
TASKS: dict[str, tuple[str, ...]] = {
    "summarise": (
        f"Summarize the following text in three sentences:\n\n{PLACE}",
        f"Summarize the following text:\n\n{MINUTES}",
        f"What are the most important facts in this text?\n\n{MINUTES}",
        f"Write a short summary of this text:\n\n{PLACE}",
    ),
    "edit": (
        f"Correct the spelling of the following text and return the whole text:\n\n{PLACE.replace('tower', 'towr')}",
        f"Repeat the following text with the name Thomas Arden replaced by John Miller:\n\n{PLACE}",
        f"Rewrite the following text with Mrs. Okafor replaced by Mr. Lind:\n\n{MINUTES}",
        f"Add a docstring to this function and return the whole function:\n\n```python\n{CODE}```",
    ),
    "quote": (
        f"Repeat the following text exactly, with nothing added:\n\n{PLACE}",
        f"Repeat this code exactly:\n\n```python\n{CODE}```",
    ),
    "free": (
        "Write a short story about a baker who lives by the sea.",
        "Explain how photosynthesis works.",
        "What are the advantages of living in a big city?",
        "Write an email to a colleague about a meeting that was moved.",
        "Describe how to cook a simple tomato soup.",
        "Who was Napoleon and why is he remembered?",
    ),
}


def chat_ids(tokenizer: Any, text: str) -> list[int]:
    """A question as the model's template puts it; the plain text where it has none."""
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(text))
    return list(encode_chat(tokenizer, [{"role": "user", "content": text}]).token_ids)


def ask(engine: LLMEngine, prompt: list[int], params: SamplingParams) -> RequestOutput:
    """One request, alone."""
    engine.add_request("one", prompt, params)
    total: RequestOutput | None = None
    while engine.has_unfinished_requests():
        for output in engine.step():
            total = add_delta(total, output)
    assert total is not None
    return total


def rate(output: RequestOutput) -> float:
    """Tokens per second after the first token."""
    tpot = output.metrics.tpot
    return 1.0 / tpot if tpot else 0.0


def measure(
    engines: dict[str, LLMEngine], prompts: list[list[int]], temperature: float, rounds: int, max_tokens: int
) -> dict[str, float]:
    """Medians over prompts and rounds."""
    rates: dict[str, list[float]] = {name: [] for name in engines}
    drafted = accepted = num_tokens = 0
    for round_ in range(rounds):
        for place, prompt in enumerate(prompts):
            params = SamplingParams(temperature=temperature, seed=round_, max_tokens=max_tokens)
            names = list(engines) if (round_ + place) % 2 else list(reversed(engines))
            outputs = {name: ask(engines[name], prompt, params) for name in names}
            off, on = outputs["off"], outputs["on"]
            assert on.outputs[0].token_ids == off.outputs[0].token_ids, "speculation changed an answer"
            if len(on.outputs[0].token_ids) < 16:
                continue
            for name, output in outputs.items():
                rates[name].append(rate(output))
            drafted += on.metrics.num_draft_tokens
            accepted += on.metrics.num_accepted_tokens
            num_tokens += len(on.outputs[0].token_ids)
    ratios = [on / off for on, off in zip(rates["on"], rates["off"], strict=True)]
    return {
        "off": round(statistics.median(rates["off"]), 1),
        "on": round(statistics.median(rates["on"]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
        "drafted_per_token": round(drafted / num_tokens, 3),
        "acceptance": round(accepted / drafted, 3) if drafted else 0.0,
        "answers": len(ratios),
    }


ROWS = (1, 2, 3, 4, 6, 8, 12, 16)


def step_costs(model: Model, rounds: int = 15, start: int = 300) -> list[float]:
    """Median seconds of a step of each of ROWS rows behind a text of `start` tokens."""
    table = list(range(1, 2 + (start + max(ROWS)) // 16))
    storage = KVCacheStorage.for_model(model.config, len(table) + 1)
    seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(rounds):
        for rows, found in seconds.items():
            batch = batch_of([SequencePart([5] * rows, start, table)], 16)
            began = time.perf_counter()
            model.compute_logits(model.forward(batch, storage).hidden)
            found.append(time.perf_counter() - began)
    return [statistics.median(found) for found in seconds.values()]


def print_costs(model: Model, draft: Model | None) -> dict[str, list[float]]:
    """Steps of the model, and of the draft model, in units of the model's step of one row."""
    costs = step_costs(model)
    found = {"model": [round(cost / costs[0], 2) for cost in costs]}
    if draft is not None:
        found["draft"] = [round(cost / costs[0], 2) for cost in step_costs(draft)]
    for name, row in found.items():
        print(f"{name:6} steps of {ROWS} rows: {row}, one of the model: {1000 * costs[0]:.1f} ms")
    return found


def model_pair(args: argparse.Namespace, folder: Path) -> tuple[str, str | None]:
    """The model and the draft model, made in `folder` where the options ask for it."""
    model, draft = args.model, args.draft_model
    if args.floats:
        model = str(in_floats(Path(resolve(model)), folder / "floats.gguf"))
    if args.draft_quantization:
        draft = str(in_blocks(Path(resolve(model)), folder / "draft.gguf", args.draft_quantization))
    elif args.draft_layers:
        draft = str(first_layers(Path(resolve(model)), folder / "draft.gguf", args.draft_layers))
    return model, draft


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--num-speculative-tokens", type=int, default=7)
    parser.add_argument("--floats", action="store_true", help="the model with its matrices in F16")
    draft = parser.add_mutually_exclusive_group()
    draft.add_argument("--draft-model")
    draft.add_argument("--draft-quantization", help="a draft model of the model's weights in this type")
    draft.add_argument("--draft-layers", type=int, help="a draft model of the model's first layers")
    parser.add_argument("--costs", action="store_true", help="what steps take, instead of answers")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--temperatures", default="0,0.8")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    result: dict[str, object] = {"bench": "speculation", "model": args.model, "method": args.method}
    with tempfile.TemporaryDirectory() as folder:
        name, draft_name = model_pair(args, Path(folder))
        common = {"model": name, "max_model_len": 2048, "enable_prefix_caching": False}
        draft_options = {
            "speculative_model": draft_name,
            "num_speculative_tokens": args.num_speculative_tokens,
        }
        on = EngineArgs(**common, **draft_options, speculative_method=args.method)
        model, tokenizer = load_parts(on)
        draft = load_draft_model(on, model, tokenizer)
    if args.costs:
        print(json.dumps(result | {"steps": print_costs(model, draft)}))
        return
    engines = {
        "off": LLMEngine(model, tokenizer, EngineArgs(**common, speculative_method="off")),
        "on": LLMEngine(model, tokenizer, on, draft_model=draft),
    }
    for task in args.tasks.split(","):
        prompts = [chat_ids(tokenizer, text) for text in TASKS[task]]
        ask(engines["on"], prompts[0], SamplingParams(temperature=0, max_tokens=8))
        for temperature in (float(t) for t in args.temperatures.split(",")):
            figures = measure(engines, prompts, temperature, args.rounds, args.max_tokens)
            result[f"{task}_{temperature:g}"] = figures
            print(f"{task:10} temperature {temperature:g}: {figures}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
