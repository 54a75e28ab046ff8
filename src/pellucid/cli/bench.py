"""`pellucid bench`: how long answers take here. The last line of output is JSON, for other programs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from pellucid.cli import console
from pellucid.cli.arguments import Option
from pellucid.cli.flags import with_flags
from pellucid.cli.loading import load_llm
from pellucid.config import PRECISION_KL
from pellucid.errors import InvalidParameterError
from pellucid.outputs import RequestOutput
from pellucid.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pellucid.engine.llm import LLM

PERCENTILES = (50, 90, 99)
MAX_BATCH_SIZE = 4096
"""All prompts of a round are made before it begins."""


@with_flags(sampling=False)
def latency(
    input_len: Annotated[int, Option("--input-len", metavar="N", help="Tokens of each prompt.")] = 128,
    output_len: Annotated[int, Option("--output-len", metavar="N", help="Tokens of each answer.")] = 64,
    batch_size: Annotated[int, Option("--batch-size", metavar="N", help="Requests at once.")] = 1,
    num_iters: Annotated[int, Option("--num-iters", metavar="N", help="Rounds that are measured.")] = 5,
    num_warmup: Annotated[int, Option("--num-warmup", metavar="N", help="Rounds before those.")] = 1,
    *,
    engine: dict[str, Any],
) -> None:
    """Every round sends `batch-size` prompts of random tokens and waits for all answers. TTFT is the time to an
    answer's first token, TPOT its mean time per token after that, ITL the time between two neighbouring tokens.
    """
    lengths = {"input_len": input_len, "output_len": output_len, "batch_size": batch_size, "num_iters": num_iters}
    for name, value in lengths.items():
        if value < 1:
            raise InvalidParameterError(name, f"{name} is {value}, but must be at least 1")
    if num_warmup < 0:
        raise InvalidParameterError("num_warmup", f"num_warmup is {num_warmup}, but must be at least 0")
    if batch_size > MAX_BATCH_SIZE:
        raise InvalidParameterError("batch_size", f"batch_size is {batch_size}, but must be at most {MAX_BATCH_SIZE}")
    llm = load_llm(engine)
    if input_len + output_len > llm.max_model_len:
        raise InvalidParameterError(
            "input_len",
            f"input_len {input_len} and output_len {output_len} are together more than max_model_len "
            f"{llm.max_model_len}",
        )
    times = Times()
    for round_ in range(num_warmup + num_iters):
        outputs, seconds = _round(llm, round_, input_len, output_len, batch_size)
        measured = round_ >= num_warmup
        if measured:
            times.add(outputs, seconds)
        if sys.stderr.isatty():
            name = f"round {round_ - num_warmup + 1} of {num_iters}" if measured else "warm-up"
            console.say(f"{name}: {seconds:.2f} s")
    _show(llm, times, {**lengths, "num_warmup": num_warmup})


@dataclass
class Times:
    """Seconds, of all requests of all rounds."""

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    round: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def add(self, outputs: list[RequestOutput], seconds: float) -> None:
        """Take in one round."""
        self.round.append(seconds)
        for output in outputs:
            times = output.metrics.token_times
            self.num_tokens += len(times)
            self.num_draft_tokens += output.metrics.num_draft_tokens
            self.num_accepted_tokens += output.metrics.num_accepted_tokens
            if output.metrics.ttft is not None:
                self.ttft.append(output.metrics.ttft)
            if len(times) > 1:
                self.tpot.append((times[-1] - times[0]) / (len(times) - 1))
                self.itl += [later - earlier for earlier, later in pairwise(times)]


def _round(
    llm: LLM, round_: int, input_len: int, output_len: int, batch_size: int
) -> tuple[list[RequestOutput], float]:
    import time

    import numpy as np

    random = np.random.default_rng(round_)
    vocab = llm.tokenizer.vocab_size
    prompts = [random.integers(0, vocab, input_len).tolist() for _ in range(batch_size)]
    params = SamplingParams(temperature=0.0, max_tokens=output_len, min_tokens=output_len, ignore_eos=True)
    began = time.perf_counter()
    outputs = llm.generate(prompts, params)
    return outputs, time.perf_counter() - began


def _show(llm: LLM, times: Times, settings: dict[str, int]) -> None:
    from rich.table import Table

    rows = {"TTFT": times.ttft, "TPOT": times.tpot, "ITL": times.itl, "round": times.round}
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("milliseconds")
    for title in ("mean", *(f"p{p}" for p in PERCENTILES)):
        table.add_column(title, justify="right")
    figures = {name: _spread(values) for name, values in rows.items() if values}
    for name, spread in figures.items():
        table.add_row(name, *(f"{value * 1000:.2f}" for value in spread.values()))
    rate = times.num_tokens / sum(times.round)
    console.print_rich(table)
    precision = llm.args.precision
    print(f"{rate:.1f} output tokens per second, prompt time included")
    print(f"precision {precision}: mean KL from float32 {PRECISION_KL[precision]} on the default model")
    result: dict[str, Any] = {
        "bench": "latency",
        "model": llm.args.model,
        "threads": _threads(llm),
        "precision": precision,
        "precision_mean_kl": PRECISION_KL[precision],
        **settings,
    }
    for name, spread in figures.items():
        result |= {f"{name.lower()}_{key}_seconds": value for key, value in spread.items()}
    result |= {"draft_tokens": times.num_draft_tokens, "accepted_tokens": times.num_accepted_tokens}
    if times.num_draft_tokens:
        print(f"{times.num_accepted_tokens} of {times.num_draft_tokens} guesses came true")
    console.write_json({**result, "output_tokens_per_second": rate})


def _threads(llm: LLM) -> int | None:
    """How many there really are, where the number was left to the machine."""
    backend = getattr(llm.engine.model, "backend", None)
    return llm.args.threads or getattr(backend, "threads", None)


def _spread(values: list[float]) -> dict[str, float]:
    import numpy as np

    cuts = np.percentile(values, PERCENTILES)
    return {"mean": float(np.mean(values)), **{f"p{p}": float(v) for p, v in zip(PERCENTILES, cuts, strict=True)}}
