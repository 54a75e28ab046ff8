"""Schedules at random against what each request answers alone; `test_many_schedules.py` says how many."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from real_engines import Drive, Engines, agrees, bits, run

from pellucid.config import DEFAULT_KV_CACHE_DTYPE
from pellucid.engine.llm_engine import LLMEngine
from pellucid.sampling_params import SamplingParams
from pellucid.structured_outputs import StructuredOutputsParams

Dimensions = dict[str, tuple[Any, ...]]
Requests = list[tuple[list[int], SamplingParams]]

CHANGES_BITS = ("kv_cache_dtype",)
"""Settings that may change an answer, but not with the schedule: requests alone are run with them, too."""
DISTURBANCES: Dimensions = {
    "aborts": (0.0, 0.0, 0.05),
    "reads_ahead": (0.0, 0.0, 0.1),
    "priorities": ((0,), (0, 1), (0, 0, 2, -1)),
}
"""What happens to requests meanwhile: fields of `Drive`."""
SHAPES = (
    StructuredOutputsParams(regex=r"[0-9]{2,20} degrees"),
    StructuredOutputsParams(choice=("Gold melts", "Gold boils", "水は沸騰する")),
    StructuredOutputsParams(json={"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}),
)


def random_params(rng: random.Random, ids: list[int], max_tokens: int) -> SamplingParams:
    """Parameters of every kind."""
    fields: dict[str, Any] = {
        "max_tokens": max_tokens,
        "min_tokens": rng.choice((0, 0, max_tokens)),
        "temperature": rng.choice((0.0, 0.0, 0.7, 1.0, 1.5)),
        "top_k": rng.choice((0, 0, 1, 40, 3000)),
        "top_p": rng.choice((1.0, 1.0, 0.5, 0.95)),
        "min_p": rng.choice((0.0, 0.0, 0.05)),
        "repetition_penalty": rng.choice((1.0, 1.0, 1.3)),
        "frequency_penalty": rng.choice((0.0, 0.0, 0.5)),
        "presence_penalty": rng.choice((0.0, 0.0, -0.5)),
        "logit_bias": rng.choice(({}, {}, {ids[3]: 4.0})),
        "n": rng.choice((1, 1, 1, 2, 3)),
        "seed": rng.randrange(2**40),
        "logprobs": rng.choice((None, 0, 3)),
        "prompt_logprobs": rng.choice((None, None, None, 1)),
        "ignore_eos": rng.random() < 0.8,
    }
    if rng.random() < 0.2:
        fields.update(structured_outputs=rng.choice(SHAPES), ignore_eos=False, min_tokens=0)
    return SamplingParams(**fields)


class Schedules:
    """Runs schedules against what each of a fixed set of requests answers alone."""

    def __init__(self, engines: Engines, requests: Requests, max_model_len: int, dimensions: Dimensions) -> None:
        """`dimensions`: settings and what they may be; kv_cache_blocks is kv_cache_memory_bytes in blocks."""
        self.engines, self.requests, self.dimensions = engines, requests, dimensions
        self.max_model_len = max_model_len
        self.growing = [i for i, (_, params) in enumerate(requests) if (params.max_tokens or 0) >= 30]
        self.seen: Counter[str] = Counter()
        self.num_checked = 0
        self._alone: dict[tuple[Any, ...], Any] = {}

    def engine(self, settings: dict[str, Any]) -> LLMEngine:
        fields = dict(settings)
        if blocks := fields.pop("kv_cache_blocks", None):
            dtype = fields.get("kv_cache_dtype", DEFAULT_KV_CACHE_DTYPE)
            config = self.engines.make().config
            fields["kv_cache_memory_bytes"] = config.kv_bytes_per_token(dtype) * 16 * blocks
        return self.engines.make(max_model_len=self.max_model_len, **fields)

    def alone(self, number: int, settings: dict[str, Any]) -> Any:
        """The request by itself, its prompt in one piece, nothing in the cache."""
        fields = {name: settings[name] for name in CHANGES_BITS}
        key = (number, *fields.values())
        if key not in self._alone:
            rows = max(512, self.max_model_len)
            fields |= {"max_num_batched_tokens": rows, "enable_prefix_caching": False, "speculative_method": "off"}
            self._alone[key] = bits(run(self.engine(fields), [self.requests[number]])[0])
        return self._alone[key]

    def all_alone(self) -> dict[tuple[Any, ...], Any]:
        """What was asked for so far, by request and settings."""
        return dict(self._alone)

    def check(self, numbers: Iterable[int], most: int = 5, **fixed: Any) -> None:
        """At most `most` requests in each; `fixed` are settings and disturbances that all these schedules have."""
        for number in numbers:
            rng = random.Random(number)
            settings = {name: rng.choice(values) for name, values in self.dimensions.items()}
            disturbances = {name: rng.choice(values) for name, values in DISTURBANCES.items()}
            chosen = rng.choices(range(len(self.requests)), k=rng.randint(2, most))
            if self.growing and rng.random() < 0.2:  # blocks run out
                settings.update(kv_cache_blocks=rng.choice((4, 5)), max_num_seqs=8)
                chosen = rng.choices(self.growing, k=3)
            for name, value in fixed.items():
                (disturbances if name in DISTURBANCES else settings)[name] = value
            self._check_one(number, rng, settings, disturbances, chosen)

    def _check_one(
        self,
        number: int,
        rng: random.Random,
        settings: dict[str, Any],
        disturbances: dict[str, Any],
        chosen: list[int],
    ) -> None:
        self.num_checked += 1
        engine = self.engine(settings)
        drive = Drive(engine, [self.requests[i] for i in chosen], rng, **disturbances)
        for i, output in zip(chosen, drive.go(), strict=True):
            told = f"schedule {number}, request {i}, {settings}, {disturbances}"
            assert agrees(output, self.alone(i, settings)), told
            whole = all(answer.finish_reason != "abort" for answer in output.outputs)
            self.seen["whole"] += whole
            self.seen["structured"] += whole and self.requests[i][1].structured_outputs is not None
        self.seen += drive.seen
        stats = engine.stats
        self.seen += Counter(
            preemptions=stats.num_preemptions,
            found=stats.prefix_cache_hit_tokens,
            evicted=stats.prefix_cache_evicted_blocks,
            accepted=stats.spec_accepted_tokens,
            refused=stats.spec_draft_tokens - stats.spec_accepted_tokens,
            tokens=stats.num_output_tokens,
        )
