"""`pellucid inspect`: what a model file says about itself and what memory it takes. Loads no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pellucid.cli import console
from pellucid.cli.arguments import Argument, Option
from pellucid.cli.console import plural
from pellucid.cli.flags import with_flags
from pellucid.cli.loading import local_path
from pellucid.cli.shape import shape_rows
from pellucid.config import (
    DEFAULT_KV_CACHE_DTYPE,
    KV_CACHE_DTYPES,
    KV_DTYPE_BITS,
    PRECISION_KL,
    EngineArgs,
    ModelConfig,
    kv_head_bytes,
)
from pellucid.errors import BackendError, InvalidParameterError
from pellucid.model_store.progress import format_bytes

if TYPE_CHECKING:
    from pellucid.models.model_files import ModelFiles
    from pellucid.tokenizer.tokenizer import Tokenizer

MAX_SPECIAL_SHOWN = 12
KINDS = {
    ("gpt2", "bytes"): "byte-level BPE",
    ("gpt2", "marks"): "BPE with byte fallback",
    ("gpt2", "suffix"): "BPE with word ends",
    ("llama", "marks"): "SentencePiece BPE",
    ("t5", "marks"): "SentencePiece Unigram",
    ("bert", "words"): "WordPiece",
}
"""What GGUF's names of tokenizers, and how pieces are spelled, stand for."""


@with_flags(only=("model", "rope_scaling", "rope_theta"))
def inspect(
    name: Annotated[str | None, Argument(metavar="MODEL", help="The same as -m.")] = None,
    tensors: Annotated[bool, Option("--tensors", help="List every tensor.")] = False,
    template: Annotated[bool, Option("--template", help="Print the chat template alone.")] = False,
    json: Annotated[bool, Option("--json", help="Print JSON instead of tables.")] = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Shows the architecture, tensor types, memory (weights, and the KV cache with its formula), the tokenizer and
    the instruction sets in use here.
    """
    if name is not None and "model" in engine:
        raise InvalidParameterError("model", f"two models are named, {name!r} and {engine['model']!r}: give one")
    model, path = local_path(engine if name is None else {"model": name})
    from pellucid.models.model_files import open_model, read_tokenizer

    if template:
        print(read_tokenizer(path).chat_template or f"{model} has no chat template")
        return
    args = EngineArgs(model=model, **{k: v for k, v in engine.items() if k != "model"})
    with open_model(path).with_rope(args.rope_scaling, args.rope_theta) as files:
        facts = gather(model, files)
        if json:
            console.write_json(facts | {"tensors": _tensors(files)}, indent=1)
            return
        _show(facts)
        if tensors:
            _show_tensors(files)


def gather(model: str, files: ModelFiles) -> dict[str, Any]:
    """Everything shown, as plain data."""
    return {
        "model": model,
        "path": files.path,
        "file_bytes": files.file_bytes,
        "format": files.kind,
        "config": files.config,
        "types": _types(files),
        "memory": _memory(files.config),
        "tokenizer": _tokenizer(files.tokenizer),
        "machine": _machine(),
    }


def _types(files: ModelFiles) -> dict[str, dict[str, int]]:
    """Tensor type → how many tensors, numbers and bytes, the largest first."""
    types: dict[str, dict[str, int]] = {}
    for tensor in files.source.tensors:
        entry = types.setdefault(tensor.type.name, {"tensors": 0, "parameters": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["parameters"] += _count(tensor.shape)
        entry["bytes"] += len(tensor.data)
    return dict(sorted(types.items(), key=lambda item: -item[1]["bytes"]))


def _count(shape: tuple[int, ...]) -> int:
    import math

    return math.prod(shape)


def _memory(config: ModelConfig) -> dict[str, Any]:
    """Weights; KV bytes per token and for the whole context, for each KV type; the longest context that fits now."""
    from pellucid.kv_cache.memory import free_memory
    from pellucid.kv_cache.sizing import largest_context

    kv = {
        dtype: {
            "bits_per_number": KV_DTYPE_BITS[dtype],
            "bytes_per_head": kv_head_bytes(dtype, config.head_dim),
            "bytes_per_token": config.kv_bytes_per_token(dtype),
            "bytes_full_context": config.kv_bytes_per_token(dtype) * config.context_length,
        }
        for dtype in KV_CACHE_DTYPES
    }
    args, free = EngineArgs(), max(0, free_memory() - config.weight_bytes)
    return {
        "weight_bytes": config.weight_bytes,
        "kv_cache": kv,
        "free_bytes": free_memory(),
        "largest_context": min(config.context_length, largest_context(config, args, free)),
    }


def _tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    vocabulary = tokenizer.vocabulary
    pre = vocabulary.pre_tokenizer.name
    return {
        "model": vocabulary.model,
        "kind": KINDS.get((vocabulary.model, vocabulary.spelling), vocabulary.model),
        "pre": None if pre == "none" else pre,
        "fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_ids": sorted(tokenizer.eos_ids),
        "add_bos": tokenizer.add_bos,
        "add_eos": tokenizer.add_eos,
        "special_tokens": tokenizer.special_tokens,
        "chat_template": tokenizer.chat_template,
    }


def _machine() -> dict[str, Any]:
    """The kernels this machine would run, without a model."""
    from pellucid.kernels.dispatch import make_backend, unused_instructions

    try:
        backend = make_backend(EngineArgs().backend, None)
    except BackendError as error:
        return {"backend": None, "instruction_set": None, "threads": None, "error": str(error)}
    return {
        "backend": backend.name,
        "instruction_set": backend.isa,
        "threads": backend.threads,
        "note": unused_instructions(),
        "precision_mean_kl": PRECISION_KL,
    }


def _tensors(files: ModelFiles) -> list[dict[str, Any]]:
    return [{"name": t.name, "shape": t.shape, "type": t.type.name, "bytes": len(t.data)} for t in files.source.tensors]


def _show(facts: dict[str, Any]) -> None:
    config: ModelConfig = facts["config"]
    _section("Model", _model_rows(facts, config))
    _section("Shape", shape_rows(config))
    types = facts["types"]
    _section("Tensor types", [(name, _type_line(entry)) for name, entry in types.items()])
    _section("Memory", _memory_rows(config, facts["memory"]))
    _section("Tokenizer", _tokenizer_rows(facts["tokenizer"]))
    machine = facts["machine"]
    kernels = (
        machine.get("error")
        or f"{machine['backend']}, {machine['instruction_set']}, {plural(machine['threads'], 'thread')}"
    )
    rows = [("kernels", kernels)]
    if machine.get("note"):
        rows.append(("note", machine["note"]))
    faithful = ", ".join(f"{precision} {kl}" for precision, kl in PRECISION_KL.items())
    rows.append(("precision", f"mean KL from float32 on the default model: {faithful} (prompts only)"))
    _section("This machine", rows)


def _type_line(entry: dict[str, int]) -> str:
    tensors = plural(entry["tensors"], "tensor")
    return f"{tensors:<12} {short(entry['parameters']):>8} parameters {format_bytes(entry['bytes']):>9}"


def short(count: int) -> str:
    """A count for people: `134.5 M`."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)


def _model_rows(facts: dict[str, Any], config: ModelConfig) -> list[tuple[str, str]]:
    parameters = sum(t["parameters"] for t in facts["types"].values())
    return [
        ("name", config.name),
        ("file", f"{facts['path']} ({format_bytes(facts['file_bytes'])}, {facts['format']})"),
        ("architecture", config.architecture),
        (
            "parameters",
            f"{short(parameters)} in {plural(sum(t['tensors'] for t in facts['types'].values()), 'tensor')}",
        ),
        ("context", f"{config.context_length} tokens"),
    ]


def _memory_rows(config: ModelConfig, memory: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("weights", format_bytes(config.weight_bytes))]
    for dtype in KV_CACHE_DTYPES:
        per_token = config.kv_bytes_per_token(dtype)
        key, value = kv_head_bytes(dtype, config.head_dim), kv_head_bytes(dtype, config.kv_value_dim)
        heads = f"{plural(config.num_layers, 'layer')} · {plural(config.num_kv_heads, 'KV head')}"
        of_head = f"2 · {heads} · {key} bytes" if key == value else f"{heads} · ({key} + {value}) bytes"
        formula = (
            f"{of_head} = {per_token} bytes a token, "
            f"{format_bytes(per_token * config.context_length)} for {config.context_length} tokens"
        )
        rows.append((f"KV {dtype}", formula))
    fits = f"{memory['largest_context']} tokens of KV {DEFAULT_KV_CACHE_DTYPE} beside the weights"
    rows.append(("fits now", f"{fits}; {format_bytes(memory['free_bytes'])} are free"))
    return rows


def _tokenizer_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    names = {token_id: text for text, token_id in facts["special_tokens"].items()}

    def named(token_id: int) -> str:
        return f"{token_id} {names[token_id]}" if token_id in names else str(token_id)

    special = list(facts["special_tokens"])
    more = f" … {len(special) - MAX_SPECIAL_SHOWN} more" if len(special) > MAX_SPECIAL_SHOWN else ""
    pre = f", pre-tokenizer {facts['pre']}" if facts["pre"] else ""
    begin = "none" if facts["bos_id"] is None else named(facts["bos_id"])
    return [
        ("kind", f"{facts['kind']} ({facts['model']}){pre}, {facts['vocab_size']} tokens"),
        ("begin", f"{begin}, {'put' if facts['add_bos'] else 'not put'} before prompts"),
        ("end", ", ".join(named(token_id) for token_id in facts["eos_ids"]) or "none"),
        ("special", " ".join(special[:MAX_SPECIAL_SHOWN]) + more),
        ("fingerprint", facts["fingerprint"]),
        ("chat template", "yes (--template shows it)" if facts["chat_template"] else "none: use generate, not chat"),
    ]


def _section(title: str, rows: list[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, min_width=14)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(console.harmless(value)))
    console.print_rich(Text(title, style="bold"), table, "")


def _show_tensors(files: ModelFiles) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("tensor", no_wrap=True)
    for title in ("shape", "type", "bytes"):
        table.add_column(title, justify="right")
    for tensor in files.source.tensors:
        shape = " × ".join(str(size) for size in tensor.shape)
        table.add_row(Text(console.harmless(tensor.name)), shape, tensor.type.name, str(len(tensor.data)))
    console.print_rich(table)
