"""LLM on the mock: generate, chat, stream, abort, Ctrl-C."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from mock_model import ByteTokenizer, MockModel

from pellucid.config import EngineArgs
from pellucid.engine.interrupt import interrupt_after_step
from pellucid.engine.llm import LLM
from pellucid.errors import ContextLengthExceededError, InvalidParameterError, PellucidError
from pellucid.sampling_params import SamplingParams
from pellucid.tokenizer.shielding import ControlStrings

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


class ChatTokenizer(ByteTokenizer):
    """The same with what a chat asks for besides."""

    def __init__(self) -> None:
        super().__init__()
        self.chat_template: Any = "{{ messages[0].content }}"
        self.chat_templates: dict[str, str] = {}
        self.control_strings = ControlStrings({})

    def encode_with_protected(self, text: str, protected: Any, **options: Any) -> list[int]:
        return self.encode(text)


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
    with pytest.raises(InvalidParameterError, match=r"prompts must be a string|prompts has 3 at position 1"):
        make_llm().generate(prompts, GREEDY)


@pytest.mark.parametrize("prompt", [3, None, b"abc", {1: 2}, {97}, iter([97]), np.array(5), bytearray(b"a"), len])
def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:
    llm = make_llm()
    with pytest.raises(InvalidParameterError, match=r"prompt is .*, but must be text or a list of token ids"):
        llm.stream(prompt, GREEDY)
    for prompts in (prompt, ["a", prompt]):
        with pytest.raises(InvalidParameterError, match="prompt"):
            llm.generate(prompts, GREEDY)
    llm.engine.check_integrity()


@pytest.mark.parametrize("messages", [3, None, "hi", b"hi", [], [3], [None], ["hi"], [[{"role": "user"}], 3]])
def test_messages_that_are_none_are_refused(messages: Any) -> None:
    with pytest.raises(InvalidParameterError, match="messages"):
        LLM.from_parts(MockModel(), ChatTokenizer()).chat(messages, GREEDY)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("chat_template", value) for value in (3, b"x", ["x"])),
        *(("tools", value) for value in (3, "x", {"name": "f"}, [3])),
        *(("chat_template_kwargs", value) for value in (3, [("a", 1)], {3: 1})),
        *(("add_generation_prompt", value) for value in (1, "no")),
        *(("continue_final_message", value) for value in (None, 1, "yes")),
        *(("progress", value) for value in (None, 3, "yes")),
    ],
)
def test_options_of_the_wrong_kind_are_refused_by_name(name: str, value: Any) -> None:
    llm = LLM.from_parts(MockModel(), ChatTokenizer())
    with pytest.raises(InvalidParameterError, match=f"^{name} ") as caught:
        llm.chat([{"role": "user", "content": "abc"}], GREEDY, **{name: value})
    assert caught.value.field == name
    llm.engine.check_integrity()


@pytest.mark.parametrize("params", [{}, [], 0, False, "greedy"])
def test_params_of_a_stream_that_are_none_are_refused(params: Any) -> None:
    with pytest.raises(InvalidParameterError, match="sampling_params is a"):
        make_llm().stream("abc", params)


def test_a_name_taken_by_the_caller_is_not_given_again() -> None:
    llm = make_llm()
    stream = llm.stream("abc", GREEDY, request_id="request-0")
    assert llm.generate("abc", GREEDY)[0].request_id == "request-1"
    assert len(list(stream)) == 12


def test_one_bad_prompt_refuses_the_call_and_nothing_stays_behind() -> None:
    llm = make_llm()
    with pytest.raises(ContextLengthExceededError):
        llm.generate(["good", "x" * 300, "good"], GREEDY)
    llm.engine.check_integrity()
    assert not llm.engine.has_unfinished_requests()
    assert llm.stats.num_steps == 0, "checked before any work"


def test_unknown_arguments_are_refused_by_name() -> None:
    with pytest.raises(
        InvalidParameterError, match=r"LLM does not know max_len, tempo; its arguments are model, quantization, max_mod"
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


def test_ctrl_c_while_requests_are_queued_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make_llm()
    add_request = llm.engine.add_request

    def interrupted(*args: Any, **options: Any) -> None:
        add_request(*args, **options)
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(llm.engine, "add_request", interrupted)
    try:
        for use in (lambda: llm.generate(["abc", "d"], GREEDY), lambda: llm.stream("abc", GREEDY)):
            with pytest.raises(KeyboardInterrupt):
                use()
            gc.collect()
            assert not llm.engine.has_unfinished_requests()
            llm.engine.check_integrity()
    finally:
        signal.signal(signal.SIGINT, previous)


def test_several_threads_share_the_steps() -> None:
    llm = make_llm()
    alone = {text: llm.generate(text, GREEDY)[0].outputs[0].text for text in ("one", "two", "three", "four")}

    def use(text: str) -> bool:
        for _ in range(10):
            with llm.stream(text, GREEDY) as left_early:
                next(left_early)
            streamed = "".join(output.outputs[0].text for output in llm.stream(text, GREEDY))
            if not streamed == llm.generate(text, GREEDY)[0].outputs[0].text == alone[text]:
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, alone))
    llm.engine.check_integrity()
    assert not llm.engine.has_unfinished_requests()


def test_a_stream_closed_by_another_thread_ends() -> None:
    llm = make_llm()
    stream = llm.stream("abc", GREEDY)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stream.close).result()
    assert list(stream) == []
    assert not llm.engine.has_unfinished_requests()


def test_a_logits_processor_cannot_use_the_llm_it_runs_in() -> None:
    llm = make_llm()

    def nested(ids: list[int], logits: np.ndarray) -> np.ndarray:
        llm.generate("x", GREEDY)
        return logits

    answer = llm.generate("abc", GREEDY, logits_processors=[nested])[0].outputs[0]
    assert answer.finish_reason == "error"
    assert "from inside its own step" in (answer.error or "")
    llm.engine.check_integrity()


def test_a_stream_dropped_within_a_step_is_aborted_after_it() -> None:
    llm = make_llm()
    streams = [llm.stream("other", GREEDY)]

    def dropping(ids: list[int], logits: np.ndarray) -> np.ndarray:
        streams.clear()
        return logits

    assert llm.generate("abc", GREEDY, logits_processors=[dropping])[0].outputs[0].finish_reason == "length"
    llm.engine.check_integrity()
    assert not llm.engine.has_unfinished_requests()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_refused() -> None:
    """The kernels' threads are not in the copy: a step would wait for them without end."""
    llm = make_llm()
    child = os.fork()
    if child == 0:
        try:
            llm.generate("abc", GREEDY)
        except PellucidError as error:
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


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


@pytest.mark.parametrize("use", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_llm_cannot_be_copied(use: Any) -> None:
    with pytest.raises(PellucidError, match="cannot be copied or pickled"):
        use(make_llm())


def test_chat_goes_through_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options reach render_chat; the ids are used as they are and the text is the prompt shown."""
    calls: list[dict[str, Any]] = []

    def render_chat(tokenizer: Any, messages: Any, **options: Any) -> Any:
        calls.append(options)
        return types.SimpleNamespace(text="|".join(message["content"] for message in messages))

    def encode_rendered(tokenizer: Any, prompt: Any) -> Any:
        return types.SimpleNamespace(text=prompt.text, token_ids=list(prompt.text.encode()))

    stub = types.ModuleType("pellucid.tokenizer.chat_template")
    stub.render_chat, stub.encode_rendered = render_chat, encode_rendered  # type: ignore[attr-defined]
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
