"""`pellucid bench serve`: a load on a server over HTTP, this one or another. The last line of output is JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pellucid.cli import console
from pellucid.cli.arguments import Option
from pellucid.cli.load.client import CHAT, PATHS
from pellucid.errors import InvalidParameterError, PellucidError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid.cli.load.client import Result, Target
    from pellucid.cli.load.driver import OnResult
    from pellucid.cli.load.report import Report
    from pellucid.cli.load.workload import Conversation

KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_CONCURRENCY = 16
MAX_PROMPTS = 100_000


class LoadError(PellucidError):
    """The server cannot be reached, lists no model, or answered no request."""

    code = "load"


def serve(
    base_url: Annotated[
        str, Option("--base-url", metavar="URL", help="Where the API is, up to and including /v1.")
    ] = "http://127.0.0.1:8000/v1",
    model: Annotated[
        str | None, Option("--model", "-m", metavar="NAME", help="The first that the server lists when unset.")
    ] = None,
    api_key: Annotated[str | None, Option("--api-key", metavar="KEY", help=f"${KEY_VARIABLE} when unset.")] = None,
    endpoint: Annotated[str, Option("--endpoint", metavar="|".join(PATHS), help="Which API is asked.")] = CHAT,
    num_prompts: Annotated[int, Option("--num-prompts", metavar="N", help="Conversations held.")] = 100,
    request_rate: Annotated[
        float | None,
        Option(
            "--request-rate",
            metavar="NUMBER",
            help="Conversations that begin in a second, at random moments (a Poisson process).",
        ),
    ] = None,
    max_concurrency: Annotated[
        int | None,
        Option(
            "--max-concurrency",
            metavar="N",
            help=f"Conversations at once. {DEFAULT_CONCURRENCY} when neither this nor --request-rate is given.",
        ),
    ] = None,
    input_len: Annotated[
        int, Option("--input-len", metavar="N", help="Mean tokens of what a person says, about.")
    ] = 161,
    output_len: Annotated[int, Option("--output-len", metavar="N", help="Mean tokens of an answer at most.")] = 338,
    max_len: Annotated[int, Option("--max-len", metavar="N", help="No prompt or answer is longer.")] = 1024,
    turns: Annotated[int, Option("--turns", metavar="N", help="Turns of each conversation.")] = 1,
    shared_prefix_len: Annotated[
        int,
        Option("--shared-prefix-len", metavar="N", help="Tokens of a system prompt that all share, about."),
    ] = 0,
    dataset: Annotated[
        Path | None,
        Option(
            "--dataset",
            metavar="FILE",
            help="Prompts from a file of JSON lines with prompt or messages, and max_tokens where wanted.",
        ),
    ] = None,
    ignore_eos: Annotated[
        bool,
        Option("--ignore-eos", help="Answers of the full length, from servers that know the field (not OpenAI's)."),
    ] = False,
    extra_body: Annotated[str, Option("--extra-body", metavar="JSON", help="Fields put into every request.")] = "{}",
    slo: Annotated[
        list[str] | None,
        Option(
            "--slo",
            metavar="TARGETS",
            help='For goodput: milliseconds that count as good, such as "ttft:500 tpot:50"; also e2e.',
        ),
    ] = None,
    seed: Annotated[int, Option("--seed", metavar="N", help="Of prompts, lengths and arrivals.")] = 0,
    timeout: Annotated[
        float, Option("--timeout", metavar="SECONDS", help="Without a byte, before a request has failed.")
    ] = 300.0,
    details: Annotated[
        Path | None,
        Option("--details", metavar="FILE", help="Write a line of JSON for each request there."),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Only the line of JSON.")] = False,
) -> None:
    """Prompts are made here: sentences of common words, lengths drawn from log-normal distributions whose means are
    those of ShareGPT's conversations. TTFT counts from the moment a request was due to the first text, TPOT is the mean
    time per token after that, ITL the time between two pieces, E2E the time to the end. Ctrl-C ends early.
    """
    from pellucid.cli.load.report import parse_slo, report
    from pellucid.cli.load.workload import Mix, read_file

    lengths = {"input_len": input_len, "output_len": output_len, "max_len": max_len, "turns": turns}
    _check_from("num_prompts", num_prompts, 1, MAX_PROMPTS)
    for name, value in lengths.items():
        _check_from(name, value, 1, 1 << 20)
    _check_from("shared_prefix_len", shared_prefix_len, 0, 1 << 20)
    _check_from("seed", seed, 0, (1 << 63) - 1)
    if max_concurrency is not None:
        _check_from("max_concurrency", max_concurrency, 1, MAX_PROMPTS)
    for name, number in (("request_rate", request_rate), ("timeout", timeout)):
        if number is not None and not 0 < number < 1e6:
            raise InvalidParameterError(name, f"{name} is {number}, but must be a number above 0 and below 1000000")
    if endpoint not in PATHS:
        raise InvalidParameterError("endpoint", f"endpoint is {endpoint!r}, but must be one of {', '.join(PATHS)}")
    if not base_url.startswith(("http://", "https://")):
        raise InvalidParameterError("base_url", f"base_url is {base_url!r}, but must begin with http:// or https://")
    if request_rate is None and max_concurrency is None:
        max_concurrency = DEFAULT_CONCURRENCY
    targets = parse_slo(slo or ())
    extra = _extra(extra_body) | ({"ignore_eos": True} if ignore_eos else {})
    mix = Mix(input_len, output_len, max_len, turns, shared_prefix_len)
    conversations = (
        mix.conversations(num_prompts, seed) if dataset is None else read_file(dataset, num_prompts, output_len)
    )
    key = api_key or os.environ.get(KEY_VARIABLE)
    load = _Load(base_url, key, model, endpoint, extra, conversations, max_concurrency, request_rate, seed, timeout)
    results, seconds = load.run(is_silent=as_json)
    if details is not None:
        _write_details(details, results)
    if not results:
        raise LoadError("no request was answered before the run was ended")
    summary = report(results, seconds, targets)
    if not as_json:
        _show(summary)
    settings = {
        "bench": "serve",
        "base_url": base_url,
        "model": load.model,
        "endpoint": endpoint,
        "num_prompts": num_prompts,
        "request_rate": request_rate,
        "max_concurrency": max_concurrency,
        **({"dataset": dataset} if dataset is not None else {**lengths, "shared_prefix_len": shared_prefix_len}),
        "seed": seed,
    }
    console.write_json({**settings, **summary.as_json()})
    if not summary.num_good:
        kind, count = next(iter(summary.failures.items()))
        raise LoadError(f"no request went well; {count} of {summary.num_requests}: {kind}: {summary.details[kind]}")


class _Load:
    """One run."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str | None,
        endpoint: str,
        extra: dict[str, Any],
        conversations: list[Conversation],
        concurrency: int | None,
        rate: float | None,
        seed: int,
        timeout: float,
    ) -> None:
        self._connection = (base_url, api_key, timeout)
        self.model = model
        self._endpoint, self._extra = endpoint, extra
        self._conversations, self._concurrency, self._rate, self._seed = conversations, concurrency, rate, seed

    def run(self, *, is_silent: bool) -> tuple[list[Result], float]:
        total = sum(len(one.turns) for one in self._conversations)
        with _progress(total, is_silent=is_silent) as advance:
            return asyncio.run(self._run(advance))

    async def _run(self, advance: OnResult) -> tuple[list[Result], float]:
        import httpx

        from pellucid.cli.load.driver import arrivals, drive, first_model, new_client

        async with new_client(*self._connection) as client:
            if self.model is None:
                try:
                    self.model = await first_model(client)
                except (httpx.HTTPError, LookupError, TypeError, ValueError) as error:
                    why = str(error) or type(error).__name__
                    raise LoadError(f"{self._connection[0]}/models cannot be read, name a --model: {why}") from None
            count = len(self._conversations)
            return await drive(
                client,
                self._target(self.model),
                self._conversations,
                concurrency=self._concurrency,
                start_times=None if self._rate is None else arrivals(count, self._rate, self._seed),
                on_result=advance,
            )

    def _target(self, model: str) -> Target:
        from pellucid.cli.load.client import Target

        return Target(model, self._endpoint, self._extra)


@contextmanager
def _progress(total: int, *, is_silent: bool) -> Iterator[OnResult]:
    if is_silent or not sys.stderr.isatty():
        yield lambda result: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True, highlight=False)) as bar:
        task = bar.add_task("requests", total=total)
        failed = 0

        def advance(result: Result) -> None:
            nonlocal failed
            failed += result.failure is not None
            bar.update(task, advance=1, description=f"requests, {failed} failed" if failed else "requests")

        yield advance


def _show(summary: Report) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("milliseconds")
    titles = list(next(iter(summary.times.values()), {}))
    for title in titles:
        table.add_column(title, justify="right")
    for name, spread in summary.times.items():
        table.add_row(name.upper(), *(f"{spread[title]:.1f}" for title in titles))
    if summary.times:
        console.print_rich(table)
        print()
    print(f"{summary.num_good} of {summary.num_requests} requests went well in {summary.seconds:.1f} s")
    rates = summary.rates
    print(
        f"{rates['requests_per_second']:.2f} requests, {rates['output_tokens_per_second']:.1f} output tokens a second"
    )
    if "goodput_requests_per_second" in rates:
        targets = ", ".join(f"{name.upper()} {limit:g} ms" for name, limit in summary.slo.items())
        print(f"{rates['goodput_requests_per_second']:.2f} requests a second met {targets}")
    if summary.num_prompt_tokens:
        share = summary.num_cached_tokens / summary.num_prompt_tokens
        print(f"{summary.num_prompt_tokens} prompt tokens, {share:.0%} of them from the server's prefix cache")
    if summary.counts_pieces:
        print("some answers came without usage: their pieces were counted as tokens")
    for kind, count in summary.failures.items():
        print(f"{count} × {kind}: {summary.details[kind]}")


def _write_details(path: Path, results: list[Result]) -> None:
    began = min((result.due for result in results), default=0.0)
    with path.open("w", encoding="utf-8") as file:
        for one in results:
            line = {
                "due": one.due - began,
                "sent": one.sent - began,
                "ttft": one.ttft,
                "tpot": one.tpot,
                "e2e": one.e2e,
                "itl": one.itl,
                "prompt_tokens": one.num_prompt_tokens,
                "cached_tokens": one.num_cached_tokens,
                "output_tokens": one.num_output_tokens,
                "finish_reason": one.finish_reason,
                "failure": one.failure,
                "detail": one.detail,
            }
            file.write(json.dumps(line) + "\n")


def _extra(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidParameterError("extra_body", "extra_body must be a JSON object")
    return value


def _check_from(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidParameterError(name, f"{name} is {value}, but must be a whole number from {low} to {high}")
