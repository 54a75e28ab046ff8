"""Positions beyond those the model was trained for, and rotary scaling applied twice or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from pellucid.errors import PellucidError
from pellucid.formats.json_file import read_json
from pellucid.glass.doctor.finding import Finding, NotApplicableError, Verdict, verdict
from pellucid.glass.doctor.model_exam import ModelExam
from pellucid.glass.doctor.trace_exam import TraceExam
from pellucid.glass.view import TraceView

CLEAR_NATS = 0.3
"""Nats a token that a scaling must cost on short text to be called wrong; one that was trained costs nothing there."""
_TOLERANCE = 1e-4
_PLAIN_KINDS = ("default", "learned", "sinusoidal", "alibi", "none")


def in_trace(exam: TraceExam) -> Verdict:
    """The last position against the trained ones, and the recorded frequencies against what base and factor make."""
    rope = exam.header["model"]["rope"]
    findings = [finding for view in exam.views for finding in _overflow(view, rope)]
    findings += _frequencies(rope)
    last = max((_last_position(view) for view in exam.views), default=0)
    why = f"the last position is {last:,} of {rope['max_pos']:,}"
    if rope["inv_freq"]:
        why += f"; RoPE, {rope['type']}, base {rope['theta']:,.0f}"
        why += "" if rope["factor"] is None else f", factor {rope['factor']:g}"
    return verdict(why, findings)


def _last_position(view: TraceView) -> int:
    """Of the rows that were computed: the last token drawn is none."""
    num_output = len(view.samples) if view.finish is None else view.finish["n_output"]
    return max(0, view.num_prompt + max(0, num_output - 1) - 1)


def _overflow(view: TraceView, rope: dict[str, Any]) -> Iterator[Finding]:
    last, most = _last_position(view), rope["max_pos"]
    if last < most:
        return
    yield Finding(
        "warning",
        f"Position {last:,} was used, but the model was trained for {most:,} (0 to {most - 1:,}): from there on its "
        "answers are likely to be worse.",
        f"Keep prompt and answer within {most:,} tokens (--max-model-len {most}), shorten the prompt with overflow, "
        "or take a model with a longer context.",
        {"last_position": last, "max_pos": most, "beyond": last - most + 1},
        view.name,
    )


def _frequencies(rope: dict[str, Any]) -> Iterator[Finding]:
    told, theta, dim, factor = rope["inv_freq"], rope["theta"], rope["dim"], rope["factor"]
    if not told or not theta or theta <= 0 or not dim or len(told) != dim // 2 or min(told) <= 0:
        return
    plain = np.power(float(theta), -np.arange(0, dim, 2, dtype=np.float64) / dim)
    ratios = plain / np.asarray(told, dtype=np.float64)
    evidence = {
        "type": rope["type"],
        "factor": factor,
        "ratio_first": float(ratios[0]),
        "ratio_last": float(ratios[-1]),
    }
    largest = float(ratios.max())
    is_plain = bool(np.allclose(ratios, 1.0, rtol=_TOLERANCE))
    if rope["type"] == "default":
        if not is_plain:
            yield Finding(
                "error",
                f"The header says that positions are not scaled, but the slowest pair turns {largest:.3g} times as "
                "slowly as its base makes it: a scaling is in the frequencies that nobody declares.",
                "Find out which scaling the weights were trained with, and declare it in the model's file.",
                evidence,
            )
        return
    if factor is None or factor <= 1 or rope["type"] in (*_PLAIN_KINDS, "ntk", "dynamic", "divisors", "longrope"):
        return
    if is_plain:
        yield Finding(
            "error",
            f"Scaling {rope['type']} by {factor:g} is declared, but the frequencies are those of no scaling: it was "
            "not applied.",
            "Use an engine version that applies it, or take the declaration out.",
            evidence,
        )
    elif largest > factor * (1 + _TOLERANCE):
        times = "applied twice" if np.isclose(largest, factor**2, rtol=0.05) else "applied wrongly"
        yield Finding(
            "error",
            f"Scaling {rope['type']} by {factor:g} is declared, but the slowest pair turns {largest:.3g} times as "
            f"slowly: it was {times}.",
            "Scale in one place only: in the model's file or in the engine.",
            evidence,
        )


def in_model(exam: ModelExam) -> Verdict:
    """The context asked for, what the file declares, and whether neutral text is likelier without the scaling."""
    config, rope = exam.config, exam.config.rope
    findings = list(_too_long(exam))
    if exam.args.rope_scaling is None:  # else the file's declaration is set aside
        findings += _declared_gguf(exam) if exam.files.metadata else _declared_folder(exam)
    why = f"requests up to {exam.reach:,} of {config.context_length:,} positions"
    if config.positions != "rope":
        return verdict(f"{why}; positions are {config.positions}", findings)
    if rope.scaling is None:
        return verdict(f"{why}; RoPE without scaling, base {rope.theta:,.0f}", findings)
    why += f"; RoPE with {rope.scaling.kind} scaling, base {rope.theta:,.0f}"
    try:
        with_scaling, without = exam.as_served.nats, _unscaled_nats(exam)
    except (NotApplicableError, PellucidError) as error:
        return verdict(f"{why}; likelihood not looked at: {error}", findings)
    why += f"; neutral text has {with_scaling:.2f} nats a token with it and {without:.2f} without"
    if with_scaling - without > CLEAR_NATS:
        asks = "The file asks for" if exam.args.rope_scaling is None else "rope_scaling asks for"
        findings.append(
            Finding(
                "warning",
                f"{asks} {rope.scaling.kind} scaling of positions, but neutral text is {with_scaling - without:.2f} "
                "nats a token more likely without: the weights were not trained with it, or it is in the base "
                "frequency already and so applied twice.",
                "Take the scaling out of the file (rope.scaling.type none; rope_scaling null in config.json), or "
                "restore the base frequency.",
                {
                    "scaling": rope.scaling.kind,
                    "factor": rope.scaling.factor,
                    "theta": rope.theta,
                    "nats_with": with_scaling,
                    "nats_without": without,
                },
            )
        )
    return verdict(why, findings)


def _unscaled_nats(exam: ModelExam) -> float:
    plain = dataclasses.replace(exam.config, rope=dataclasses.replace(exam.config.rope, scaling=None))
    tokenizer = exam.tokenizer
    prefix = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    with exam.rescaled(plain) as llm:
        return exam.likelihood(prefix, llm).nats


def _too_long(exam: ModelExam) -> Iterator[Finding]:
    most = exam.config.context_length
    if exam.reach <= most:
        return
    yield Finding(
        "warning",
        f"max_model_len is {exam.reach:,}, but the model was trained for {most:,} positions: what it answers beyond "
        "them is likely to be worse.",
        f"Set --max-model-len to {most} or less.",
        {"max_model_len": exam.reach, "context_length": most},
    )


def _declared_gguf(exam: ModelExam) -> Iterator[Finding]:
    kind, factor = exam.metadata("rope.scaling.type"), exam.metadata("rope.scaling.factor")
    original, context = exam.metadata("rope.scaling.original_context_length"), exam.config.context_length
    tensors = [name for name in ("rope_freqs.weight", "rope_factors_long.weight") if name in exam.files.source]
    if tensors and kind in ("linear", "yarn"):
        yield Finding(
            "warning",
            f"The file scales positions twice: rope.scaling.type is {kind}, and the tensor {tensors[0]} has factors "
            "too. Pellucid uses the tensor alone; other engines may apply both.",
            "Keep one of them, as the model's config.json has it.",
            {"rope.scaling.type": kind, "rope.scaling.factor": factor, "tensors": tensors},
        )
    yield from _reach(kind, factor, original, context, is_scaled=exam.config.rope.scaling is not None)


def _declared_folder(exam: ModelExam) -> Iterator[Finding]:
    config = read_json(exam.path / "config.json")
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    scaling = scaling if isinstance(scaling, dict) else {}
    kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor")
    original = scaling.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    trained = config.get("max_position_embeddings")
    is_longer = isinstance(original, int) and isinstance(trained, int) and original < trained
    if kind in ("linear", "dynamic") and is_longer:
        yield Finding(
            "warning",
            f"max_position_embeddings is {trained:,}, which has the {kind} scaling in it already (it was trained for "
            f"{original:,}): with the factor {factor} the context is taken for {exam.config.context_length:,}, scaled "
            "twice.",
            f"Set max_position_embeddings to {original}.",
            {"max_position_embeddings": trained, "original_max_position_embeddings": original, "factor": factor},
        )
        return
    yield from _reach(
        kind, factor, original, exam.config.context_length, is_scaled=exam.config.rope.scaling is not None
    )


def _reach(kind: Any, factor: Any, original: Any, context: int, *, is_scaled: bool) -> Iterator[Finding]:
    """A context longer than the original one needs a scaling, and one that reaches it."""
    if not _is_number(original) or original <= 0 or original >= context:
        return
    evidence = {"original_context": original, "context_length": context, "type": kind, "factor": factor}
    if not is_scaled:
        yield Finding(
            "warning",
            f"The file has {context:,} positions made from {original:,}, but no scaling is applied (its type is "
            f"{kind or 'not given'}): beyond {original:,} answers are likely to fall apart.",
            f"Declare the scaling that was trained, or set --max-model-len to {original}.",
            evidence,
        )
    elif _is_number(factor) and factor > 1 and context > original * factor * 1.5:
        twice = "the factor is in it twice" if abs(context / original - factor**2) < 0.1 * factor**2 else "too many"
        yield Finding(
            "warning",
            f"The file has {context:,} positions, but {original:,} scaled by {factor:g} are {original * factor:,.0f}: "
            f"{twice}.",
            f"Set --max-model-len to {int(original * factor)}.",
            evidence,
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
