"""How often guesses at what a structure forces are right: counts, no times.

    python benchmarks/forced_text.py [--model smollm2:135m] [--lookup]

Four schemas, each asked for in a prompt that names its fields and in one that does not, at temperature 0 and twice at
0.8. Steps are taken to cost what the engine assumes before it has timed any, so that the counts do not depend on the
machine. With --lookup beside guesses looked up in the text, as `auto` has them. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from speculation import ask, chat_ids

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.loading import load_parts
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--lookup", action="store_true", help="beside guesses looked up in the text")
    args = parser.parse_args()
    options = EngineArgs(model=args.model, max_model_len=1024, speculative_method="auto")
    model, tokenizer = load_parts(options)
    engine = LLMEngine(model, tokenizer, options)
    assert engine.speculator is not None
    engine.speculator.costs.observe = lambda num_rows, seconds: None  # type: ignore[method-assign]
    if not args.lookup:
        engine.speculator.lookup = NoLookup()
    counts: dict[str, Counter[str]] = {}
    for name, schema in SCHEMAS.items():
        for prompt, question in PROMPTS.items():
            for temperature, seed in DRAWS:
                ids = chat_ids(
                    tokenizer, f"Think of a {name}. " + question.format(fields=", ".join(schema["required"]))
                )
                shape = StructuredOutputsParams(json=schema)
                params = SamplingParams(temperature=temperature, seed=seed, max_tokens=220, structured_outputs=shape)
                output = ask(engine, ids, params)
                for key in ("all", f"{prompt}, temperature {temperature:g}"):
                    count = counts.setdefault(key, Counter())
                    count["guessed"] += output.metrics.num_draft_tokens
                    count["right"] += output.metrics.num_accepted_tokens
                    count["tokens"] += len(output.outputs[0].token_ids)
    result: dict[str, Any] = {"bench": "forced_text", "model": args.model, "lookup": args.lookup}
    for key, count in counts.items():
        share, per_step = count["right"] / count["guessed"], count["tokens"] / (count["tokens"] - count["right"])
        print(f"{key:30} {share:4.0%} of {count['guessed']} guesses right, {per_step:.2f} tokens a step")
        result[key] = {**count, "share": round(share, 3), "tokens_per_step": round(per_step, 3)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
