"""A tokenizer that does not belong to the weights."""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Iterator

from pellucid.errors import PellucidError
from pellucid.glass.doctor.finding import Finding, NotApplicableError, Verdict, verdict
from pellucid.glass.doctor.model_exam import ModelExam
from pellucid.glass.doctor.texts import ROUND_TRIP
from pellucid.glass.doctor.trace_exam import TraceExam, count, param
from pellucid.glass.pieces import common_prefix, decoded, piece_text
from pellucid.glass.view import TraceView

UNIFORM_SHARE = 0.75
"""Share of ln(vocabulary), the nats of a model that knows nothing, from which on the ids mean something else to the
weights: SmolLM2 has 0.23 on English prose, Gemma 3 0.18; with its ids permuted SmolLM2 has 1.2."""
_SHOWN_BYTES = 24


def in_trace(exam: TraceExam) -> Verdict:
    """Ids beyond the embedding, tokens that do not spell the prompt; with a model, whether it is the one."""
    findings = list(_ids_without_rows(exam))
    looked = 0
    for view in exam.requests:
        if param(view, "overflow", "error") == "error":
            looked += 1
            findings += _spelling(view)
    findings += _other_model(exam) if exam.model is not None else []
    rows = exam.header["model"]["vocab"]
    why = f"ids against {rows:,} rows of the embedding, {count(looked, 'prompt')} against their tokens' bytes"
    why += "" if exam.model is None else f", the tokenizer against that of {exam.model.name}"
    return verdict(why, findings)


def _ids_without_rows(exam: TraceExam) -> Iterator[Finding]:
    rows = exam.header["model"]["vocab"]
    told = exam.tokenizer
    named: list[tuple[str, str | None, int | None]] = [("end token", None, i) for i in told["eos_ids"]]
    named.append(("BOS", None, told["bos_id"]))
    for view in exam.views:
        named += [("prompt", view.name, one["id"]) for one in view.request["tokens"]]
        named += [("answer", view.name, one["id"]) for one in view.samples]
        named += [("draft", view.name, i) for one in view.specs for i in one["draft"]]
    beyond = [one for one in named if one[2] is not None and one[2] >= rows]
    for where in dict.fromkeys((kind, request) for kind, request, _ in beyond):
        ids = sorted({i for kind, request, i in beyond if (kind, request) == where and i is not None})
        yield Finding(
            "error",
            f"{where[0][0].upper()}{where[0][1:]}: id {ids[0]} has no row in the embedding, whose ids end at "
            f"{rows - 1}: tokenizer and weights are not of one model.",
            "Use the tokenizer that was published with the weights.",
            {"where": where[0], "rows": rows, "ids": ids[:10], "num_ids": len(ids)},
            where[1],
        )


def _spelling(view: TraceView) -> Iterator[Finding]:
    tokens = view.request["tokens"]
    pieces = [decoded(one["bytes_b64"]) for one in tokens if one["span"] is not None or one["kind"] != "special"]
    text, spelled = view.request["rendered"], b"".join(pieces)
    if _folded(text) == _folded(spelled.decode("utf-8", "replace")):
        return
    wanted = text.encode("utf-8", "surrogatepass")
    place = common_prefix(wanted, spelled)
    shown = [piece_text(data[place : place + _SHOWN_BYTES], spaces=False) for data in (wanted, spelled)]
    yield Finding(
        "warning",
        f"The tokens do not spell the prompt: from byte {place} on the text is {shown[0]!r}, but the tokens are "
        f"{shown[1]!r}. The model reads something else than was written.",
        "Use the tokenizer that was published with the weights, with its pre-tokenizer and normalizer.",
        {"byte": place, "text": shown[0], "tokens": shown[1]},
        view.name,
    )


def _folded(text: str) -> str:
    """What tokenizers may change by design (case, Unicode form, white space, SentencePiece's mark) made equal."""
    return "".join(unicodedata.normalize("NFKC", text.replace("▁", " ")).casefold().split())


def _other_model(exam: TraceExam) -> Iterator[Finding]:
    """The trace's tokenizer against the one of the model named beside it."""
    assert exam.model is not None
    from pellucid.engine.tracing.header import vocabulary_sha256

    tokenizer, told = exam.model.tokenizer, exam.tokenizer
    ours = {
        "vocab": (exam.header["model"]["vocab"], min(exam.model.config.vocab_size, tokenizer.vocab_size)),
        "sha256": (told["sha256"], vocabulary_sha256(tokenizer)),
        "bos_id": (told["bos_id"], tokenizer.bos_id),
        "eos_ids": (told["eos_ids"], sorted(tokenizer.eos_ids)),
        "template_sha256": (told["template_sha256"], _sha256(tokenizer.chat_template)),
    }
    other = {name: list(pair) for name, pair in ours.items() if pair[0] != pair[1]}
    if other:
        yield Finding(
            "error" if {"vocab", "sha256"} & other.keys() else "warning",
            f"The trace was made with another tokenizer than that of {exam.model.name}: {', '.join(other)} "
            f"{'differs' if len(other) == 1 else 'differ'}.",
            "Name the model that the trace is of, or find out which of the two has the wrong tokenizer.",
            {name: {"trace": pair[0], "model": pair[1]} for name, pair in other.items()},
        )


def _sha256(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def in_model(exam: ModelExam) -> Verdict:
    """The tokenizer's own soundness, its size against the embedding, and what the weights make of its ids."""
    if exam.tokenizer_error is not None:
        said = f"The tokenizer cannot be used: {exam.tokenizer_error}."
        fix = "Convert the model again with a current converter, or use the tokenizer that was published with it."
        return verdict("the file's vocabulary", [Finding("error", said, fix, {"error": exam.tokenizer_error})])
    findings = [*_sizes(exam), *_pre_tokenizer(exam), *_round_trip(exam), *_belongs(exam)]
    tokenizer = exam.tokenizer
    why = f"{tokenizer.vocab_size:,} tokens for {exam.config.vocab_size:,} rows, texts there and back"
    try:
        exam.check_generates()
        nats, uniform = exam.as_served.best, math.log(exam.config.vocab_size)
    except NotApplicableError as error:
        return verdict(f"{why}; likelihood not looked at: {error}", findings)
    why += f", neutral text at {nats:.2f} nats a token (knowing nothing: {uniform:.1f})"
    if nats > UNIFORM_SHARE * uniform:
        said = (
            f"The weights make nothing of these ids: neutral text has {nats:.2f} nats a token at best, where a model "
            f"that knows nothing has {uniform:.1f}. The tokenizer is of another model, or the weights are damaged or "
            "untrained."
        )
        fix = (
            "Use the tokenizer that was published with the weights; compare with `pellucid doctor MODEL --tokenizer "
            "OTHER`."
        )
        evidence = {"nats": exam.as_served.by_text, "uniform_nats": uniform, "fingerprint": tokenizer.fingerprint}
        findings.append(Finding("error", said, fix, evidence))
    return verdict(why, findings)


def _sizes(exam: ModelExam) -> Iterator[Finding]:
    tokens, rows = exam.tokenizer.vocab_size, exam.config.vocab_size
    is_padded = tokens < rows and not exam.files.metadata  # folders may have rows without a token, GGUF names them all
    if tokens == rows or is_padded:
        return
    beyond = (
        f"ids {rows} to {tokens - 1} have no row" if tokens > rows else f"rows {tokens} to {rows - 1} have no token"
    )
    yield Finding(
        "error",
        f"The tokenizer has {tokens:,} tokens, but the embedding has {rows:,} rows: {beyond}. The two are not of one "
        "model.",
        "Use the tokenizer that was published with the weights, with the tokens that were added in training.",
        {"tokens": tokens, "rows": rows},
    )


def _pre_tokenizer(exam: ModelExam) -> Iterator[Finding]:
    vocabulary = exam.files.vocabulary
    name = exam.files.metadata.get("tokenizer.ggml.pre")
    if not exam.files.metadata or vocabulary.model != "gpt2" or name not in (None, "", "default"):
        return
    yield Finding(
        "warning",
        "The file does not say how text is cut before merging (tokenizer.ggml.pre is "
        f"{'missing' if name is None else repr(name)}): a general rule stands in, and numbers, spaces and some words "
        "get other ids than in training.",
        "Convert the model again with a current converter, or set tokenizer.ggml.pre to the model's own rule.",
        {"tokenizer.ggml.pre": name},
    )


def _round_trip(exam: ModelExam) -> Iterator[Finding]:
    tokenizer = exam.tokenizer
    if tokenizer.vocabulary.model == "bert":
        return  # drops accents, and knows no spaces
    for name, text in ROUND_TRIP.items():
        try:
            back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
            error = None
        except PellucidError as refused:
            back, error = "", str(refused)
        if error is None and (_folded(text) == _folded(back) or tokenizer.unk_id in tokenizer.encode(text)):
            continue
        place = common_prefix(text, back)
        shown = [piece_text(one[place : place + _SHOWN_BYTES].encode(), spaces=False) for one in (text, back)]
        said = error or f"from character {place} on {shown[0]!r} came back as {shown[1]!r}"
        yield Finding(
            "error",
            f"Text does not survive the way to ids and back ({name}): {said}.",
            "The vocabulary is incomplete or damaged: convert the model again, or use the published tokenizer.",
            {"text": name, "character": place, "there": shown[0], "back": shown[1], "error": error},
        )
        return


def _belongs(exam: ModelExam) -> Iterator[Finding]:
    """Against the tokenizer that the caller says it should have."""
    if exam.belongs is None:
        return
    name, other = exam.belongs
    tokenizer = exam.tokenizer
    if tokenizer.fingerprint == other.fingerprint:
        return
    difference = other.vocabulary.difference(tokenizer.vocabulary)
    said = difference or "its pieces are the same, but merges, kinds or rules are not"
    yield Finding(
        "error",
        f"The tokenizer is not that of {name}: {said}.",
        f"Use the tokenizer of {name}, or find out whether the weights were trained with this one.",
        {"fingerprint": tokenizer.fingerprint, "expected": other.fingerprint, "difference": difference},
    )
