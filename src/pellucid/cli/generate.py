"""`pellucid generate`: a raw prompt goes in, its continuation comes out while it is made."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pellucid.cli import console
from pellucid.cli.arguments import Argument, Option
from pellucid.cli.exit_codes import EXIT_INTERRUPTED, EXIT_REQUEST_FAILED
from pellucid.cli.flags import with_flags
from pellucid.cli.loading import PRESET_HELP, load_llm, sampling_params
from pellucid.cli.streaming import Streamed
from pellucid.cli.structured import ChoiceFlag, GrammarFlag, JsonObjectFlag, JsonSchemaFlag, RegexFlag, with_shape
from pellucid.errors import ContextLengthExceededError, InvalidParameterError
from pellucid.outputs import CompletionOutput, RequestMetrics, RequestOutput
from pellucid.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pellucid.engine.llm import LLM

DEFAULT_MAX_TOKENS = 128
"""The command line's own: a first try should end while one watches. Where less room is left, to the context's end."""


@with_flags(sampling=True, shown_defaults={"max_tokens": DEFAULT_MAX_TOKENS})
def generate(
    prompt: Annotated[str | None, Argument(help="Text to continue; `-` or nothing reads standard input.")] = None,
    preset: Annotated[str | None, Option("--preset", metavar="NAME", help=PRESET_HELP)] = None,
    json: Annotated[bool, Option("--json", help="Print one JSON object at the end instead of text.")] = False,
    echo: Annotated[
        bool | None,
        Option("--echo/--no-echo", help="Print the prompt first. [default: on a terminal]"),
    ] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="No line of figures on stderr.")] = False,
    json_schema: JsonSchemaFlag = None,
    json_object: JsonObjectFlag = False,
    regex: RegexFlag = None,
    choice: ChoiceFlag = None,
    grammar: GrammarFlag = None,
    *,
    sampling: dict[str, Any],
    engine: dict[str, Any],
) -> int:
    """The prompt is taken as it is: for questions to a chat model use `pellucid chat`. Text is printed as it comes.
    One newline at the end of piped input is dropped.
    """
    sampling = with_shape(
        sampling, json_schema=json_schema, json_object=json_object, regex=regex, choice=choice, grammar=grammar
    )
    params = sampling_params(preset, {"max_tokens": DEFAULT_MAX_TOKENS, **sampling})
    if not json and (params.logprobs is not None or params.prompt_logprobs is not None):
        raise InvalidParameterError("logprobs", "logprobs and prompt_logprobs are shown in JSON only: add --json")
    text = console.read_text(prompt, "prompt")
    llm = load_llm(engine)
    soft_limit = "max_tokens" not in sampling
    if json or params.n > 1:
        output = _run(llm, text, params, soft_limit)
        _show_json(llm, output, params) if json else _show_all(output, quiet)
        return _exit_code(output)
    if echo or (echo is None and sys.stdout.isatty()):
        console.write(text, console.DIM)
    return _stream(llm, text, params, soft_limit, quiet)


def _run(llm: LLM, prompt: str, params: SamplingParams, soft_limit: bool) -> RequestOutput:
    try:
        return llm.generate(prompt, params)[0]
    except ContextLengthExceededError as error:
        if not soft_limit or error.max_tokens is None:
            raise
        return llm.generate(prompt, replace(params, max_tokens=None))[0]


def _stream(llm: LLM, prompt: str, params: SamplingParams, soft_limit: bool, quiet: bool) -> int:
    """Print each delta as it comes. Ctrl-C ends the answer where it is."""
    try:
        return _stream_once(llm, prompt, params, quiet)
    except ContextLengthExceededError as error:  # raised before the first delta
        if not soft_limit or error.max_tokens is None:
            raise
        return _stream_once(llm, prompt, replace(params, max_tokens=None), quiet)


def _stream_once(llm: LLM, prompt: str, params: SamplingParams, quiet: bool) -> int:
    streamed = Streamed(llm.stream(prompt, params))
    streamed.show()
    last = streamed.last
    if last is not None and not quiet and sys.stderr.isatty():
        console.say(console.figures(last.metrics, streamed.num_tokens, last.outputs[0].seed))
    if streamed.interrupted:
        return EXIT_INTERRUPTED
    return _exit_code(last) if last is not None else 0


def _show_all(output: RequestOutput, quiet: bool) -> None:
    """Several answers, one after the other, each under its number."""
    for answer in sorted(output.outputs, key=lambda o: o.index):
        heading = f"── {answer.index + 1} of {len(output.outputs)} ──"
        console.write(heading, console.DIM)
        console.write(f"\n{answer.text}\n")
    if not quiet and sys.stderr.isatty():
        total = sum(len(answer.token_ids) for answer in output.outputs)
        console.say(console.figures(output.metrics, total, output.outputs[0].seed))


def _show_json(llm: LLM, output: RequestOutput, params: SamplingParams) -> None:
    console.write_json(
        {
            "model": llm.args.model,
            "prompt": output.prompt,
            "prompt_token_ids": output.prompt_token_ids,
            "num_cached_tokens": output.num_cached_tokens,
            "outputs": [_answer(answer) for answer in output.outputs],
            "prompt_logprobs": output.prompt_logprobs,
            "sampling_params": params,
            "metrics": _metrics(output.metrics, output.outputs),
        }
    )


def _answer(answer: CompletionOutput) -> dict[str, Any]:
    return {
        "index": answer.index,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "seed": answer.seed,
        "cumulative_logprob": answer.cumulative_logprob,
        "logprobs": answer.logprobs,
        "error": answer.error,
    }


def _metrics(metrics: RequestMetrics, outputs: list[CompletionOutput]) -> dict[str, float | int | None]:
    """Seconds; TPOT is the time per token after the first, of the first answer."""
    rate = console.decode_rate(metrics, len(metrics.token_times) or len(outputs[0].token_ids))
    return {
        "ttft_seconds": metrics.ttft,
        "tpot_seconds": None if rate is None else 1 / rate,
        "num_output_tokens": sum(len(answer.token_ids) for answer in outputs),
        "num_preemptions": metrics.num_preemptions,
        "num_draft_tokens": metrics.num_draft_tokens,
        "num_accepted_tokens": metrics.num_accepted_tokens,
    }


def _exit_code(output: RequestOutput) -> int:
    """1 when an answer failed; the reason goes to stderr."""
    failed = [answer for answer in output.outputs if answer.finish_reason == "error"]
    for answer in failed:
        console.complain(answer.error or "the request failed")
    return EXIT_REQUEST_FAILED if failed else 0
