"""`pellucid doctor`: what is wrong with a model, or with what happened to a request."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pellucid.cli import console
from pellucid.cli.arguments import Argument, Option
from pellucid.cli.exit_codes import EXIT_FINDINGS
from pellucid.cli.flags import with_flags
from pellucid.cli.loading import local_path
from pellucid.config import EngineArgs
from pellucid.errors import InvalidParameterError

if TYPE_CHECKING:
    from pellucid.glass.doctor.model_exam import ModelExam
    from pellucid.glass.doctor.rules import Examination
    from pellucid.tokenizer.tokenizer import Tokenizer
    from pellucid.trace.events import Event

SLOW_TTFT_MS = 2000
_TRACE_SUFFIXES = (".jsonl", ".json", ".ndjson")
_SKIPPED = ("kv_cache_save", "seed", "max_num_seqs", "max_num_batched_tokens", "max_step_ms", "enable_prefix_caching")
"""Flags of the engine that change nothing that the doctor looks at."""


@with_flags(skip=(*_SKIPPED, "speculative_method", "num_speculative_tokens"))
def doctor(
    subject: Annotated[
        str | None,
        Argument(
            metavar="MODEL|TRACE",
            help="A model (alias, repository id, GGUF file or folder), or a trace (JSON lines; `-` reads one from "
            "standard input).",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        Option("--tokenizer", metavar="MODEL", help="Whose tokenizer the model should have: compared by fingerprint."),
    ] = None,
    slow_ttft_ms: Annotated[
        int,
        Option("--slow-ttft-ms", metavar="MS", min=1, help="A first token that comes later is slow."),
    ] = SLOW_TTFT_MS,
    append: Annotated[
        bool,
        Option("--append", help="Write the findings into the trace, in place of earlier ones: reports show them."),
    ] = False,
    json: Annotated[bool, Option("--json", help="Print JSON instead of text.")] = False,
    *,
    engine: dict[str, Any],
) -> int:
    """Looks for twelve kinds of fault (docs/doctor.md) and says what was found, with numbers and what to do. A model is
    loaded and runs short neutral texts. Beside a trace, -m names the model that made it, and the two are compared. Ends
    with 1 where something is a warning or an error; notes alone do not count.
    """
    if subject is not None and _is_trace(subject):
        examination = _examine_trace(subject, engine, tokenizer, slow_ttft_ms, append)
    else:
        if append:
            raise InvalidParameterError("append", "--append writes findings into a trace, but a model is examined")
        if subject is not None and "model" in engine:
            raise InvalidParameterError(
                "model",
                f"two models are named, {subject!r} and {engine['model']!r}: give one, or a trace and its model",
            )
        examination = _examine_model(engine if subject is None else {**engine, "model": subject}, tokenizer)
    if json:
        console.write_json(examination.document(), indent=1)
    else:
        from pellucid.glass.doctor.drawing import drawn

        width = console.text_width()
        console.print_rich(*drawn(examination, width), width=width)
    return 0 if examination.is_healthy else EXIT_FINDINGS


def _is_trace(subject: str) -> bool:
    """By what the file begins with; by its name where there is none."""
    if subject == "-":
        return True
    path = Path(os.path.expanduser(subject))
    if not path.is_file():
        return path.suffix.lower() in _TRACE_SUFFIXES and not path.is_dir()
    with path.open("rb") as file:
        start = file.read(4)
    return start != b"GGUF" and (start.lstrip()[:1] == b"{" or path.suffix.lower() in _TRACE_SUFFIXES)


def _examine_trace(
    subject: str, engine: dict[str, Any], tokenizer: str | None, slow_ttft_ms: int, append: bool
) -> Examination:
    from pellucid.glass.doctor.rules import examine
    from pellucid.glass.doctor.trace_exam import TraceExam

    if "model" not in engine and (engine or tokenizer is not None):
        given = "tokenizer" if tokenizer is not None else next(iter(engine))
        raise InvalidParameterError(given, f"{given} is about a model: name the trace's with -m, or leave it out")
    if append and subject == "-":
        raise InvalidParameterError("append", "--append needs a file, but the trace comes from standard input")
    events = _read(subject)
    name = "standard input" if subject == "-" else Path(subject).name
    model = _open(engine, tokenizer) if "model" in engine else None
    try:
        found = examine(TraceExam.of(events, name, slow_ttft_ms=slow_ttft_ms, model=model))
    finally:
        if model is not None:
            model.close()
    if append:
        _append(Path(subject), events, found.events)
    return found


def _read(subject: str) -> list[Event]:
    from pellucid.trace.jsonl import bounded_lines, parse_lines, read_trace

    if subject == "-":
        return list(parse_lines(bounded_lines(sys.stdin.buffer), "standard input"))
    return read_trace(subject)


def _append(path: Path, events: list[Event], findings: list[Event]) -> None:
    """The trace with these findings before its end; the file is replaced once it is written."""
    from pellucid.trace.jsonl import write_trace

    kept = [event for event in events if event["type"] not in ("finding", "end")]
    ends = [event for event in events if event["type"] == "end"]
    written = [*kept, *findings]
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write_trace(partial, [*written, *({**end, "events": len(written)} for end in ends)])
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _examine_model(engine: dict[str, Any], tokenizer: str | None) -> Examination:
    from pellucid.glass.doctor.rules import examine

    exam = _open(engine, tokenizer)
    try:
        return examine(exam)
    finally:
        exam.close()


def _open(engine: dict[str, Any], tokenizer: str | None) -> ModelExam:
    from pellucid.glass.doctor.model_exam import ModelExam

    args = EngineArgs(**engine)
    belongs: tuple[str, Tokenizer] | None = None
    if tokenizer is not None:
        from pellucid.models.model_files import read_tokenizer

        belongs = (tokenizer, read_tokenizer(local_path({"model": tokenizer})[1]))
    name, path = local_path(engine)
    return ModelExam.open(name, path, args, belongs)
