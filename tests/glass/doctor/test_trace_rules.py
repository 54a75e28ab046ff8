"""Every rule over traces: a real request with a faulty setting, and one without."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from planted import changed, opened, trace_of, trace_verdict
from trace_checks import valid

from pellucid.engine.llm import LLM
from pellucid.glass.doctor.finding import Verdict
from pellucid.glass.doctor.rules import RULES, examine
from pellucid.glass.doctor.trace_exam import TraceExam
from pellucid.sampling_params import SamplingParams
from pellucid.structured_outputs import StructuredOutputsParams

Event = dict[str, Any]
LETTERS = {chr(i): 6 + i for i in range(256)}
"""Ids of the tiny model's bytes: four control tokens and two user-defined ones go before them."""


def only(verdict: Verdict, severity: str) -> Any:
    """The only finding."""
    assert verdict.status == severity, verdict
    [finding] = verdict.findings
    assert finding.explain.endswith(".")
    assert finding.fix.endswith(".")
    json.dumps(finding.evidence)
    return finding


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LLM]:
    with LLM(max_model_len=256) as llm:
        yield llm


def examined(events: list[Event], **known: Any) -> dict[str, str]:
    return {rule.name: verdict.status for rule, verdict in examine(TraceExam.of(events, **known)).verdicts}


@pytest.mark.parametrize(
    ("chat", "params"),
    [
        (False, {"temperature": 0, "max_tokens": 40}),
        (True, {"temperature": 0.7, "top_p": 0.9, "max_tokens": 40}),
        (True, {"temperature": 1.0, "min_p": 0.05, "top_p": 0.95, "max_tokens": 40, "repetition_penalty": 1.1}),
        (False, {"temperature": 0.3, "top_k": 40, "n": 2}),
    ],
)
def test_healthy_requests(chat: bool, params: dict[str, Any], smollm2: LLM) -> None:
    events = trace_of(smollm2, "What is the capital of France?", 3, chat=chat, **params)
    found = examine(TraceExam.of(events, slow_ttft_ms=60_000))  # tests may run on a busy machine
    assert found.is_healthy, found.findings
    assert {rule.name for rule, _ in found.findings} <= {"near-tie"}


def test_two_bos(tiny: LLM, tiny_with_bos: Path) -> None:
    prompt = [LETTERS[c] for c in "hello"]
    assert only(trace_verdict(trace_of(tiny, [0, 0, *prompt]), "double-bos"), "warning").evidence["times"] == 2
    assert trace_verdict(trace_of(tiny, [0, *prompt]), "double-bos").status == "ok"
    with LLM(str(tiny_with_bos), max_model_len=64) as llm:
        spelled = trace_verdict(trace_of(llm, "<|bos|>hello"), "double-bos")
        assert only(spelled, "warning").evidence["text"] == "<|bos|>"
        assert trace_verdict(trace_of(llm, "hello <|bos|>"), "double-bos").status == "ok"


def test_no_bos(tiny: LLM, tiny_with_bos: Path) -> None:
    with LLM(str(tiny_with_bos), max_model_len=64) as llm:
        bare = trace_of(llm, [LETTERS[c] for c in "hello there"])
        assert only(trace_verdict(bare, "missing-bos"), "warning").evidence["first_id"] == LETTERS["h"]
        assert trace_verdict(trace_of(llm, "hello"), "missing-bos").status == "ok"
    with opened(tiny_with_bos) as model:
        evidence = only(trace_verdict(bare, "missing-bos", model=model), "warning").evidence
        assert evidence["nats_without"] > 0 < evidence["nats_with"]
    assert trace_verdict(trace_of(tiny, "hello"), "missing-bos").status == "not_applicable"


def test_a_tokenizer_of_another_model(tiny: LLM, tiny_path: Path, tiny_with_bos: Path, smollm2_path: Path) -> None:
    events = trace_of(tiny, "hello 你好 world")
    assert trace_verdict(events, "wrong-tokenizer").status == "ok"
    with opened(tiny_path) as model:
        assert trace_verdict(events, "wrong-tokenizer", model=model).status == "ok"
    with opened(tiny_with_bos) as model:  # the same pieces: the ids mean the same
        assert trace_verdict(events, "wrong-tokenizer", model=model).status == "ok"
    with opened(smollm2_path) as model:
        evidence = only(trace_verdict(events, "wrong-tokenizer", model=model), "error").evidence
        assert {"sha256", "vocab", "template_sha256"} <= evidence.keys()
    beyond = copy.deepcopy(events)
    beyond[0]["model"]["vocab"] = LETTERS["z"]
    verdict = trace_verdict(beyond, "wrong-tokenizer")
    assert verdict.status == "error"
    assert {finding.evidence["where"] for finding in verdict.findings} >= {"prompt"}
    other = copy.deepcopy(events)
    request = next(event for event in other if event["type"] == "request")
    request["rendered"] = request["rendered"].replace("world", "planet")
    assert only(trace_verdict(other, "wrong-tokenizer"), "warning").evidence["text"].startswith("planet"[:2])


def test_an_end_of_turn_that_ends_nothing(turn_over_path: Path, smollm2: LLM) -> None:
    with LLM(str(turn_over_path), max_model_len=128) as llm:
        events = trace_of(llm, "What is the capital of France?", chat=True, temperature=0, max_tokens=40)
        finding = only(trace_verdict(events, "never-stops"), "error")
        assert finding.evidence["id"] == 2
        assert finding.evidence["drawn_at"], "the model ends its turn, and the engine does not see it"
        stopped = trace_of(llm, "Hi", chat=True, temperature=0, max_tokens=40, stop_token_ids=(2,))
        assert trace_verdict(stopped, "never-stops").status == "ok"
    events = trace_of(smollm2, "What is the capital of France?", chat=True, temperature=0, max_tokens=40)
    assert trace_verdict(events, "never-stops").status == "ok"


def test_answers_that_run_into_a_wall(tiny_path: Path, tiny: LLM) -> None:
    with LLM(str(tiny_path), max_model_len=48) as llm:
        events = trace_of(llm, "hello", max_tokens=None, banned_token_ids=(0, 1, 2, 3))
        assert only(trace_verdict(events, "never-stops"), "warning").evidence["max_model_len"] == 48
        assert trace_verdict(trace_of(llm, "hello", banned_token_ids=(2, 3)), "never-stops").status == "ok"
    ignored = trace_of(tiny, "hello", ignore_eos=True, logit_bias={3: 100.0})
    assert only(trace_verdict(ignored, "never-stops"), "info").evidence["end_at"] == 1


def test_positions_beyond_the_trained_ones(tiny_path: Path, tmp_path: Path) -> None:
    short = changed(tiny_path, tmp_path / "m.gguf", {"llama.context_length": 16})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        llm = LLM(str(short), max_model_len=64)
    with llm:
        beyond = trace_of(llm, "hello there", max_tokens=16, ignore_eos=True)
        evidence = only(trace_verdict(beyond, "positions"), "warning").evidence
        assert (evidence["max_pos"], evidence["last_position"]) == (16, evidence["beyond"] + 15)
        last = beyond[-2] if beyond[-2]["type"] == "finish" else next(e for e in beyond if e["type"] == "finish")
        assert evidence["last_position"] == last["n_prompt"] + last["n_output"] - 2
        exact = trace_of(llm, "hello", max_tokens=17 - 5, ignore_eos=True)
        num_prompt = len(next(e for e in exact if e["type"] == "request")["tokens"])
        exact = trace_of(llm, "hello", max_tokens=17 - num_prompt, ignore_eos=True)  # the last token drawn is no row
        assert trace_verdict(exact, "positions").status == "ok"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: [x / 4 for x in told], "applied twice"),
        (lambda told: [x * 4 for x in told], "was not applied"),
    ],
)
def test_frequencies_that_are_not_those_of_the_header(change: Any, words: str, tiny_path: Path, tmp_path: Path) -> None:
    planted = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    with LLM(str(changed(tiny_path, tmp_path / "m.gguf", planted)), max_model_len=64) as llm:
        events = trace_of(llm, "hello")
    assert trace_verdict(events, "positions").status == "ok"
    rope = events[0]["model"]["rope"]
    events[0] = {**events[0], "model": {**events[0]["model"], "rope": {**rope, "inv_freq": change(rope["inv_freq"])}}}
    assert words in only(trace_verdict(events, "positions"), "error").explain


def test_a_scaling_that_nobody_declares(tiny: LLM) -> None:
    events = trace_of(tiny, "hello")
    rope = events[0]["model"]["rope"]
    planted = {**rope, "inv_freq": [x / 4 for x in rope["inv_freq"]]}
    events[0] = {**events[0], "model": {**events[0]["model"], "rope": planted}}
    assert "nobody declares" in only(trace_verdict(events, "positions"), "error").explain


def test_every_scaling_of_ours_is_sound(tmp_path: Path) -> None:
    """Traces of models with each kind of scaling, whose frequencies the rule must understand."""
    from parity.families import BY_NAME
    from stored_folders import typed_weights, write_tokenizer, write_typed

    for name in [name for name in BY_NAME if name.startswith(("llama-", "phi3-"))]:
        folder = write_typed(tmp_path / name, name, typed_weights(name))
        write_tokenizer(folder, json.loads((folder / "config.json").read_text())["vocab_size"])
        with LLM(str(folder), max_model_len=48) as llm:
            assert trace_verdict(trace_of(llm, [5, 6, 7], max_tokens=2), "positions").status == "ok", name


def test_the_first_layer_that_overflows(overflowing_path: Path, tiny: LLM) -> None:
    with LLM(str(overflowing_path), max_model_len=64) as llm:
        finding = only(trace_verdict(trace_of(llm, "The capital of France is", 3), "overflow"), "error")
        assert finding.evidence["layer"] == 12
        assert "level 3" in only(trace_verdict(trace_of(llm, "The capital of France is", 2), "overflow"), "error").fix
        again = trace_of(llm, "And Italy", 3)  # the engine goes on
        valid(json.dumps(event) + "\n" for event in again)
    assert trace_verdict(trace_of(tiny, "hello", 3), "overflow").status == "ok"
    assert trace_verdict(trace_of(tiny, "hello", 2), "overflow").status == "not_applicable"


@pytest.mark.parametrize(
    ("params", "severity", "words"),
    [
        ({"top_k": 1}, "warning", "top_k is 1"),
        ({"top_p": 0.05}, "warning", "top_p is 0.05"),
        ({"min_p": 1.0}, "warning", "the filters left one token in all"),
        ({"temperature": 0.001}, "warning", "temperature 0.001 leaves"),
        ({"temperature": 1.8}, "warning", "text falls apart"),
        ({"temperature": 1.8, "min_p": 0.6}, "info", "The filters hold it"),
    ],
)
def test_sampling_that_cannot_vary_or_cannot_stop(params: dict[str, Any], severity: str, words: str, tiny: LLM) -> None:
    planted = {"max_tokens": 16, "ignore_eos": True, **params}
    assert words in only(trace_verdict(trace_of(tiny, "hello", **planted), "sampling"), severity).explain
    for sound in ({"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9, "top_k": 40}, {"temperature": 1.5}):
        assert trace_verdict(trace_of(tiny, "hello", ignore_eos=True, **sound), "sampling").status == "ok"
    assert trace_verdict(trace_of(tiny, "hello", 1, **params), "sampling").status in (severity, "ok")
    assert trace_verdict(trace_of(tiny, "hello", **params | {"temperature": 0}), "sampling").status == "not_applicable"


def test_a_model_that_is_sure_is_no_narrow_sampling(smollm2: LLM) -> None:
    """Survivors are few because the text repeats, not because of the filters."""
    words = "one two three four five six seven eight nine ten"
    prompt = f"Repeat after me: {words} {words}."
    events = trace_of(smollm2, prompt, chat=True, temperature=0.3, top_p=0.9, top_k=40, max_tokens=64)
    samples = [event for event in events if event["type"] == "sample"]
    assert all(one["stages"][-1]["alive"] == 1 for one in samples)
    assert trace_verdict(events, "sampling").status == "ok"


def test_a_structure_is_no_narrow_sampling(tiny: LLM) -> None:
    forced = StructuredOutputsParams(choice=["hello hello hello"])
    events = trace_of(tiny, "say", structured_outputs=forced, max_tokens=24)
    assert trace_verdict(events, "sampling").status == "ok"


@pytest.mark.parametrize(
    ("params", "stage"),
    [
        ({"allowed_token_ids": (LETTERS["a"], LETTERS["b"])}, "allowed_token_ids"),
        ({"structured_outputs": StructuredOutputsParams(regex="[ab]{40}")}, "structured_outputs"),
        ({"logit_bias": {LETTERS["q"]: 60.0}}, "logit_bias"),
    ],
)
def test_a_mask_that_is_too_strict(params: dict[str, Any], stage: str, tiny: LLM) -> None:
    finding = only(trace_verdict(trace_of(tiny, "hello", max_tokens=10, **params), "strict-penalty"), "warning")
    assert finding.evidence["stage"] == stage
    assert finding.evidence["times"] == 10
    assert stage in finding.explain


def test_a_penalty_that_is_too_strict(smollm2: LLM) -> None:
    prompt = "def f(x):\n    return x\n\n\n" * 6
    strict = trace_of(smollm2, prompt, temperature=0, max_tokens=16, repetition_penalty=1.5)
    finding = only(trace_verdict(strict, "strict-penalty"), "warning")
    assert finding.evidence["stage"] == "repetition_penalty"
    assert finding.evidence["mean_taken"] > 0.4
    mild = trace_of(smollm2, prompt, temperature=0, max_tokens=16, repetition_penalty=1.1)
    assert trace_verdict(mild, "strict-penalty").status == "ok"
    assert trace_verdict(trace_of(smollm2, prompt, 1), "strict-penalty").status == "not_applicable"


def test_runs_of_white_space(tiny: LLM) -> None:
    spaces = StructuredOutputsParams(regex="\\{ {30}\\}")
    events = trace_of(tiny, "hello", max_tokens=32, structured_outputs=spaces)
    found = {finding.evidence.get("longest_run") for finding in trace_verdict(events, "strict-penalty").findings}
    assert 30 in found


def test_a_first_token_that_waits(tiny_path: Path) -> None:
    with LLM(str(tiny_path), max_model_len=256, max_num_seqs=1) as llm:
        reader = llm.trace_reader()
        params = SamplingParams(max_tokens=60, ignore_eos=True, seed=1)
        llm.generate(["hello " * 20, "there"], params, trace_level=1)
        events = [*reader.read(), reader.end()]
    assert trace_verdict(events, "slow-ttft", slow_ttft_ms=60_000).status == "ok"
    last = trace_verdict(events, "slow-ttft", slow_ttft_ms=1).findings[-1]
    assert "waiting for its turn (queue)" in last.explain
    assert last.evidence["waited_steps"]["max_num_seqs"] > 20
    assert sum(last.evidence["parts_ns"].values()) == last.evidence["ttft_ns"]
    assert max(last.evidence["parts_ns"], key=last.evidence["parts_ns"].get) == "queue"


def test_a_long_prompt_is_named(smollm2: LLM) -> None:
    events = trace_of(smollm2, "The sun rises in the east. " * 30, 1, max_tokens=2)
    finding = only(trace_verdict(events, "slow-ttft", slow_ttft_ms=1), "warning")
    assert "computing the prompt (prefill_own)" in finding.explain
    assert finding.evidence["prefill_tokens_per_second"] > 0


def test_a_cache_that_is_too_small(tiny_path: Path) -> None:
    def events_with(blocks: int) -> list[Event]:
        with LLM(str(tiny_path), max_model_len=64, kv_cache_memory_bytes=blocks * 16 * per_token) as llm:
            reader = llm.trace_reader()
            params = SamplingParams(max_tokens=56, ignore_eos=True, seed=1, temperature=0)
            llm.generate([f"hello{i}" for i in range(3)], params, trace_level=1)
            return [*reader.read(), reader.end()]

    with opened(tiny_path) as model:
        per_token = model.config.kv_bytes_per_token("int16")
    verdict = trace_verdict(events_with(6), "kv-budget")
    assert verdict.status == "warning"
    for finding in verdict.findings:
        assert finding.evidence["longest_context"] == 6 * 16
        assert finding.evidence["preemptions"] or finding.evidence["waited_steps"]
    assert any(finding.evidence["preemptions"] for finding in verdict.findings)
    assert trace_verdict(events_with(12), "kv-budget").status == "ok"


def test_a_near_tie(tiny: LLM) -> None:
    first = next(e for e in trace_of(tiny, "hello", temperature=0, max_tokens=1) if e["type"] == "sample")
    (one, a, _), (two, b, _) = first["stages"][0]["top"][:2]
    tied = trace_of(tiny, "hello", temperature=0, max_tokens=1, logit_bias={two: a - b - 0.01})
    finding = only(trace_verdict(tied, "near-tie"), "info")
    assert finding.evidence["ids"] == [one, two]
    assert finding.evidence["gap"] == pytest.approx(0.01, abs=1e-4)
    apart = trace_of(tiny, "hello", temperature=0, max_tokens=1, logit_bias={one: 1.0})
    assert trace_verdict(apart, "near-tie").status == "ok"
    assert trace_verdict(trace_of(tiny, "hello"), "near-tie").status == "not_applicable"


def test_guesses_that_never_or_always_come_true(tiny_path: Path, tmp_path: Path) -> None:
    other = changed(tiny_path, tmp_path / "o.gguf", tensors={"token_embd.weight": lambda x: x[::-1].copy()})

    def verdict(draft: Path) -> Verdict:
        args = {"speculative_model": str(draft), "speculative_method": "draft_model", "max_model_len": 128}
        with LLM(str(tiny_path), **args) as llm:
            return trace_verdict(
                trace_of(llm, "hello", 1, temperature=0, max_tokens=64, ignore_eos=True), "speculation"
            )

    assert only(verdict(other), "warning").evidence["accepted"] == 0
    evidence = only(verdict(tiny_path), "info").evidence
    assert evidence["accepted"] >= 24
    with LLM(str(tiny_path), speculative_method="off", max_model_len=128) as llm:
        assert trace_verdict(trace_of(llm, "hello"), "speculation").status == "not_applicable"


def test_every_rule_speaks_of_a_trace_of_any_level(tiny: LLM) -> None:
    for level in (1, 2, 3):
        assert examined(trace_of(tiny, "hello", level)).keys() == {rule.name for rule in RULES}
