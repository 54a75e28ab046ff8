"""BOS twice, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pellucid.errors import PellucidError
from pellucid.glass.doctor.finding import Finding, NotApplicableError, Verdict, verdict
from pellucid.glass.doctor.model_exam import ModelExam
from pellucid.glass.doctor.texts import QUESTION
from pellucid.glass.doctor.trace_exam import TraceExam, count, over
from pellucid.glass.pieces import decoded, piece_text
from pellucid.glass.view import TraceView

CLEAR_NATS = 0.25
"""Nats a token that a BOS must cost or save to be called wrong: SmolLM2, which has none before texts, loses 0.2 with
one; Gemma 3 gains 3.2."""
BEGIN_TEXTS = ("<bos>", "<s>", "<|begin_of_text|>", "<|startoftext|>", "<｜begin▁of▁sentence｜>", "[BOS]")
"""What a BOS is called."""


def double_in_trace(exam: TraceExam) -> Verdict:
    """Prompts that begin with BOS twice, as a token or spelled out behind it."""
    bos_id = exam.tokenizer["bos_id"]
    if bos_id is None:
        raise NotApplicableError("the model has no BOS token")
    return over(
        exam.requests,
        lambda view: _double(view, bos_id),
        lambda n: f"{count(n, 'prompt')} with at most one BOS ({bos_id})",
    )


def _double(view: TraceView, bos_id: int) -> Iterator[Finding]:
    tokens = view.request["tokens"]
    leading = next((place for place, one in enumerate(tokens) if one["id"] != bos_id), len(tokens))
    if leading > 1:
        yield Finding(
            "warning",
            f"The prompt begins with BOS ({bos_id}) {leading} times; the model was trained with one, and answers "
            "something else.",
            "Write no BOS into the prompt or the template where the tokenizer adds one, or pass ids with a single one.",
            {"bos_id": bos_id, "times": leading},
            view.name,
        )
        return
    if leading == 0:
        return
    spelled = decoded(tokens[0]["bytes_b64"])
    rest = b"".join(decoded(one["bytes_b64"]) for one in tokens[1 : 2 + len(spelled)])
    if spelled and rest.lstrip().startswith(spelled):
        name = piece_text(spelled)
        yield Finding(
            "warning",
            f"After the BOS token the prompt spells {name} once more, as plain text: control strings in a prompt are "
            "text, and BOS was put before it already.",
            f"Leave {name} out of the prompt, or give messages and let the chat template write it.",
            {"bos_id": bos_id, "text": name},
            view.name,
        )


def double_in_model(exam: ModelExam) -> Verdict:
    """What a raw prompt and the chat template's begin with."""
    tokenizer = exam.tokenizer
    bos_id = tokenizer.bos_id
    if bos_id is None:
        raise NotApplicableError("the model has no BOS token")
    prompts = {"a raw prompt": tokenizer.encode("Hello")}
    template_writes = False
    note = ""
    if tokenizer.chat_template is not None:
        try:
            from pellucid.tokenizer.chat_template import encode_chat

            chat = encode_chat(tokenizer, [{"role": "user", "content": QUESTION}])
            prompts["the chat template"] = chat.token_ids
            template_writes = chat.text.startswith(tokenizer.token_text(bos_id))
        except PellucidError as error:
            note = f"; the chat template could not be looked at: {error}"
    findings = []
    for name, ids in prompts.items():
        times = next((place for place, token_id in enumerate(ids) if token_id != bos_id), len(ids))
        if times > 1:
            findings.append(
                Finding(
                    "warning",
                    f"{name[0].upper()}{name[1:]} begins with BOS ({bos_id}) {times} times; the model was trained "
                    "with one.",
                    "Take bos_token out of the chat template"
                    + (", or set add_bos_token to false." if times == 2 else "."),
                    {"bos_id": bos_id, "where": name, "times": times},
                )
            )
    if template_writes and tokenizer.add_bos:
        note += (
            "; template and tokenizer both write it: Pellucid puts one, engines that encode the template's text as a "
            "prompt put two"
        )
    starts = " and ".join(prompts)
    return verdict(
        f"{starts}: {'at most one' if not findings else 'more than one'} BOS ({bos_id}) at the start{note}", findings
    )


def missing_in_trace(exam: TraceExam) -> Verdict:
    """Prompts without the BOS that the tokenizer puts before texts, which only ids given by the caller can be."""
    told = exam.tokenizer
    bos_id = told["bos_id"]
    if bos_id is None:
        raise NotApplicableError("the model has no BOS token")
    if not told["add_bos"]:
        if exam.model is not None:
            return missing_in_model(exam.model)
        raise NotApplicableError("the model's file asks for none; with -m MODEL its likelihood is compared")
    return over(
        exam.requests,
        lambda view: _missing(exam, view, bos_id),
        lambda n: f"{count(n, 'prompt')} looked at for the BOS ({bos_id}) that the tokenizer puts first",
    )


def _missing(exam: TraceExam, view: TraceView, bos_id: int) -> Iterator[Finding]:
    ids = [one["id"] for one in view.request["tokens"]]
    if not ids or ids[0] == bos_id:
        return
    evidence: dict[str, Any] = {"bos_id": bos_id, "first_id": ids[0]}
    compared = ""
    if exam.model is not None and 8 <= len(ids) < exam.model.llm.max_model_len - 8:
        alone, behind = exam.model.logprobs([ids, [bos_id, *ids]])
        without, with_bos = (-sum(row[-len(alone) :]) / len(alone) for row in (alone, behind))
        evidence |= {"nats_without": without, "nats_with": with_bos}
        compared = f" The prompt has {without:.2f} nats a token without it and {with_bos:.2f} with it."
    yield Finding(
        "warning",
        f"The prompt does not begin with BOS ({bos_id}), which the model expects: answers get much worse.{compared}",
        f"Put {bos_id} before the ids, or give text and let the tokenizer do it.",
        evidence,
        view.name,
    )


def missing_in_model(exam: ModelExam) -> Verdict:
    """Whether neutral texts are more likely the other way than the file asks for, or after another BOS."""
    exam.check_generates()
    tokenizer = exam.tokenizer
    others = {
        text: tokenizer.special_tokens[text]
        for text in BEGIN_TEXTS
        if tokenizer.special_tokens.get(text) not in (None, tokenizer.bos_id)
    }
    if tokenizer.bos_id is None and not others:
        raise NotApplicableError("the model has no BOS token")
    served, without = exam.as_served.nats, exam.without_bos.nats
    why = f"neutral text has {without:.2f} nats a token alone"
    if tokenizer.bos_id is not None:
        why += f" and {exam.with_bos.nats:.2f} after BOS; the file "
        why += "puts it before prompts" if tokenizer.add_bos else "puts none"
    evidence: dict[str, Any] = {
        "bos_id": tokenizer.bos_id,
        "add_bos": tokenizer.add_bos,
        "nats_with": None if tokenizer.bos_id is None else exam.with_bos.nats,
        "nats_without": without,
    }
    findings = [*_wanted(exam, evidence), *_of_other_texts(exam, served, others, evidence)]
    return verdict(why, findings)


def _wanted(exam: ModelExam, evidence: dict[str, Any]) -> Iterator[Finding]:
    """BOS where there is none, or none where there is one."""
    if exam.tokenizer.bos_id is None:
        return
    gain = exam.without_bos.nats - exam.with_bos.nats
    if not exam.tokenizer.add_bos and gain > CLEAR_NATS:
        yield Finding(
            "warning",
            f"The file puts no BOS before prompts, but after one neutral text is {gain:.2f} nats a token more likely.",
            "Set tokenizer.ggml.add_bos_token (or add_bos_token in tokenizer_config.json) to true.",
            evidence,
        )
    if exam.tokenizer.add_bos and gain < -CLEAR_NATS:
        yield Finding(
            "warning",
            f"The file puts BOS ({exam.tokenizer.bos_id}) before prompts, but neutral text is {-gain:.2f} nats a "
            "token more likely without it.",
            "Check bos_token_id: it names another token than in training; or set add_bos_token to false.",
            evidence,
        )


def _of_other_texts(
    exam: ModelExam, served: float, others: dict[str, int], evidence: dict[str, Any]
) -> Iterator[Finding]:
    """Tokens that are called as a BOS is, and that the weights like better than what is served."""
    for text, token_id in others.items():
        nats = exam.likelihood([token_id]).nats
        if served - nats > CLEAR_NATS:
            yield Finding(
                "warning",
                f"bos_token_id is {exam.tokenizer.bos_id}, but after {text} ({token_id}) neutral text is "
                f"{served - nats:.2f} nats a token more likely than as prompts are served.",
                f"Set bos_token_id to {token_id} and add_bos_token to true.",
                {**evidence, "other": text, "other_id": token_id, "nats_after_other": nats},
            )
