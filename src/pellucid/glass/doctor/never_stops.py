"""Answers that do not end: the token that closes a turn is no end token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from pellucid.errors import ChatTemplateError, PellucidError
from pellucid.glass.doctor.finding import Finding, NotApplicableError, Verdict, verdict
from pellucid.glass.doctor.model_exam import ModelExam
from pellucid.glass.doctor.texts import ANSWER, QUESTION
from pellucid.glass.doctor.trace_exam import TraceExam, count, over, param
from pellucid.glass.pieces import decoded, piece_text
from pellucid.glass.view import TraceView
from pellucid.tokenizer.chat_template import ChatTemplate, encode_chat, render_chat
from pellucid.tokenizer.vocabulary import END_TEXTS

HARDLY = 0.05
"""Probability below which the model does not mean a token."""


def in_trace(exam: TraceExam) -> Verdict:
    """The template's end token against the end ids, and answers that ran into a wall."""
    return over(
        exam.views,
        lambda view: _never_stops(exam, view),
        lambda n: f"{count(n, 'answer')} against the end ids {_listed(exam.tokenizer['eos_ids'])}",
    )


def _listed(ids: list[int] | frozenset[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "(none)"


def _never_stops(exam: TraceExam, view: TraceView) -> Iterator[Finding]:
    ends = {*exam.tokenizer["eos_ids"], *(param(view, "stop_token_ids") or [])}
    ignores = bool(param(view, "ignore_eos", False))
    drawn = [one["id"] for one in view.samples]
    closing = None if view.request["template"] is None else _closing_of_trace(view)
    if closing is not None and closing[1] not in ends:
        text, token_id = closing
        places = [one["i"] for one in view.samples if one["id"] == token_id]
        after = f" It was drawn at position {places[0]}, and the answer went on." if places else ""
        yield Finding(
            "error",
            f"The chat template closes an answer with {text} ({token_id}), which is not among the end ids "
            f"{_listed(frozenset(ends))}: answers do not stop where they should.{after}",
            f"Pass stop_token_ids [{token_id}], and have {token_id} named as eos_token_id in the model's file.",
            {"token": text, "id": token_id, "end_ids": sorted(ends), "drawn_at": places[:10]},
            view.name,
        )
    finish = view.finish
    if finish is None:
        return
    if not ends and finish["reason"] == "length" and not param(view, "stop"):
        yield Finding(
            "warning",
            "The model names no end token and the request no stop string: the answer could only end at its limit.",
            "Pass stop or stop_token_ids.",
            {"end_ids": [], "n_output": finish["n_output"]},
            view.name,
        )
    full = finish["n_prompt"] + finish["n_output"]
    if finish["reason"] == "length" and param(view, "max_tokens") is None and full == exam.max_model_len:
        yield Finding(
            "warning",
            f"The answer ran to the end of the context ({full:,} tokens) without an end token.",
            "Set max_tokens; see whether the prompt goes through the model's chat template.",
            {"n_prompt": finish["n_prompt"], "n_output": finish["n_output"], "max_model_len": full},
            view.name,
        )
    ended = next((place for place, token_id in enumerate(drawn[:-1]) if token_id in exam.tokenizer["eos_ids"]), None)
    if ignores and ended is not None:
        yield Finding(
            "info",
            f"ignore_eos is on: the answer would have ended after {ended + 1} of {len(drawn)} tokens.",
            "Leave ignore_eos off where answers are read, not timed.",
            {"end_at": view.samples[ended]["i"], "n_output": len(drawn)},
            view.name,
        )


def _closing_of_trace(view: TraceView) -> tuple[str, int] | None:
    """Text and id of the token that closes an answer in the trace's template; None where the trace does not tell."""
    specials = {
        decoded(one["bytes_b64"]).decode("utf-8", "replace"): one["id"]
        for one in view.request["tokens"]
        if one["kind"] == "special"
    }
    template = view.request["template"]
    if not isinstance(template, str) or not specials:
        return None
    try:
        # names of the special tokens that only the tokenizer knows stay empty
        prompt = ChatTemplate(template).render(_conversation(), add_generation_prompt=False)
    except ChatTemplateError:
        return None
    text = _closing_text(prompt.text, specials)
    # the engine knows these, and takes one for no end only where it means something else (gpt-oss: <|end|>)
    return None if text is None or text in END_TEXTS else (text, specials[text])


def _conversation() -> list[dict[str, str]]:
    return [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]


def _closing_text(rendered: str, specials: dict[str, int]) -> str | None:
    """The special token behind the answer."""
    at = rendered.rfind(ANSWER)
    if at < 0:
        return None
    tail = rendered[at + len(ANSWER) :].lstrip()
    return max((text for text in specials if text and tail.startswith(text)), key=len, default=None)


@dataclass(frozen=True, slots=True)
class _Closing:
    """How a template closes an answer."""

    token_id: int | None
    text: str
    """The token's, or what stands there in plain text."""
    prefix: list[int]
    """Ids of the conversation up to the answer's last word."""


def in_model(exam: ModelExam) -> Verdict:
    """The template's end token, and what the model itself would end a whole answer with."""
    exam.check_generates()
    tokenizer = exam.tokenizer
    ends = sorted(tokenizer.eos_ids)
    if not ends:
        said = "The model names no end token at all: every answer runs to its limit."
        fix = "Set tokenizer.ggml.eos_token_id (or eos_token_id in generation_config.json), or pass stop_token_ids."
        return verdict("the end ids", [Finding("error", said, fix, {"end_ids": []})])
    if tokenizer.chat_template is None:
        return verdict(f"end ids {_listed(tokenizer.eos_ids)}; there is no chat template")
    try:
        closing = _closing_of_model(exam)
    except ChatTemplateError as error:
        return verdict(f"end ids {_listed(tokenizer.eos_ids)}; the chat template cannot be looked at: {error}")
    if closing.token_id is None:
        behind = f"closes an answer with {piece_text(closing.text.encode())!r}" if closing.text else "leaves it open"
        return verdict(f"end ids {_listed(tokenizer.eos_ids)}; the chat template {behind}, no special token")
    return _judged(exam, closing, ends)


def _judged(exam: ModelExam, closing: _Closing, ends: list[int]) -> Verdict:
    assert closing.token_id is not None
    odds: dict[int, float] = {}
    with suppress(NotApplicableError, PellucidError):  # the ids alone decide then
        odds = exam.probability_after(closing.prefix, list(dict.fromkeys([closing.token_id, *ends])))
    ending = sum(odds.get(token_id, 0.0) for token_id in ends)
    why = (
        f"the chat template closes an answer with {closing.text} ({closing.token_id}), end ids "
        f"{_listed(frozenset(ends))}"
    )
    if odds:
        why += f"; after a whole answer the model ends with probability {ending:.2f}"
    if closing.token_id in ends:
        return verdict(why)
    meant = odds.get(closing.token_id)
    if meant is not None and meant < max(HARDLY, ending):
        return verdict(f"{why}, and with {closing.text} {meant:.2f}: it is not how the model ends")
    said = (
        f"The chat template closes an answer with {closing.text} ({closing.token_id}), which is not among the end ids "
        f"{_listed(frozenset(ends))}: answers do not stop."
    )
    if meant is not None:
        said += f" After a whole answer the model gives it {meant:.2f}, and the end ids {ending:.2f} together."
    fix = (
        f"Name {closing.token_id} as eos_token_id or eot_token_id in the file (generation_config.json for a folder); "
        f"until then pass --stop-token-ids {closing.token_id}."
    )
    evidence = {
        "token": closing.text,
        "id": closing.token_id,
        "end_ids": ends,
        "p_token": meant,
        "p_end_ids": ending if odds else None,
    }
    return verdict(why, [Finding("error", said, fix, evidence)])


def _closing_of_model(exam: ModelExam) -> _Closing:
    """Raises `ChatTemplateError` where the template does not show an answer."""
    tokenizer = exam.tokenizer
    prompt = render_chat(tokenizer, _conversation(), add_generation_prompt=False)
    at = prompt.text.rfind(ANSWER)
    if at < 0:
        raise ChatTemplateError("it does not show the assistant's message")
    tail = prompt.text[at + len(ANSWER) :]
    text = _closing_text(prompt.text, tokenizer.special_tokens)
    prefix = encode_chat(tokenizer, _conversation(), continue_final_message=True).token_ids
    if text is None:
        return _Closing(None, tail.strip()[:32], prefix)
    return _Closing(tokenizer.special_tokens[text], text, prefix)
