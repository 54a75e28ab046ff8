"""The KV budget: what is needed, what there is, the longest context that fits."""

from __future__ import annotations

from collections.abc import Iterator

from pellucid.config import EngineArgs, ModelConfig
from pellucid.errors import PellucidError
from pellucid.glass.doctor.finding import Finding, NotApplicableError, Verdict, verdict
from pellucid.glass.doctor.model_exam import ModelExam
from pellucid.glass.doctor.trace_exam import TraceExam, count
from pellucid.kv_cache.memory import total_memory
from pellucid.kv_cache.sizing import kv_bytes_per_token, largest_context
from pellucid.model_store.progress import format_bytes

_FIX = "Raise --kv-cache-memory-bytes, lower --max-num-seqs or --max-model-len, or set --kv-cache-dtype int8 or int4."


def in_trace(exam: TraceExam) -> Verdict:
    """Requests that gave up their blocks or waited for some, and the most that ran together."""
    per_token = exam.header["model"].get("kv_bytes_per_token")
    reserved = max((one["kv_reserved_bytes"] for one in exam.views[0].mem), default=None)
    if not isinstance(per_token, int) or per_token <= 0 or reserved is None:
        raise NotApplicableError("the trace does not tell the KV cache's size")
    together = max(
        (sum(one["tok0"] + one["n_tok"] for one in step["seqs"]) for step in exam.views[0].all_steps), default=0
    )
    longest = reserved // per_token
    evidence = {
        "needed_bytes": together * per_token,
        "available_bytes": reserved,
        "bytes_per_token": per_token,
        "longest_context": longest,
    }
    why = (
        f"at most {count(together, 'token')} together, {format_bytes(together * per_token)} of "
        f"{format_bytes(reserved)}; the longest context that fits has {longest:,} tokens"
    )
    return verdict(why, list(_short_of_blocks(exam, evidence)))


def _short_of_blocks(exam: TraceExam, evidence: dict[str, int]) -> Iterator[Finding]:
    waits: dict[str, int] = {}
    for step in exam.views[0].all_steps:
        for one in step["waiting"]:
            if one["reason"] == "kv_blocks":
                waits[one["req"]] = waits.get(one["req"], 0) + 1
    for view in exam.requests:
        preempted = 0 if view.finish is None else view.finish["preemptions"]
        waited = waits.get(view.name, 0)
        if not preempted and not waited:
            continue
        what = [f"gave up its blocks {count(preempted, 'time')} and was computed again"] if preempted else []
        what += [f"waited for blocks in {count(waited, 'step')}"] if waited else []
        yield Finding(
            "warning",
            f"The KV cache was full: the request {' and '.join(what)}. There are "
            f"{format_bytes(evidence['available_bytes'])}, room for {evidence['longest_context']:,} tokens in all.",
            _FIX,
            {**evidence, "preemptions": preempted, "waited_steps": waited},
            view.name,
        )


def in_model(exam: ModelExam) -> Verdict:
    """One request of the longest length beside the weights, in the memory that is free now."""
    args, config = exam.args, exam.config
    if not config.causal:
        raise NotApplicableError(f"{config.architecture} is an encoder: nothing of its texts is kept")
    weights = exam.files.quantized_bytes(args.quantization)
    draft = _draft(args)
    weights += 0 if draft is None else draft.weight_bytes
    beside = max(0, exam.free_bytes - weights)
    available = beside if args.kv_cache_memory_bytes is None else min(args.kv_cache_memory_bytes, total_memory())
    per_token = kv_bytes_per_token(config, args, draft)
    blocks = -(-exam.reach // args.block_size)
    needed = blocks * args.block_size * per_token
    longest = largest_context(config, args, available, draft)
    evidence = {
        "needed_bytes": needed,
        "available_bytes": available,
        "weight_bytes": weights,
        "free_bytes": exam.free_bytes,
        "bytes_per_token": per_token,
        "longest_context": longest,
        "max_model_len": exam.reach,
        "kv_cache_dtype": args.kv_cache_dtype,
    }
    why = (
        f"a request of {exam.reach:,} tokens needs {format_bytes(needed)} of KV {args.kv_cache_dtype}; "
        f"{format_bytes(available)} are available beside {format_bytes(weights)} of weights"
    )
    if weights > exam.free_bytes:
        said = f"The weights need {format_bytes(weights)}, but {format_bytes(exam.free_bytes)} of memory are free."
        fix = "Free some, take a smaller model, or load it with --quantization."
        return verdict(why, [Finding("error", said, fix, evidence)])
    if needed <= available:
        return verdict(f"{why}; the longest context that fits has {longest:,} tokens")
    said = (
        f"A request of {exam.reach:,} tokens needs {format_bytes(needed)} of KV cache ({per_token:,} bytes a token), "
        f"but {format_bytes(available)} are available: the longest context that fits has {longest:,} tokens."
    )
    smaller = "" if args.kv_cache_dtype in ("int8", "int4") else ", or --kv-cache-dtype to int8 or int4"
    fix = f"Set --max-model-len to {longest} or less{smaller}."
    return verdict(why, [Finding("error", said, fix, evidence)])


def _draft(args: EngineArgs) -> ModelConfig | None:
    if args.speculative_model is None:
        return None
    from pellucid.model_store.store import resolve
    from pellucid.models.model_files import open_model

    try:
        with open_model(resolve(args.speculative_model)) as files:
            return files.config
    except PellucidError as error:
        raise NotApplicableError(f"the draft model cannot be opened: {error}") from None
