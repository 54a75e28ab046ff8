"""Writes the tables of docs/cli.md and docs/python-api.md from the code, where each default and range stands once.

    python tools/make_reference_docs.py            write both
    python tools/make_reference_docs.py --check    exit 1 if a committed file differs

A document keeps its own words; what lies between `<!-- generated: NAME -->` and `<!-- /generated -->` is replaced.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from pellucid import beam_search_params, config, errors, outputs, pooling_params
from pellucid.beam_search_params import BeamSearchParams, BeamSearchSequence
from pellucid.cli import exit_codes
from pellucid.cli.arguments import Option, Parameter, parameters_of
from pellucid.cli.flags import NO_FLAG
from pellucid.cli.verbs import SUBVERBS, VERBS, Verb
from pellucid.config import EngineArgs, ModelConfig
from pellucid.engine import engine_stats
from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.engine_stats import EngineStats
from pellucid.engine.llm import LLM
from pellucid.engine.request_stream import RequestStream
from pellucid.engine.streams import DeltaStream
from pellucid.errors import InvalidParameterError, PellucidError
from pellucid.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from pellucid.pooling_params import PoolingParams
from pellucid.sampling_params import PRESETS, SamplingParams
from pellucid.server.embeddings import EMBEDDINGS
from pellucid.server.fields import CHAT, COMPLETIONS, Endpoint
from pellucid.server.metrics import METRICS
from pellucid.server.openai_fields import ECHOES, INNER_UNSERVED, LABELS, UNSERVED
from pellucid.server.output.families import TOOL_FAMILIES
from pellucid.server.output.reasoning import REASONING_PARSERS
from pellucid.server.responses.fields import RESPONSES
from pellucid.structured_outputs import StructuredOutputsParams
from pellucid.tokenizer.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("docs/cli.md", "docs/python-api.md", "docs/serving.md")
_BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- /generated -->)", re.DOTALL)

_ITEM = re.compile(r"^([a-z_]+(?:, [a-z_]+)*): ", re.MULTILINE)


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A GitHub table; `|` inside cells is escaped."""
    yield f"| {' | '.join(titles)} |"
    yield f"|{'|'.join(['---'] * len(list(titles)))}|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


# Dataclasses


def parameters(owner: type) -> Iterator[str]:
    """A table of a settings class: the allowed values are what its own refusal says."""
    rows = (
        (code(f.name), code(str(f.type)), code(_default(f)), _allowed(owner, f.name), str(f.metadata["help"]))
        for f in fields(owner)
    )
    yield from table(("name", "type", "default", "allowed", "meaning"), rows)


def _default(f: Field[Any]) -> str:
    if f.default_factory is not MISSING:
        return repr(f.default_factory())
    return repr(f.default)


def _allowed(owner: type, name: str) -> str:
    try:
        owner(**{name: object()})
    except InvalidParameterError as error:
        return str(error).split(", but ", 1)[1].removeprefix("must be ")
    return ""


def attributes(owner: type, module: Any) -> Iterator[str]:
    """A table of a result class: what stands under each field in the source is its meaning."""
    yield _paragraphs(owner)[0] + "\n"
    notes = _notes(owner, module)
    rows = ((code(f.name), code(str(f.type)), notes.get(f.name, "")) for f in fields(owner))
    yield from table(("name", "type", "meaning"), rows)
    for name, member in vars(owner).items():
        if isinstance(member, property):
            yield f"\n`{name}` (property): {_paragraphs(member)[0]}"


def _notes(owner: type, module: Any) -> dict[str, str]:
    """Field → the string literal that follows it in the class's source."""
    tree = ast.parse(inspect.getsource(module))
    [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner.__name__]
    notes: dict[str, str] = {}
    for before, after in pairwise(body):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if is_text and isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            notes[before.target.id] = _joined(str(after.value.value))  # type: ignore[attr-defined]
    return notes


def _joined(text: str) -> str:
    return " ".join(text.split())


def _paragraphs(thing: Any) -> list[str]:
    """The docstring's paragraphs without its examples; `name: what it is` at a line's beginning makes a list item."""
    text = inspect.getdoc(thing)
    assert text, f"{thing} has no docstring"
    parts = [_ITEM.sub(_item, part) for part in text.split("\n\n") if not part.lstrip().startswith(">>>")]
    return ["\n".join(_joined(line) for line in part.split("\f")).strip() for part in parts]


def _item(match: re.Match[str]) -> str:
    return f"\f- {', '.join(code(name) for name in match[1].split(', '))}: "


# The Python API


def presets() -> Iterator[str]:
    rows = ((code(name), ", ".join(f"`{key}={value}`" for key, value in PRESETS[name].items())) for name in PRESETS)
    yield from table(("preset", "values"), rows)


def methods(owner: type, names: Iterable[str]) -> Iterator[str]:
    """Signature and docstring of each method."""
    for name in names:
        member = inspect.getattr_static(owner, name)
        yield f"\n### `{owner.__name__}{'' if name == '__init__' else '.' + name}`\n"
        if isinstance(member, property):
            yield f"Property. {_paragraphs(member)[0]}"
            continue
        function = getattr(member, "__func__", member)
        yield "```python"
        yield from _signature(owner.__name__ if name == "__init__" else name, function)
        yield "```\n"
        yield "\n\n".join(_paragraphs(function))


def _signature(name: str, function: Callable[..., Any]) -> Iterator[str]:
    signature = inspect.signature(function)
    shown = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    returns = "" if name[0].isupper() else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(_parameters(shown))}){returns}"
    if len(line) <= 100:
        yield line
        return
    yield f"{name}("
    yield from (f"    {part}," for part in _parameters(shown))
    yield f"){returns}"


def _parameters(shown: list[inspect.Parameter]) -> list[str]:
    parts: list[str] = []
    for p in shown:
        if p.kind is p.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        stars = "**" if p.kind is p.VAR_KEYWORD else ""
        default = "" if p.default is p.empty else f" = {p.default!r}"
        parts.append(f"{stars}{p.name}: {p.annotation}{default}")
    return parts


def error_table() -> Iterator[str]:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, PellucidError)]
    rows = ((code(c.__name__), code(c.code), _paragraphs(c)[0]) for c in classes)
    yield from table(("class", "code", "when"), rows)


# The command line


def verbs() -> Iterator[str]:
    rows = ((f"[`pellucid {name}`](#{name.replace(' ', '-')})", verb.help) for name, verb in _all_verbs())
    yield from table(("command", "what it does"), rows)


def _all_verbs() -> Iterator[tuple[str, Verb]]:
    for name, verb in VERBS.items():
        below = SUBVERBS.get(name)
        yield from ((f"{name} {sub}", below[sub]) for sub in below) if below else [(name, verb)]


def _function(verb: Verb) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(verb.module), verb.function)
    return function


def commands() -> Iterator[str]:
    """One section for each verb: its own arguments and flags, and which of the shared ones it takes."""
    for name, verb in _all_verbs():
        function = _function(verb)
        own = [p for p in _flags(function) if p.panel is None]
        yield f"\n## {name}\n"
        yield " ".join([verb.help, *_paragraphs(function)]) + "\n"
        if own:
            yield from table(("argument or flag", "default", "meaning"), (p.row for p in own))
        yield from _shared_note(function)


class Flag:
    """One parameter of a verb, as the table has it."""

    def __init__(self, parameter: Parameter) -> None:
        info = parameter.info
        self.name = parameter.name
        self.panel: str | None = info.panel if isinstance(info, Option) else None
        if isinstance(info, Option):
            self.spelled = ", ".join(code(name) for name in (*info.names, *info.off_names))
            self.spelled += f" {info.metavar}" if info.metavar else ""
        else:
            self.spelled = code(info.metavar or parameter.name)
        self.meaning, _, default = info.help.partition(" [default: ")
        self.default = default.removesuffix("]") or self._own_default(parameter.default)

    @staticmethod
    def _own_default(default: Any) -> str:
        if default is None or default is inspect.Parameter.empty:
            return ""
        return {True: "yes", False: "no"}[default] if isinstance(default, bool) else str(default)

    @property
    def row(self) -> tuple[str, str, str]:
        return self.spelled, code(self.default), self.meaning

    def same_as(self, other: Flag) -> bool:
        """Whether it is another verb's flag of the same field."""
        return (self.name, self.panel) == (other.name, other.panel)


def _flags(function: Callable[..., Any]) -> list[Flag]:
    return [Flag(p) for p in parameters_of(function)]


def _shared_note(function: Callable[..., Any]) -> Iterator[str]:
    """Which of the shared flags a verb takes, said once."""
    taken = {flag.name: flag for flag in _flags(function) if flag.panel is not None}
    parts: list[str] = []
    for panel, owner in (("Sampling", SamplingParams), ("Engine", EngineArgs)):
        names = [name for name in taken if taken[name].panel == panel]
        link = f"[{panel.lower()} flags](#{panel.lower()}-flags)"
        if len(names) == 1:
            parts.append(f"{taken[names[0]].spelled} of the {link}")
        elif names:
            left_out = [
                code("--" + f.name.replace("_", "-")) for f in fields(owner) if f.name not in {*taken, *NO_FLAG}
            ]
            parts.append(f"all {link}" + (f" but {', '.join(left_out)}" if left_out else ""))
    if parts:
        yield f"\nIt also takes {'; '.join(parts)}."


def shared_flags(panel: str, verb: str) -> Iterator[str]:
    """The shared flags as the verb that takes most of them has them; defaults that differ name their verb."""
    known = {name: _flags(_function(v)) for name, v in _all_verbs()}
    rows = []
    for flag in known[verb]:
        if flag.panel != panel:
            continue
        defaults = {name: f.default for name, flags in known.items() for f in flags if f.same_as(flag)}
        shown = code(flag.default) or "unset"
        if len(set(defaults.values())) > 1:
            shown = ", ".join(f"{name}: {code(default) or 'unset'}" for name, default in defaults.items())
        rows.append((flag.spelled, shown, flag.meaning))
    yield from table(("flag", "default", "meaning"), rows)


def exit_code_table() -> Iterator[str]:
    source = ast.parse(inspect.getsource(exit_codes))
    rows = [("0", "Done.")]
    for before, after in pairwise(source.body):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr):
            rows.append((str(getattr(exit_codes, before.target.id)), _joined(ast.literal_eval(after.value))))
    yield from table(("exit code", "meaning"), rows)


# The server


def server_flags() -> Iterator[str]:
    """The own flags of `pellucid serve`."""
    own = [flag for flag in _flags(_function(VERBS["serve"])) if flag.panel is None]
    yield from table(("argument or flag", "default", "meaning"), (flag.row for flag in own))


ENDPOINTS = {"completions": COMPLETIONS, "chat": CHAT, "responses": RESPONSES, "embeddings": EMBEDDINGS}


def server_fields() -> Iterator[str]:
    """The fields that an endpoint reads itself."""
    takers: dict[tuple[str, str], list[str]] = {}
    for key, endpoint in ENDPOINTS.items():
        for name, schema in endpoint.own.items():
            takers.setdefault((name, str(schema.get("description", ""))), []).append(key)
    rows = ((code(name), ", ".join(keys), meaning) for (name, meaning), keys in sorted(takers.items()))
    yield from table(("field", "endpoint", "meaning"), rows)


def server_unserved() -> Iterator[str]:
    """OpenAI's fields that are not served, why, and the values that pass."""
    found = {name: (_takers(name, lambda endpoint: endpoint.unserved), field) for name, field in UNSERVED.items()}
    for name, field in INNER_UNSERVED.items():
        found[name] = (_takers(name.partition(".")[0], lambda endpoint: endpoint.own, name), field)
    rows = (
        (code(name), keys, ", ".join(code(json.dumps(v)) for v in (None, *field.neutral)), field.why)
        for name, (keys, field) in sorted(found.items())
    )
    yield from table(("field", "endpoint", "passes as", "because"), rows)


def server_labels() -> Iterator[str]:
    """OpenAI's fields that pass with any value and change no answer."""
    rows = [(code(name), _takers(name, lambda endpoint: endpoint.labels), label.why) for name, label in LABELS.items()]
    rows += [(code(name), "responses" if name.startswith("input") else "chat", why) for name, why in ECHOES.items()]
    yield from table(("field", "endpoint", "because"), rows)


def _takers(name: str, fields: Callable[[Endpoint], Iterable[str]], inner: str = "") -> str:
    """The endpoints that have a field, and in its schema the inner one."""
    last = inner.rpartition(".")[2]
    keys = [key for key, endpoint in ENDPOINTS.items() if name in fields(endpoint)]
    return ", ".join(key for key in keys if not last or last in ENDPOINTS[key].own[name].get("properties", ()))


def server_tool_parsers() -> Iterator[str]:
    """The families of tool calls."""
    rows = ((code(family.name), code(family.example), family.models) for family in TOOL_FAMILIES.values())
    yield from table(("parser", "a call", "models"), rows)


def server_reasoning_parsers() -> Iterator[str]:
    """The families of reasoning marks."""
    rows = ((code(name), code(f"{marks.open} … {marks.close}")) for name, marks in REASONING_PARSERS.items())
    yield from table(("parser", "marks"), rows)


def server_metrics() -> Iterator[str]:
    rows = ((code(m.name), m.kind, ", ".join(map(code, m.labels)), m.help) for m in METRICS)
    yield from table(("metric", "kind", "labels", "meaning"), rows)


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "verbs": verbs,
    "commands": commands,
    "sampling-flags": lambda: shared_flags("Sampling", "generate"),
    "engine-flags": lambda: shared_flags("Engine", "bench latency"),
    "exit-codes": exit_code_table,
    "presets": presets,
    "sampling-params": lambda: parameters(SamplingParams),
    "structured-outputs": lambda: table(
        ("name", "type", "default", "meaning"),
        (
            (code(f.name), code(str(f.type)), code(_default(f)), str(f.metadata["help"]))
            for f in fields(StructuredOutputsParams)
        ),
    ),
    "engine-args": lambda: parameters(EngineArgs),
    "llm": lambda: methods(
        LLM, ("__init__", "generate", "chat", "stream", "beam_search", "embed", "abort", "close", "stats")
    ),
    "beam-search-params": lambda: attributes(BeamSearchParams, beam_search_params),
    "beam-search-sequence": lambda: attributes(BeamSearchSequence, beam_search_params),
    "pooling-params": lambda: attributes(PoolingParams, pooling_params),
    "request-stream": lambda: methods(RequestStream, ("close",)),
    "request-output": lambda: attributes(RequestOutput, outputs),
    "completion-output": lambda: attributes(CompletionOutput, outputs),
    "logprob": lambda: attributes(Logprob, outputs),
    "request-metrics": lambda: attributes(RequestMetrics, outputs),
    "engine-stats": lambda: attributes(EngineStats, engine_stats),
    "async-llm": lambda: methods(AsyncLLM, ("__init__", "generate", "encode", "submit", "embed", "close", "stats")),
    "delta-stream": lambda: methods(DeltaStream, ("abort", "aclose")),
    "server-flags": server_flags,
    "server-fields": server_fields,
    "server-unserved": server_unserved,
    "server-labels": server_labels,
    "server-tool-parsers": server_tool_parsers,
    "server-reasoning-parsers": server_reasoning_parsers,
    "server-metrics": server_metrics,
    "tokenizer": lambda: methods(Tokenizer, ("encode", "decode", "token_bytes", "token_text", "is_special", "pieces")),
    "model-config": lambda: attributes(ModelConfig, config),
    "errors": error_table,
}


def generated(document: str) -> str:
    """The document with its generated parts made anew. Raises KeyError for a name that is no section."""

    def replaced(match: re.Match[str]) -> str:
        body = "\n".join(SECTIONS[match["name"]]()).strip("\n")
        return f"{match[1]}\n{body}\n\n{match[3]}"

    return _BLOCK.sub(replaced, document)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if a file differs")
    arguments = parser.parse_args()
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = generated(before)
        if before != after:
            stale.append(name)
            if not arguments.check:
                path.write_text(after, encoding="utf-8")
    print("\n".join(stale) or "up to date", file=sys.stderr)
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
