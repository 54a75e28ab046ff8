"""How often guesses at what a structure forces are right, and with --times what they gain.

    python benchmarks/forced_text.py [--model smollm2:135m] [--lookup] [--times] [--schemas company,person]

Four schemas, each asked for in a prompt that names its fields and in one that does not, at temperature 0 and twice at
0.8. Counts do not depend on the machine: steps are taken to cost what the engine assumes before it has timed any. With
--lookup beside guesses looked up in the text, as `auto` has them.

With --times each answer is given without speculation, with the lookup alone and with both, in changing order on the
same weights: ratios of tokens per second after the first. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from speculation import ask, chat_ids, rate

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.loading import load_parts
from pellucid.engine.model_runner import Model
from pellucid.engine.scheduler import ScheduledRequest
from pellucid.engine.speculation.drafts import Draft
from pellucid.engine.speculation.ngram import NgramProposer
from pellucid.sampling_params import SamplingParams
from pellucid.structured_outputs import StructuredOutputsParams


def text(most: int) -> dict[str, Any]:
    """A string's schema."""
    return {"type": "string", "maxLength": most}


def record(**properties: Any) -> dict[str, Any]:
    """An object's schema, with all fields required."""
    closed = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


NUMBER, WHOLE, TRUTH = {"type": "number"}, {"type": "integer"}, {"type": "boolean"}
SCHEMAS = {
    "company": record(
        company_name=text(30),
        number_of_employees=WHOLE,
        year_of_foundation=WHOLE,
        headquarters_city=text(20),
        is_publicly_traded=TRUTH,
        annual_revenue_usd=NUMBER,
    ),
    "person": record(
        firstName=text(20),
        lastName=text(20),
        age=WHOLE,
        emailAddress=text(30),
        favouriteColours={"type": "array", "items": {"enum": ["red", "green", "blue", "yellow"]}, "maxItems": 3},
        address=record(street=text(20), postalCode=text(8), country=text(15)),
    ),
    "ticket": record(
        priority={"enum": ["very urgent", "can wait until tomorrow", "no hurry at all"]},
        category={"enum": ["hardware failure", "software problem", "question about billing"]},
        summary=text(60),
        needs_human=TRUTH,
        sentiment=record(label={"enum": ["positive", "neutral", "negative"]}, confidence=NUMBER),
    ),
    "weather": record(
        temperature_celsius={**WHOLE, "minimum": -60, "maximum": 60},
        wind_speed_kilometres_per_hour={**WHOLE, "minimum": 0, "maximum": 200},
        conditions={"enum": ["clear sky", "partly cloudy", "overcast", "thunderstorm"]},
        forecast={
            "type": "array",
            "items": record(
                day_of_week={"enum": ["Monday", "Tuesday", "Wednesday", "Thursday"]},
                chance_of_rain_percent={**WHOLE, "minimum": 0, "maximum": 100},
            ),
            "minItems": 2,
            "maxItems": 3,
        },
    ),
}
PROMPTS = {"named": "Describe one as JSON with the fields {fields}.", "not named": "Give an example as JSON."}
DRAWS = ((0.0, 0), (0.8, 1), (0.8, 2))
"""Temperatures and seeds."""


class NoLookup(NgramProposer):
    """Finds nothing in the text."""

    def propose(self, wanted: Sequence[tuple[ScheduledRequest, int]]) -> list[Draft]:
        return [Draft() for _ in wanted]


def asked(tokenizer: Any, schemas: Sequence[str]) -> Iterator[tuple[str, list[int], SamplingParams]]:
    """(which group of results, prompt, parameters) of each answer."""
    for name in schemas:
        for prompt, question in PROMPTS.items():
            for temperature, seed in DRAWS:
                fields = ", ".join(SCHEMAS[name]["required"])
                ids = chat_ids(tokenizer, f"Think of a {name}. " + question.format(fields=fields))
                shape = StructuredOutputsParams(json=SCHEMAS[name])
                params = SamplingParams(temperature=temperature, seed=seed, max_tokens=220, structured_outputs=shape)
                yield f"{prompt}, temperature {temperature:g}", ids, params


def counts(model: Model, tokenizer: Any, options: EngineArgs, schemas: Sequence[str], lookup: bool) -> dict[str, Any]:
    """Guesses, right ones and tokens of each group."""
    engine = LLMEngine(model, tokenizer, options)
    assert engine.speculator is not None
    engine.speculator.costs.observe = lambda num_rows, seconds: None  # type: ignore[method-assign]
    if not lookup:
        engine.speculator.lookup = NoLookup()
    groups: dict[str, Counter[str]] = {}
    for group, ids, params in asked(tokenizer, schemas):
        output = ask(engine, ids, params)
        for key in ("all", group):
            count = groups.setdefault(key, Counter())
            count["guessed"] += output.metrics.num_draft_tokens
            count["right"] += output.metrics.num_accepted_tokens
            count["tokens"] += len(output.outputs[0].token_ids)
    result: dict[str, Any] = {"lookup": lookup}
    for key, count in groups.items():
        share, per_step = count["right"] / count["guessed"], count["tokens"] / (count["tokens"] - count["right"])
        print(f"{key:30} {share:4.0%} of {count['guessed']} guesses right, {per_step:.2f} tokens a step")
        result[key] = {**count, "share": round(share, 3), "tokens_per_step": round(per_step, 3)}
    return result


def times(model: Model, tokenizer: Any, options: EngineArgs, schemas: Sequence[str]) -> dict[str, Any]:
    """Ratios of tokens per second: to no speculation, and to the lookup alone."""
    off = dataclasses.replace(options, speculative_method="off")
    engines = {
        "none": LLMEngine(model, tokenizer, off),
        "lookup": LLMEngine(model, tokenizer, options),
        "both": LLMEngine(model, tokenizer, options),
    }
    assert engines["lookup"].speculator is not None
    engines["lookup"].speculator.forced = None
    groups: dict[str, dict[str, list[float]]] = {}
    for place, (group, ids, params) in enumerate(asked(tokenizer, schemas)):
        names = list(engines) if place % 2 else list(reversed(engines))
        outputs = {name: ask(engines[name], ids, params) for name in names}
        tokens = [output.outputs[0].token_ids for output in outputs.values()]
        assert tokens.count(tokens[0]) == len(tokens), "speculation changed an answer"
        for key in ("all", group):
            ratios = groups.setdefault(key, {"none": [], "lookup": []})
            for name, found in ratios.items():
                found.append(rate(outputs["both"]) / rate(outputs[name]))
    result: dict[str, Any] = {}
    for key, ratios in groups.items():
        result[key] = {name: [round(f(found), 3) for f in (min, median, max)] for name, found in ratios.items()}
        print(f"{key:30} least, median, most of {len(ratios['none'])} answers: {result[key]}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--lookup", action="store_true", help="beside guesses looked up in the text")
    parser.add_argument("--times", action="store_true", help="tokens per second instead of counts")
    parser.add_argument("--schemas", default=",".join(SCHEMAS))
    args = parser.parse_args()
    options = EngineArgs(model=args.model, max_model_len=1024, speculative_method="auto")
    model, tokenizer = load_parts(options)
    schemas = args.schemas.split(",")
    measured = (
        times(model, tokenizer, options, schemas)
        if args.times
        else counts(model, tokenizer, options, schemas, args.lookup)
    )
    print(json.dumps({"bench": "forced_text", "model": args.model, **measured}))


if __name__ == "__main__":
    main()
