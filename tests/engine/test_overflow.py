"""Prompts that do not fit: what is left out, what stays, and that the answer tells."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mock_model import BOS, ByteTokenizer, make_engine

from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.compress import MARK, choose, split_units
from pellucid.engine.llm import LLM
from pellucid.engine.overflow import FittedPrompt, Fitting, fit_chat, fit_prompt, prompt_budget
from pellucid.errors import ContextLengthExceededError, InvalidParameterError
from pellucid.outputs import Overflow, RemovedTokens
from pellucid.sampling_params import OVERFLOW_POLICIES, SamplingParams

POLICIES = [policy for policy in OVERFLOW_POLICIES if policy != "error"]
TOKENIZER = ByteTokenizer()


def carry_out(fitting: Fitting, surprising: bytes = b"") -> FittedPrompt:
    """Every token is expected but those of `surprising`."""
    try:
        windows = next(fitting)
        while True:
            scores = [[-9.0 if token in surprising else -0.1 for token in ids[1:]] for ids in windows]
            windows = fitting.send(scores)
    except StopIteration as done:
        fitted: FittedPrompt = done.value
        return fitted


def fit(text: str, policy: str, max_model_len: int, surprising: bytes = b"", **params: Any) -> FittedPrompt:
    ids = TOKENIZER.encode(text)
    chosen = SamplingParams(overflow=policy, **params)  # type: ignore[arg-type]
    return carry_out(fit_prompt(ids, text, chosen, TOKENIZER, max_model_len), surprising)


@given(st.text(min_size=1, max_size=300), st.sampled_from(POLICIES), st.integers(40, 200), st.integers(1, 30))
def test_what_is_left_fits_and_the_rest_is_told(text: str, policy: str, max_model_len: int, max_tokens: int) -> None:
    ids = TOKENIZER.encode(text)
    fitted = fit(text, policy, max_model_len, b"xyz", max_tokens=max_tokens)
    if len(ids) + max_tokens <= max_model_len:
        assert fitted == FittedPrompt(ids, text)
        return
    overflow = fitted.overflow
    assert overflow is not None
    assert len(fitted.token_ids) == overflow.num_kept_tokens <= max_model_len - max_tokens
    assert overflow.num_original_tokens == len(ids)
    kept, at = [], 0
    for number, part in enumerate(overflow.removed):
        assert at <= part.start < part.end
        piece = ids[at : part.start]
        kept += piece
        if policy in ("truncate_middle", "compress") and part.end < len(ids) and (piece or number):
            kept += TOKENIZER.encode(MARK)
        at = part.end
    assert kept + ids[at:] == list(fitted.token_ids)


@given(st.text(st.sampled_from("aé漢🦙"), min_size=60, max_size=200), st.sampled_from(POLICIES[:3]))
def test_no_character_is_cut(text: str, policy: str) -> None:
    assert "\ufffd" not in (fit(text, policy, 50, max_tokens=7).text or "")


def test_each_end() -> None:
    text = "0123456789" * 10
    assert fit(text, "truncate_left", 30, max_tokens=10).text == text[-20:]
    assert fit(text, "truncate_right", 30, max_tokens=10).text == text[:20]
    assert fit(text, "truncate_middle", 30, max_tokens=10).text == text[:6] + MARK + text[-7:]


def test_bos_stays() -> None:
    ids = [BOS, *TOKENIZER.encode("0123456789" * 10)]
    for policy in POLICIES:
        params = SamplingParams(overflow=policy, max_tokens=10)
        fitted = carry_out(fit_prompt(ids, None, params, TOKENIZER, 60))
        assert fitted.token_ids[0] == BOS
        assert BOS not in fitted.token_ids[1:]
        assert fitted.overflow is not None
        assert fitted.overflow.removed[0].start >= 1


def test_the_answer_has_room() -> None:
    assert prompt_budget(SamplingParams(max_tokens=7), 100) == 93
    assert prompt_budget(SamplingParams(), 100) == 75
    assert prompt_budget(SamplingParams(), 8192) == 8192 - 256
    assert prompt_budget(SamplingParams(min_tokens=60), 100) == 40
    with pytest.raises(ContextLengthExceededError):
        fit("0123456789" * 10, "truncate_left", 30, max_tokens=28)


def test_compress_keeps_what_was_not_expected() -> None:
    filler = "aaa bbb ccc ddd eee. "
    text = "Read this text now. " + filler * 10 + "the key is zzqzxq. " + filler * 10 + "What is the key?"
    fitted = fit(text, "compress", 140, b"zqx", max_tokens=10)
    assert fitted.text is not None
    assert fitted.text.startswith("Read this text")
    assert fitted.text.endswith("What is the key?")
    assert "the key is zzqzxq." in fitted.text
    assert MARK in fitted.text


def test_compress_reads_long_texts_in_windows_that_overlap() -> None:
    ids = TOKENIZER.encode("a" * 700)
    fitting = fit_prompt(ids, None, SamplingParams(overflow="compress", max_tokens=4), TOKENIZER, 200)
    windows = next(fitting)
    assert all(len(window) <= 199 for window in windows)
    assert sum(map(len, windows)) > 700
    with pytest.raises(StopIteration):
        fitting.send([[-1.0] * (len(window) - 1) for window in windows])
    with pytest.raises(InvalidParameterError, match="at most 16 times"):
        fit("a" * 1000, "compress", 40, max_tokens=4)


@given(st.lists(st.floats(0, 20), min_size=1, max_size=400), st.integers(8, 300), st.integers(0, 8))
def test_chosen_units_and_marks_fit(surprisal: list[float], budget: int, mark: int) -> None:
    text = ("ab cd. efg hi, " * 40)[: len(surprisal)]
    units = split_units(TOKENIZER.encode(text), TOKENIZER)
    assert [start for start, _ in units] == [0, *(end for _, end in units[:-1])]
    spans = choose(units, surprisal, budget, mark)
    assert spans == sorted(spans)
    gaps = len(spans) - 1 + (spans[0][0] > 0) + (spans[-1][1] < len(text))
    if len(spans) > 1 or spans[0] in units:
        assert sum(end - start for start, end in spans) + mark * gaps <= budget + mark * 2
    assert all(not math.isnan(end) for _, end in spans)


def render(messages: list[dict[str, Any]]) -> tuple[list[int], str]:
    text = "".join(f"<{m['role']}>{m['content']}</>" for m in messages) + "<assistant>"
    return TOKENIZER.encode(text), text


CHAT = [
    {"role": "system", "content": "Be brief."},
    *({"role": role, "content": f"{role} {n} " + "x" * 20} for n in range(4) for role in ("user", "assistant")),
    {"role": "user", "content": "the last question"},
]


def fit_messages(policy: str, max_model_len: int, messages: Any = CHAT, **params: Any) -> FittedPrompt:
    chosen = SamplingParams(overflow=policy, max_tokens=10, **params)  # type: ignore[arg-type]
    return carry_out(fit_chat(render, messages, chosen, TOKENIZER, max_model_len))


@pytest.mark.parametrize(
    ("policy", "left"), [("truncate_left", [2, 3]), ("truncate_right", [0, 1]), ("truncate_middle", [0, 3])]
)
def test_whole_turns_go_first(policy: str, left: list[int]) -> None:
    fitted = fit_messages(policy, 260)
    text, overflow = fitted.text or "", fitted.overflow
    assert text.startswith("<system>Be brief.</>")
    assert text.endswith("<user>the last question</><assistant>")
    assert [n for n in range(4) if f"user {n}" in text] == left
    assert [n for n in range(4) if f"assistant {n}" in text] == left, "an answer goes with its question"
    assert overflow is not None
    gone = sorted(1 + 2 * n + part for n in range(4) if n not in left for part in (0, 1))
    assert [part.message for part in overflow.removed] == gone
    assert len(fitted.token_ids) == overflow.num_kept_tokens <= 250


@pytest.mark.parametrize("policy", POLICIES)
def test_then_the_longest_text_is_cut_and_the_form_stays(policy: str) -> None:
    question = "Summarize: " + "one two three. " * 40 + "What did it say?"
    fitted = fit_messages(policy, 200, [CHAT[0], {"role": "user", "content": question}])
    text = fitted.text or ""
    assert text.startswith("<system>Be brief.</><user>")
    assert text.endswith("</><assistant>")
    assert len(fitted.token_ids) <= 190
    assert fitted.overflow is not None
    assert {part.message for part in fitted.overflow.removed} == {1}
    if policy in ("truncate_middle", "compress"):
        assert "<user>Summarize: " in text
        assert "What did it say?</>" in text


def test_compress_shortens_earlier_turns_before_the_last_question() -> None:
    fitted = fit_messages("compress", 290)
    assert (fitted.text or "").endswith("<user>the last question</><assistant>")
    assert (fitted.text or "").startswith("<system>Be brief.</><user>")
    assert len(fitted.token_ids) <= 280


def test_a_template_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ContextLengthExceededError):
        fit_messages("truncate_left", 30)


@given(st.lists(st.tuples(st.sampled_from(("user", "assistant", "system")), st.text(max_size=120)), min_size=1))
def test_any_conversation_fits_or_is_refused(turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": text} for role, text in turns]
    for policy in POLICIES:
        try:
            fitted = fit_messages(policy, 150, messages)
        except (ContextLengthExceededError, InvalidParameterError):
            continue
        assert len(fitted.token_ids) <= 140


def test_the_output_tells() -> None:
    engine = make_engine(max_model_len=64)
    params = SamplingParams(overflow="truncate_left", max_tokens=4, ignore_eos=True)
    with LLM.from_engine(engine) as llm:
        output = llm.generate("abcdefg" * 20, params)[0]
        assert output.overflow == Overflow("truncate_left", 140, 60, (RemovedTokens(0, 80),))
        assert output.prompt == ("abcdefg" * 20)[80:]
        assert len(output.prompt_token_ids) == 60
        assert llm.generate("abc", params)[0].overflow is None
        with pytest.raises(ContextLengthExceededError):
            llm.generate("abcdefg" * 20, SamplingParams(max_tokens=4))
        stream = list(llm.stream("abcdefg" * 20, params))
        assert stream[0].overflow == output.overflow


def test_the_engine_itself_truncates_and_says_who_compresses() -> None:
    engine = make_engine(max_model_len=64)
    engine.add_request("r", "abcdefg" * 20, SamplingParams(overflow="truncate_right", max_tokens=4))
    [output] = engine.step()
    assert output.prompt == ("abcdefg" * 20)[:60]
    with pytest.raises(InvalidParameterError, match="steps of its own"):
        engine.add_request("s", "abcdefg" * 20, SamplingParams(overflow="compress", max_tokens=4))


def test_llm_and_async_llm_compress_alike() -> None:
    text = "abc def. " * 5 + "gfe dcb. " + "abc def. " * 20
    params = SamplingParams(overflow="compress", max_tokens=4, temperature=0, ignore_eos=True)
    with LLM.from_engine(make_engine(max_model_len=100)) as llm:
        expected = llm.generate(text, params)[0]
    seen = []

    async def use() -> Any:
        llm = AsyncLLM(make_engine(max_model_len=100), observer=lambda output: seen.append(output.request_id))
        outputs = [output async for output in llm.generate(text, params, request_id="mine")]
        await llm.close()
        return outputs

    outputs = asyncio.run(use())
    assert outputs[0].prompt == expected.prompt
    assert outputs[0].overflow == expected.overflow
    assert expected.overflow is not None
    assert expected.overflow.num_kept_tokens <= 96
    assert set(seen) == {"mine"}, "scoring is nobody's request"


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="overflow is 'drop', but must be one of error, truncate_left"):
        SamplingParams(overflow="drop")  # type: ignore[arg-type]
