"""Real models with one thing changed, written by our own writer; and traces of real requests."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.config import EngineArgs
from pellucid.engine.llm import LLM
from pellucid.formats.gguf import GGUFFile
from pellucid.formats.gguf_writer import write_gguf
from pellucid.glass.doctor.finding import Verdict
from pellucid.glass.doctor.model_exam import ModelExam
from pellucid.glass.doctor.rules import RULES, Rule, examine
from pellucid.glass.doctor.trace_exam import TraceExam
from pellucid.sampling_params import SamplingParams

Event = dict[str, Any]
BY_NAME = {rule.name: rule for rule in RULES}


def changed(
    source: Path,
    target: Path,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, Callable[[np.ndarray], np.ndarray]] | None = None,
) -> Path:
    """The file with other metadata (None removes a key) and with float32 tensors put through a function."""
    with GGUFFile.open(source) as file:
        kept = {key: value for key, value in {**file.metadata, **(metadata or {})}.items() if value is not None}
        held = {}
        for name, tensor in file.tensors.items():
            data: Any = tensor.data
            if tensors and name in tensors:
                assert tensor.type.name == "F32"
                data = tensors[name](tensor.data.view(np.float32)).astype(np.float32)
            held[name] = (tensor.shape, tensor.type, data)
        write_gguf(target, kept, held)
    return target


def metadata_of(path: Path) -> dict[str, Any]:
    with GGUFFile.open(path) as file:
        return dict(file.metadata)


def permuted_tokens(metadata: dict[str, Any]) -> dict[str, Any]:
    """The same pieces with other ids, merges and all: a sound tokenizer, of other weights."""
    tokens, kinds = list(metadata["tokenizer.ggml.tokens"]), np.asarray(metadata["tokenizer.ggml.token_type"])
    normal = np.flatnonzero(kinds == 1).tolist()
    order = list(normal)
    random.Random(5).shuffle(order)
    moved = list(tokens)
    for old, new in zip(normal, order, strict=True):
        moved[new] = tokens[old]
    return {"tokenizer.ggml.tokens": moved}


@contextmanager
def opened(path: Path, **args: Any) -> Iterator[ModelExam]:
    """A model examined."""
    belongs = args.pop("belongs", None)
    exam = ModelExam.open(path.name, path, EngineArgs(model=str(path), **args), belongs)
    try:
        yield exam
    finally:
        exam.close()


def model_verdict(path: Path, rule: str, **args: Any) -> Verdict:
    """What one rule says of a model."""
    with opened(path, **args) as exam:
        return verdict_of(exam, rule)


def verdict_of(exam: ModelExam | TraceExam, rule: str) -> Verdict:
    chosen: list[Rule] = [BY_NAME[rule]]
    [(_, found)] = examine(exam, chosen).verdicts
    return found


def trace_of(llm: LLM, prompt: Any, level: int = 2, *, chat: bool = False, **params: Any) -> list[Event]:
    """The events of one real request, as a file has them."""
    given = SamplingParams(**{"max_tokens": 12, "seed": 3} | params)
    reader = llm.trace_reader(from_start=False)
    if chat:
        llm.chat([{"role": "user", "content": prompt}], given, trace_level=level)
    else:
        llm.generate(prompt if isinstance(prompt, str) else [prompt], given, trace_level=level)
    return [json.loads(line) for line in reader.lines()]


def trace_verdict(events: list[Event], rule: str, **known: Any) -> Verdict:
    """What one rule says of a trace."""
    return verdict_of(TraceExam.of(events, **known), rule)
