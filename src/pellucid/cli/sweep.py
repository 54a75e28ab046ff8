"""`pellucid sweep`: the same prompts under a grid of sampling settings, side by side."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pellucid.cli import console
from pellucid.cli.arguments import Argument, Option
from pellucid.cli.exit_codes import EXIT_INTERRUPTED, EXIT_REQUEST_FAILED
from pellucid.cli.flags import with_flags
from pellucid.cli.loading import load_llm
from pellucid.errors import InvalidParameterError
from pellucid.glass.sweep.grid import GRID_FIELDS, Grid, make_grid
from pellucid.sampling_params import PRESETS

if TYPE_CHECKING:
    from pellucid.glass.sweep.results import Sweep
    from pellucid.glass.sweep.runner import Messages

DEFAULT_MAX_TOKENS = 64
"""Long enough to see where a text goes."""
DEFAULT_SEED = 0
"""The same numbers draw under every setting, so that texts differ by the settings alone, and again tomorrow."""
DEFAULT_MAX_CELLS = 256
MAX_PROMPTS_FILE_BYTES = 16 * 1024**2


@with_flags(
    sampling=True,
    skip=("n", "logprobs", "prompt_logprobs"),
    several=GRID_FIELDS,
    shown_defaults={"max_tokens": DEFAULT_MAX_TOKENS, "seed": DEFAULT_SEED},
)
def sweep(
    prompts: Annotated[
        list[str] | None,
        Argument(metavar="[PROMPT]…", help="Texts to continue; `-` or nothing reads standard input."),
    ] = None,
    prompts_file: Annotated[
        Path | None,
        Option(
            "--prompts-file",
            metavar="FILE",
            help='A prompt on each line; in .jsonl a JSON string, or an object with "prompt".',
        ),
    ] = None,
    chat: Annotated[bool, Option("--chat", help="Prompts are messages: through the chat template.")] = False,
    system: Annotated[str | None, Option("--system", metavar="TEXT", help="System prompt; implies --chat.")] = None,
    preset: Annotated[
        list[str] | None,
        Option(
            "--preset",
            metavar="NAME,…",
            help=f"Start from these values: {', '.join(PRESETS)}. Several with commas. Flags given beside it win.",
        ),
    ] = None,
    max_cells: Annotated[
        int, Option("--max-cells", metavar="N", help="Most answers a sweep may have; more is refused at once.")
    ] = DEFAULT_MAX_CELLS,
    json: Annotated[
        Path | None,
        Option("--json", metavar="FILE", help="Save everything as JSON; - is stdout."),
    ] = None,
    html: Annotated[
        Path | None,
        Option("--html", metavar="FILE", help="Save a page that works offline."),
    ] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Save only; print nothing.")] = False,
    *,
    sampling: dict[str, Any],
    engine: dict[str, Any],
) -> int:
    """Every prompt is answered under every combination of the values given. Temperature, top-k, top-p, min-p,
    penalties, seed and presets take several, with commas between them or the flag given again. Combinations that must
    give the same answer, as temperature 0 with several seeds, stand once. Each answer is that of its request alone.
    """
    grid = _grid(preset or [], sampling)
    asked = _prompts(prompts or [], prompts_file)
    _check_size(grid, len(asked), max_cells, sampling, quiet)
    conversations = [_messages(text, system) if chat or system is not None else text for text in asked]
    llm = load_llm(engine)
    result = _run(llm, conversations, grid, quiet)
    _save(result, json, html)
    if not quiet and str(json) != "-":
        from pellucid.glass.sweep.terminal import render

        width = console.text_width()
        console.print_rich(*render(result, width), width=width)
    for cell in result.cells:
        if cell.error is not None:
            console.complain(cell.error)
    if result.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_REQUEST_FAILED if any(cell.error is not None for cell in result.cells) else 0


def _grid(presets: list[str], sampling: dict[str, Any]) -> Grid:
    names = [name for part in presets for name in part.split(",")]
    values = {name: sampling[name] for name in GRID_FIELDS if name in sampling}
    values.setdefault("seed", (DEFAULT_SEED,))
    fixed = {"max_tokens": DEFAULT_MAX_TOKENS, **{k: v for k, v in sampling.items() if k not in GRID_FIELDS}}
    return make_grid(names, values, fixed)


def _prompts(arguments: list[str], file: Path | None) -> list[str]:
    """Those on the command line, then those of the file; standard input where there is neither."""
    found = [console.read_text(argument, "prompt") for argument in arguments]
    if file is not None:
        found += _read_prompts(file)
    return found or [console.read_text(None, "prompt")]


def _read_prompts(file: Path) -> list[str]:
    name = "prompts_file"
    if file.stat().st_size > MAX_PROMPTS_FILE_BYTES:
        raise InvalidParameterError(name, f"{name} {file} is larger than {MAX_PROMPTS_FILE_BYTES // 1024**2} MiB")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidParameterError(name, f"{name} {file} is not valid UTF-8 at byte {error.start}") from None
    found = [line for line in lines if line.strip()]
    if file.suffix == ".jsonl":
        found = [_from_json(line, f"{name} {file}") for line in found]
    if not found:
        raise InvalidParameterError(name, f"{name} {file} has no prompt in it")
    return found


def _from_json(line: str, where: str) -> str:
    try:
        value = json_module.loads(line)
    except (ValueError, RecursionError):
        value = None
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str):
        raise InvalidParameterError(
            "prompts_file", f'{where} has the line {line[:60]!r}, but each must be a string or an object with "prompt"'
        )
    return prompt


def _messages(text: str, system: str | None) -> Messages:
    user = [{"role": "user", "content": text}]
    return user if system is None else [{"role": "system", "content": system}, *user]


def _check_size(grid: Grid, num_prompts: int, max_cells: int, sampling: dict[str, Any], quiet: bool) -> None:
    """Tell the size of what is about to start; raises `InvalidParameterError` where it is more than wanted."""
    if max_cells < 1:
        raise InvalidParameterError("max_cells", f"max_cells is {max_cells}, but must be a whole number of at least 1")
    settings = len(grid.settings)
    cells = settings * num_prompts
    answers = f"{cells:,} answer{'s' * (cells != 1)}"
    size = f"{console.plural(num_prompts, 'prompt')} × {console.plural(settings, 'setting')} = {answers}"
    if cells > max_cells:
        raise InvalidParameterError(
            "max_cells", f"the sweep has {size}, more than {max_cells:,}: give fewer values, or a larger --max-cells"
        )
    if quiet:
        return
    max_tokens = grid.settings[0].params.max_tokens
    if max_tokens is not None:
        size += f" of at most {console.plural(max_tokens, 'token')}, {cells * max_tokens:,} in all"
    merged = grid.num_combinations - settings
    if merged:
        size += f"; {console.plural(merged, 'combination')} left out, whose answer another has"
    console.say(size)


def _run(llm: Any, prompts: list[str | Messages], grid: Grid, quiet: bool) -> Sweep:
    from pellucid.glass.sweep.runner import run_sweep

    if quiet or not sys.stderr.isatty():
        return run_sweep(llm, prompts, grid)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("answers · {task.fields[tokens]:,} tokens"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(prompts) * len(grid.settings), tokens=0)
        # cells not yet queued count as unfinished: `ended` is of those that were
        return run_sweep(llm, prompts, grid, lambda ended, tokens: bar.update(task, completed=ended, tokens=tokens))


def _save(result: Sweep, json: Path | None, html: Path | None) -> None:
    from pellucid.glass.sweep.results import as_json

    if json is not None:
        value = as_json(result)
        if str(json) == "-":
            console.write_json(value)
        else:
            text = json_module.dumps(console.finite(value), ensure_ascii=False, allow_nan=False)
            json.write_text(text + "\n", encoding="utf-8")
    if html is not None:
        from pellucid.glass.sweep.page import write_page

        write_page(result, html)
