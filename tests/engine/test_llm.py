"""LLM on the mock: generate, chat, stream, abort, Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
import sys
import types
from typing import Any

import numpy as np
import pytest
from mock_model import ByteTokenizer, MockModel

from pellucid.config import EngineArgs
from pellucid.engine.interrupt import interrupt_after_step
from pellucid.engine.llm import LLM
from pellucid.errors import ContextLengthExceededError, InvalidParameterError, PellucidError
from pellucid.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def make_llm() -> LLM:
    args = EngineArgs(model="mock", kv_cache_memory_bytes=2**16, max_num_batched_tokens=16, seed=0)
    return LLM.from_parts(MockModel(), ByteTokenizer(), args)


def test_generate_takes_text_texts_and_ids() -> None:
    llm = make_llm()
    one = llm.generate("abc", GREEDY)
    assert [output.prompt for output in one] == ["abc"]
    several = llm.generate(["x", "abc", "yy"], GREEDY)
    assert [output.prompt for output in several] == ["x", "abc", "yy"]
    assert several[1].outputs[0].token_ids == one[0].outputs[0].token_ids
    ids = llm.generate([[97, 98, 99], [120]], GREEDY)
    assert [output.prompt for output in ids] == [None, None]
    assert ids[0].outputs[0].text == one[0].outputs[0].text
    assert llm.generate([97, 98, 99], GREEDY)[0].outputs[0].text == one[0].outputs[0].text
    assert llm.generate(np.array([97, 98, 99]), GREEDY)[0].outputs[0].text == one[0].outputs[0].text
    assert llm.generate([], GREEDY) == []
    llm.engine.check_integrity()


def test_generate_takes_one_params_or_one_each() -> None:
    llm = make_llm()
    outputs = llm.generate(["a", "b"], [SamplingParams(max_tokens=2, ignore_eos=True), GREEDY])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 12]
    with pytest.raises(InvalidParameterError, match="one SamplingParams or a list of 2"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(InvalidParameterError, match="sampling_params"):
        llm.generate("a", {"temperature": 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("prompts", [3, None, ["a", 3], {"a": 1}])
def test_prompts_that_are_none_are_refused(prompts: Any) -> None:
    with pytest.raises(InvalidParameterError, match="prompts must be a string"):
        make_llm().generate(prompts, GREEDY)


def test_one_bad_prompt_refuses_the_call_and_nothing_stays_behind() -> None:
    llm = make_llm()
    with pytest.raises(ContextLengthExceededError):
        llm.generate(["good", "x" * 300, "good"], GREEDY)
    llm.engine.check_integrity()
    assert not llm.engine.has_unfinished_requests()
    assert llm.stats.num_steps == 0, "checked before any work"


def test_unknown_arguments_are_refused_by_name() -> None:
    with pytest.raises(
        InvalidParameterError, match=r"LLM does not know max_len, tempo; its arguments are model, max_mod"
    ):
        LLM(model="mock", tempo=1, max_len=5)


def test_progress_is_told() -> None:
    seen: list[tuple[int, int]] = []
    make_llm().generate(["a", "b", "c"], GREEDY, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_stream_joins_to_what_generate_gives() -> None:
    llm = make_llm()
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=40, ignore_eos=True, logprobs=1, stop="gg")
    whole = llm.generate("abc", params)[0].outputs[0]
    deltas = [output.outputs[0] for output in llm.stream("abc", params)]
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [i for delta in deltas for i in delta.token_ids] == whole.token_ids
    assert [row for delta in deltas for row in delta.logprobs or []] == whole.logprobs
    assert deltas[-1].finish_reason == whole.finish_reason
    assert deltas[-1].cumulative_logprob == whole.cumulative_logprob
    assert all(delta.finish_reason is None for delta in deltas[:-1])


def test_streams_and_generate_can_take_turns() -> None:
    llm = make_llm()
    alone = {text: llm.generate(text, GREEDY)[0].outputs[0].text for text in ("one", "two", "three")}
    first, second = llm.stream("one", GREEDY), llm.stream("two", GREEDY)
    texts = {"one": next(first).outputs[0].text, "two": next(second).outputs[0].text}
    assert llm.generate("three", GREEDY)[0].outputs[0].text == alone["three"]
    texts["two"] += "".join(output.outputs[0].text for output in second)
    texts["one"] += "".join(output.outputs[0].text for output in first)
    assert texts == {"one": alone["one"], "two": alone["two"]}
    llm.engine.check_integrity()


def test_a_stream_is_checked_when_it_is_made() -> None:
    with pytest.raises(ContextLengthExceededError):
        make_llm().stream("x" * 300)


def test_closing_or_dropping_a_stream_frees_its_blocks() -> None:
    llm = make_llm()
    stream = llm.stream("abc", GREEDY)
    next(stream)
    assert llm.stats.kv_blocks_used == 1
    stream.close()
    assert llm.stats.kv_blocks_used == 0
    assert list(stream) == []
    stream = llm.stream("abc", GREEDY)  # never read
    del stream
    gc.collect()
    llm.engine.check_integrity()
    with llm.stream("abc", GREEDY) as stream:
        next(stream)
    llm.engine.check_integrity()
    assert not llm.engine.has_unfinished_requests()


def test_abort_ends_a_stream_with_its_reason() -> None:
    llm = make_llm()
    stream = llm.stream("abc", SamplingParams(allowed_token_ids=[97], stop="aaab"), request_id="mine")
    next(stream)
    llm.abort("mine")
    llm.abort("mine")
    rest = list(stream)
    assert [output.outputs[0].finish_reason for output in rest] == ["abort"]
    assert rest[0].outputs[0].text == "a"
    llm.engine.check_integrity()


def test_ctrl_c_aborts_what_runs_and_the_engine_goes_on() -> None:
    llm = make_llm()
    expected = llm.generate("abc", GREEDY)[0].outputs[0].text
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    other = llm.stream("other", long)
    received = [next(other)]
    model = llm.engine.model
    assert isinstance(model, MockModel)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for use in (lambda: llm.generate(["abc", "d"], GREEDY), lambda: list(llm.stream("abc", GREEDY))):
            model.on_forward = lambda batch: os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                use()
            model.on_forward = None
            assert llm.stats.num_running == 1, "the other stream only"
            assert llm.generate("abc", GREEDY)[0].outputs[0].text == expected
    finally:
        signal.signal(signal.SIGINT, previous)
    received += list(other)
    assert [i for output in received for i in output.outputs[0].token_ids] == [
        i for output in llm.stream("other", long) for i in output.outputs[0].token_ids
    ]
    llm.engine.check_integrity()


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        finished = False
        with pytest.raises(KeyboardInterrupt), interrupt_after_step():  # noqa: PT012
            os.kill(os.getpid(), signal.SIGINT)
            finished = True
        assert finished
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, previous)


def test_close_refuses_further_use() -> None:
    with make_llm() as llm:
        stream = llm.stream("abc", GREEDY)
        next(stream)
    with pytest.raises(PellucidError, match="closed"):
        llm.generate("abc")
    del stream


def test_chat_goes_through_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options reach encode_chat; the ids are used as they are and the text is the prompt shown."""
    calls: list[dict[str, Any]] = []

    def encode_chat(tokenizer: Any, messages: Any, **options: Any) -> Any:
        calls.append(options)
        text = "|".join(message["content"] for message in messages)
        return types.SimpleNamespace(text=text, token_ids=list(text.encode()))

    stub = types.ModuleType("pellucid.tokenizer.chat_template")
    stub.encode_chat = encode_chat  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pellucid.tokenizer.chat_template", stub)
    llm = make_llm()
    question, other = [{"role": "user", "content": "abc"}], [{"role": "user", "content": "xy"}]
    output = llm.chat(question, GREEDY)[0]
    assert output.prompt == "abc"
    assert output.outputs[0].text == llm.generate("abc", GREEDY)[0].outputs[0].text
    assert [output.prompt for output in llm.chat([question, other], GREEDY)] == ["abc", "xy"]
    assert "".join(delta.outputs[0].text for delta in llm.stream(question, GREEDY)) == output.outputs[0].text
    llm.chat(question, GREEDY, continue_final_message=True, chat_template="{{ 1 }}", chat_template_kwargs={"deep": 1})
    assert calls[-1]["continue_final_message"] is True
    assert calls[-1]["chat_template"] == "{{ 1 }}"
    assert calls[-1]["deep"] == 1
    with pytest.raises(InvalidParameterError, match="chat_template_kwargs has tools"):
        llm.chat(question, GREEDY, chat_template_kwargs={"tools": []})


def test_public_names_are_lazy_and_complete() -> None:
    import pellucid

    for name in pellucid.__all__:
        assert getattr(pellucid, name) is not None
    assert pellucid.LLM is LLM
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        pellucid.Nothing  # noqa: B018
