"""`pellucid explain`: one request's journey in the terminal, from characters to the reason why it stopped."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pellucid.cli import console
from pellucid.cli.arguments import Argument, Option
from pellucid.cli.exit_codes import EXIT_REQUEST_FAILED
from pellucid.cli.flags import with_flags
from pellucid.cli.loading import PRESET_HELP, load_llm, sampling_params
from pellucid.errors import InvalidParameterError
from pellucid.trace.events import LAYERS, Event

if TYPE_CHECKING:
    from pellucid.engine.llm import LLM
    from pellucid.glass.view import TraceView
    from pellucid.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 12
"""Few enough to be looked at one by one."""


@with_flags(sampling=True, skip=("logprobs", "prompt_logprobs"), shown_defaults={"max_tokens": DEFAULT_MAX_TOKENS})
def explain(
    prompt: Annotated[str | None, Argument(help="Text to explain; `-` or nothing reads standard input.")] = None,
    chat: Annotated[bool, Option("--chat", help="The prompt is a message: through the chat template.")] = False,
    system: Annotated[str | None, Option("--system", metavar="TEXT", help="System prompt; implies --chat.")] = None,
    preset: Annotated[str | None, Option("--preset", metavar="NAME", help=PRESET_HELP)] = None,
    token: Annotated[
        int | None,
        Option("--token", metavar="N", help="Look closely at the token at this position."),
    ] = None,
    layer: Annotated[int | None, Option("--layer", metavar="N", help="Look closely at this layer.")] = None,
    waterfalls: Annotated[
        bool, Option("--waterfalls", help="Show how every new token was drawn, stage by stage, not one alone.")
    ] = False,
    saved: Annotated[
        Path | None,
        Option("--from", metavar="FILE", help="Explain a saved trace; no model is loaded."),
    ] = None,
    json: Annotated[
        Path | None,
        Option("--json", metavar="FILE", help="Save the trace, as JSON lines; - is stdout."),
    ] = None,
    html: Annotated[
        Path | None,
        Option("--html", metavar="FILE", help="Save a report: one page that works offline."),
    ] = None,
    perfetto: Annotated[
        Path | None,
        Option("--perfetto", metavar="FILE", help="Save the timeline for ui.perfetto.dev (Chrome trace)."),
    ] = None,
    compare: Annotated[
        Path | None,
        Option("--compare", metavar="FILE", help="Another trace: the first difference; ends with 1 if any."),
    ] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Save only; print nothing but a difference.")] = False,
    *,
    sampling: dict[str, Any],
    engine: dict[str, Any],
) -> int:
    """The request is traced at level 3 (docs/tracing.md) and shown section by section. Positions count from 0, prompt
    and answer together. One newline at the end of piped input is dropped.
    """
    _check_files(json, html, perfetto)
    # read before anything is computed, so that a wrong one costs nothing
    other = None if compare is None else _other_answer(compare)
    if saved is not None:
        if prompt is not None or engine or sampling or preset is not None or chat or system is not None:
            raise InvalidParameterError("from", "--from shows a saved trace, so it takes no prompt and no settings")
        from pellucid.trace.jsonl import read_trace

        events = read_trace(saved)
    else:
        params = sampling_params(preset, {"max_tokens": DEFAULT_MAX_TOKENS, **sampling})
        events = _traced(
            console.read_text(prompt, "prompt"), params, engine, chat=chat or system is not None, system=system
        )
    _save(events, json, html, perfetto)
    name = str(saved) if saved is not None else "this run"
    return _show(
        events,
        {"token": token, "layer": layer, "waterfalls": waterfalls},
        other,
        (name, str(compare)),
        quiet=quiet or str(json) == "-",
    )


def _check_files(json: Path | None, html: Path | None, perfetto: Path | None) -> None:
    """Each output has its own file, and - is never the name of one."""
    given = {name: path for name, path in (("json", json), ("html", html), ("perfetto", perfetto)) if path is not None}
    for name, path in given.items():
        if name != "json" and str(path) == "-":
            raise InvalidParameterError(name, f"{name} is -, but must be a file: only --json can go to standard output")
        twin = next((other for other, one in given.items() if other != name and one == path), None)
        if twin is not None:
            raise InvalidParameterError(name, f"{name} and {twin} are both {path}, but each needs a file of its own")


def _other_answer(path: Path) -> TraceView:
    from pellucid.glass.view import answers_of
    from pellucid.trace.jsonl import read_trace

    return answers_of(read_trace(path))[0]


def _traced(
    text: str, params: SamplingParams, engine: dict[str, Any], *, chat: bool, system: str | None
) -> list[Event]:
    """The events of a request at level 3."""
    llm = load_llm(engine)
    _warm_up(llm, chat)
    reader = llm.trace_reader(from_start=False)
    if chat:
        messages = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        [output] = llm.chat(messages, params, trace_level=LAYERS)
    else:
        [output] = llm.generate(text, params, trace_level=LAYERS)
    events = reader.read()
    failed = next((answer.error for answer in output.outputs if answer.error is not None), None)
    if failed is not None:
        console.complain(failed)
    return [*events, reader.end()]


def _warm_up(llm: LLM, chat: bool) -> None:
    """What is done once in a process is not this request's: pages of the weights, imports, the template's reading."""
    from pellucid.sampling_params import SamplingParams

    params = SamplingParams(max_tokens=2, ignore_eos=True)
    if chat:
        llm.chat([{"role": "user", "content": "."}], params, cache_salt="warm-up", trace_level=LAYERS)
    else:
        llm.generate(".", params, cache_salt="warm-up", trace_level=LAYERS)


def _save(events: list[Event], json: Path | None, html: Path | None, perfetto: Path | None) -> None:
    if json is not None:
        from pellucid.trace.jsonl import line_of, write_trace

        if str(json) == "-":
            for event in events:
                print(line_of(event), end="")
        else:
            write_trace(json, events)
    if perfetto is not None:
        from pellucid.glass.perfetto import chrome_trace

        perfetto.write_text(json_module.dumps(chrome_trace(events)), encoding="utf-8")
    if html is not None:
        from pellucid.glass.report import write_report

        write_report(events, html)


def _show(
    events: list[Event],
    options: dict[str, Any],
    other: TraceView | None,
    names: tuple[str, str],
    *,
    quiet: bool,
) -> int:
    from pellucid.glass.explain.sections import comparison, explain
    from pellucid.glass.view import answers_of

    views = answers_of(events)
    if not quiet:
        width = console.text_width()
        for view in views:
            console.print_rich(*explain(view, width, **options), width=width)
        if any(event["type"] == "finding" for event in events):
            from pellucid.glass.doctor.drawing import findings_section

            console.print_rich(*findings_section(events), width=width)
    code = 0
    if other is not None:
        from pellucid.glass.compare import first_difference

        found = first_difference(views[0], other)
        console.print_rich(*comparison(found, names), width=console.text_width())
        code = EXIT_REQUEST_FAILED if found is not None else 0
    failed = any(view.finish is not None and view.finish["reason"] == "error" for view in views)
    return EXIT_REQUEST_FAILED if failed else code
