"""What the engine tells of traced requests, and that nothing else changes by it."""

from __future__ import annotations

import base64
import dataclasses
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from engine_driver import drain
from mock_model import EOS, NoisyModel, make_engine
from trace_checks import check_parts, of_type, valid, valid_event

from pellucid.config import RopeConfig
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.step_pace import LEAST_CHUNK
from pellucid.errors import InvalidParameterError, TraceFileError
from pellucid.glass.view import answers_of
from pellucid.outputs import RequestOutput
from pellucid.sampling.draw import draw_counter, uniform
from pellucid.sampling_params import SamplingParams
from pellucid.structured_outputs import StructuredOutputsParams
from pellucid.trace.ring import TraceRing

PARAMS = [
    SamplingParams(max_tokens=12, seed=1),
    SamplingParams(temperature=0, max_tokens=20),
    SamplingParams(temperature=0.7, top_p=0.8, top_k=20, min_p=0.01, max_tokens=9, seed=2),
    SamplingParams(max_tokens=30, stop=("ab", "gd"), repetition_penalty=1.2, presence_penalty=0.5, seed=3),
    SamplingParams(n=3, max_tokens=8, seed=4, logprobs=2),
    SamplingParams(max_tokens=6, min_tokens=3, banned_token_ids=(97,), prompt_logprobs=1, seed=5),
    SamplingParams(max_tokens=1, seed=6),
    SamplingParams(max_tokens=15, logit_bias={98: 5.0}, ignore_eos=True, seed=7),
]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"num_blocks": 17, "max_num_batched_tokens": 24},
    {"enable_prefix_caching": False, "max_num_seqs": 2},
    {"speculative_method": "ngram", "num_speculative_tokens": 4},
]


def prompts() -> list[list[int]]:
    choices = random.Random(5)
    shared = [ord(c) for c in "abcdefgh" * 5]
    return [
        shared[: choices.randrange(1, 40)] + choices.choices(range(97, 104), k=choices.randrange(1, 30)) for _ in PARAMS
    ]


def answers(engine: LLMEngine, level: int) -> dict[str, RequestOutput]:
    for i, (prompt, params) in enumerate(zip(prompts(), PARAMS, strict=True)):
        engine.add_request(str(i), prompt, params, trace_level=level if i % 4 != 3 or level < 2 else 1)
    return drain(engine)


def said(outputs: dict[str, RequestOutput]) -> Any:
    return {
        name: (
            [(o.token_ids, o.text, o.logprobs, o.finish_reason, o.stop_reason) for o in output.outputs],
            output.prompt_logprobs,
        )
        for name, output in outputs.items()
    }


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_answers_are_the_same_and_the_trace_is_sound(settings: dict[str, Any], level: int) -> None:
    plain = said(answers(make_engine(**settings), 0))
    engine = make_engine(**settings)
    reader = engine.tracer.reader()
    model, sampler = engine.runner.model, engine.runner.sampler
    outputs = answers(engine, level)
    assert said(outputs) == plain
    assert engine._tracing is None
    assert (engine.runner.model, engine.runner.sampler, engine.kv.watcher) == (model, sampler, None)
    events = valid(reader.lines())
    assert events[0]["level"] == level
    assert len(of_type(events, "request")) == len(PARAMS)
    check_steps(events, engine)
    check_texts(events, outputs)
    check_blocks(events, engine)
    if level >= 2:
        check_samples(events, outputs)
    else:
        assert of_type(events, "sample") == []
    for finish in of_type(events, "finish"):
        check_parts(finish)


def test_what_the_tracer_took_is_never_the_queues_or_the_others() -> None:
    """The second waits while the first is traced: of its TTFT, that is told as tracing."""
    engine = make_engine(max_num_seqs=1)
    reader = engine.tracer.reader()
    for name in ("first", "second"):
        engine.add_request(name, prompts()[0], SamplingParams(max_tokens=6, ignore_eos=True), trace_level=2)
    drain(engine)
    events = valid(reader.lines())
    [finish] = of_type(events, "finish", req="second")
    steps = of_type(events, "step")
    first = next(i for i, step in enumerate(steps) if any(one["req"] == "second" for one in step["seqs"]))
    assert first >= 6
    assert finish["ttft_parts"]["tracing"] >= sum(step["ns"]["tracing"] for step in steps[: first + 1])
    waited = sum(step["t1_ns"] - step["t0_ns"] - step["ns"]["tracing"] for step in steps[:first])
    assert finish["ttft_parts"]["queue"] >= waited
    check_parts(finish)


def test_the_header_tells_kinds_of_layers_apart() -> None:
    """As Gemma 3 has them: five layers with a window and theta 10,000, then one with neither."""
    engine = make_engine()
    assert engine.tracer.header()["model"]["rope"]["kinds"] is None
    layers = 12
    engine = make_engine()
    engine.config = dataclasses.replace(
        engine.config,
        num_layers=layers,
        rope=RopeConfig(1e6, 4),
        rope_sliding=RopeConfig(1e4, 4),
        sliding_window=7,
        sliding_layers=tuple((i + 1) % 6 != 0 for i in range(layers)),
    )
    header = engine.tracer.header()
    valid_event(header)
    rope = header["model"]["rope"]
    local, everywhere = rope["kinds"]
    assert local["layers"] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert (local["window"], local["theta"], local["inv_freq"]) == (7, 1e4, [1.0, 0.01])
    assert everywhere["layers"] == [5, 11]
    assert (everywhere["window"], everywhere["theta"], everywhere["inv_freq"]) == (None, 1e6, [1.0, 0.001])
    assert (rope["theta"], rope["inv_freq"]) == (1e6, [1.0, 0.001])


def check_steps(events: list[dict[str, Any]], engine: LLMEngine) -> None:
    """Tokens per request: every known one once, but for what was preempted or came from the cache."""
    steps = of_type(events, "step")
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert len(steps) == engine.stats.num_steps
    computed: Counter[str] = Counter()
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        assert step["t0_ns"] <= step["t1_ns"]
        assert after is None or step["t1_ns"] <= after["t0_ns"]
        assert sum(step["ns"].values()) == step["t1_ns"] - step["t0_ns"]
        assert sum(seq["n_tok"] for seq in step["seqs"]) <= step["token_budget"]
        for seq in step["seqs"]:
            computed[seq["req"]] += seq["n_tok"]
    for finish in of_type(events, "finish"):
        if not finish["preemptions"] and "index" not in finish:
            [request] = of_type(events, "request", req=finish["req"])
            cached = sum(token["cached"] for token in request["tokens"])
            accepted = sum(spec["accepted"] for spec in of_type(events, "spec", req=finish["req"]))
            known = finish["n_prompt"] - cached + finish["n_output"] - 1
            assert known - accepted <= computed[finish["req"]] <= known + 1


def check_texts(events: list[dict[str, Any]], outputs: dict[str, RequestOutput]) -> None:
    for name, output in outputs.items():
        for answer in output.outputs:
            which = {"index": answer.index} if len(output.outputs) > 1 else {}
            emitted = of_type(events, "emit", req=name, **which)
            assert b"".join(base64.b64decode(e["bytes_b64"]) for e in emitted).decode() == answer.text
            assert all((e["held_bytes"] > 0) == (e["held_reason"] is not None) for e in emitted)
            ends = [e["token_range"][1] for e in emitted]
            assert ends == sorted(ends)
            [finish] = of_type(events, "finish", req=name, **which)
            assert finish["reason"] == answer.finish_reason
            assert finish["n_output"] == len(answer.token_ids)
            assert len(finish["itl_ns"]) == len(answer.token_ids) - 1
            assert finish["stop_str"] == (answer.stop_reason if isinstance(answer.stop_reason, str) else None)
            ended_by_token = answer.finish_reason == "stop" and finish["stop_str"] is None
            assert finish["stop_id"] == (answer.token_ids[-1] if ended_by_token else None)


def check_samples(events: list[dict[str, Any]], outputs: dict[str, RequestOutput]) -> None:
    for name, output in outputs.items():
        level = of_type(events, "request", req=name)[0]["level"]
        for answer in output.outputs:
            which = {"index": answer.index} if len(output.outputs) > 1 else {}
            samples = of_type(events, "sample", req=name, **which)
            if level < 2:
                assert samples == []
                continue
            assert [s["id"] for s in samples] == answer.token_ids
            for k, sample in enumerate(samples):
                assert sample["i"] == len(output.prompt_token_ids) + k
                assert sample["stages"][0]["name"] == "raw"
                final = sample["stages"][-1]
                assert final["chosen"] is not None
                assert sample["logprob_final"] == pytest.approx(np.log(final["chosen"]["p"]))
                if answer.logprobs is not None:
                    logprob = answer.logprobs[k][answer.token_ids[k]]
                    assert sample["logprob_raw"] == pytest.approx(logprob.logprob, abs=1e-6)
                    assert sample["stages"][0]["chosen"]["rank"] == logprob.rank
                rng = sample["rng"]
                assert rng["counter"] == list(draw_counter(answer.index, sample["i"]))
                if rng["u"] is not None:
                    assert rng["u"] == uniform(rng["seed"], answer.index, sample["i"])
                    assert rng["seed"] == answer.seed
                    check_draw(sample)


def check_draw(sample: dict[str, Any]) -> None:
    """The token drawn is the first of the survivors whose cumulative probability exceeds u."""
    reached = 0.0
    for token_id, _, p in sample["stages"][-1]["top"]:
        reached += p
        if abs(reached - sample["rng"]["u"]) < 1e-6:
            return
        if reached > sample["rng"]["u"]:
            assert token_id == sample["id"]
            return
    assert sample["stages"][-1]["chosen"]["rank"] > len(sample["stages"][-1]["top"])


def check_blocks(events: list[dict[str, Any]], engine: LLMEngine) -> None:
    """Played back, the operations give the reference counts they tell, and in the end the cache has what is left."""
    tables: Counter[int] = Counter()
    cached: set[int] = set()
    for event in of_type(events, "kv"):
        block, op = event["block"], event["op"]
        if op in ("alloc", "hit"):
            tables[block] += 1
        elif op == "cache":
            cached.add(block)
            assert event["hash"] is not None
        elif op in ("free", "preempt"):
            tables[block] -= 1
        elif op == "evict":
            cached.discard(block)
        elif op == "share":
            tables[block] += 1
        assert event["ref"] >= 0
    if engine.args.enable_prefix_caching:
        assert cached == set(engine.kv.cache._nodes)


def test_hashes_name_the_same_tokens_and_nothing_else() -> None:
    engine = make_engine()
    reader = engine.tracer.reader()
    prompt = [ord(c) for c in "abcdefgh" * 6]
    for name, ids in (("a", prompt), ("b", prompt), ("c", [*prompt[:16], *prompt[1:]])):
        engine.add_request(name, ids, SamplingParams(max_tokens=1), trace_level=1)
        drain(engine)
    events = valid(reader.lines())
    kept = {e["tok0"]: e["hash"] for e in of_type(events, "kv", op="cache", req="a")}
    assert {e["tok0"]: e["hash"] for e in of_type(events, "kv", op="hit", req="b")} == {
        place: kept[place] for place in (0, 16)
    }
    [hit] = of_type(events, "kv", op="hit", req="c")
    assert (hit["tok0"], hit["hash"], hit["parent"]) == (0, kept[0], None)
    others = of_type(events, "kv", op="cache", req="c")
    assert {e["hash"] for e in others}.isdisjoint(kept.values())
    assert others[0]["parent"] == kept[0]
    cached = [sum(t["cached"] for t in of_type(events, "request", req=name)[0]["tokens"]) for name in "abc"]
    assert cached == [0, 32, 16]


def test_only_traced_requests_are_told() -> None:
    engine = make_engine()
    reader = engine.tracer.reader()
    engine.add_request("quiet", "abcdef", SamplingParams(max_tokens=20, ignore_eos=True))
    engine.step()
    assert engine.tracer.ring.head == 0
    engine.add_request("loud", "abc", SamplingParams(max_tokens=5, ignore_eos=True), trace_level=2)
    drain(engine)
    events = valid(reader.lines())
    told = {e["req"] for kind in ("request", "sample", "emit", "finish") for e in of_type(events, kind)}
    assert told == {"loud"}
    assert {seq["req"] for step in of_type(events, "step") for seq in step["seqs"]} == {"loud", "quiet"}
    assert len(of_type(events, "step")) == 5


def test_a_reader_of_one_request_sees_no_others() -> None:
    engine = make_engine()
    reader = engine.tracer.reader({"b"})
    for name in "abc":
        engine.add_request(name, "abc" + name, SamplingParams(max_tokens=4), trace_level=2)
    drain(engine)
    events = valid(reader.lines())
    assert {e["req"] for kind in ("request", "sample", "emit", "finish") for e in of_type(events, kind)} == {"b"}


def test_what_fell_out_of_the_ring_is_counted_and_the_rest_is_placed() -> None:
    engine = make_engine()
    engine.tracer.ring = TraceRing(12)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    engine.add_request("x", "abc", params, trace_level=2)
    drain(engine)
    events = valid(engine.tracer.reader({"x"}).lines())
    lost = engine.tracer.ring.head - 12
    assert events[1] == {"type": "dropped", "records": lost}
    assert events[-1]["dropped"] == lost
    assert of_type(events, "request") == []
    with pytest.raises(TraceFileError, match="its beginning was lost"):
        answers_of(events)


def test_samples_are_placed_by_their_position() -> None:
    engine = make_engine()
    reader = engine.tracer.reader({"y"})
    engine.add_request("y", "abc", SamplingParams(max_tokens=20, ignore_eos=True), trace_level=2)
    drain(engine)
    events = valid(reader.lines())
    [view] = answers_of(event for event in events if event["type"] != "sample" or event["i"] > 8)
    assert view.num_tokens == 23
    assert (view.token_id(8), view.text_at(8)) == (-1, "#8")
    assert view.token_id(9) == next(e["id"] for e in of_type(events, "sample") if e["i"] == 9)


def test_a_header_has_the_level_of_its_requests() -> None:
    engine = make_engine()
    tracer = engine.tracer
    for name, level in (("a", 3), ("b", 1)):
        engine.add_request(name, "abc", SamplingParams(max_tokens=3), trace_level=level)
        drain(engine)
    levels = [tracer.reader(names).read()[0]["level"] for names in ({"b"}, {"a"}, {"a", "b"}, {"c"}, None)]
    assert levels == [1, 3, 3, 0, 3]
    later = tracer.reader(from_start=False)
    engine.add_request("d", "abc", SamplingParams(max_tokens=3), trace_level=2)
    assert later.read()[0]["level"] == 2


def test_a_waiting_request_is_told_at_once_and_again_when_it_runs() -> None:
    engine = make_engine(max_num_seqs=1)
    prompt = [ord(c) for c in "abcdefgh" * 6]
    live = engine.tracer.reader({"b"})
    for name in ("a", "b"):
        engine.add_request(name, prompt, SamplingParams(max_tokens=2, ignore_eos=True), trace_level=1)
    engine.step()
    seen = live.read()
    [queued] = of_type(seen, "request")
    valid_event(queued)
    assert (queued["req"], queued["queued"]) == ("b", True)
    assert of_type(seen, "step")[0]["waiting"] == [{"req": "b", "reason": "max_num_seqs"}]
    drain(engine)
    seen += live.read()
    [_, ran] = of_type(seen, "request")
    assert "queued" not in ran
    assert sum(token["cached"] for token in ran["tokens"]) == 32
    assert [view.request for view in answers_of(seen)] == [ran]
    assert of_type(engine.tracer.reader({"b"}).read(), "request") == [ran]


def test_a_step_that_time_cuts_says_so() -> None:
    engine = make_engine()
    reader = engine.tracer.reader()
    engine.add_request("stream", "abc", SamplingParams(max_tokens=3, ignore_eos=True), trace_level=1)
    engine.step()
    engine.scheduler.pace.max_step_ns = 1
    engine.add_request("prompt", [97] * 60, SamplingParams(max_tokens=1), trace_level=1)
    engine.step()
    first, second = of_type(reader.read(), "step")
    most = engine.args.max_num_batched_tokens
    assert (first["token_budget"], first["limit"], first["max_tokens"]) == (most, "tokens", most)
    assert [seq["n_tok"] for seq in second["seqs"]] == [1, LEAST_CHUNK]
    assert (second["token_budget"], second["limit"], second["max_tokens"]) == (1 + LEAST_CHUNK, "time", most)
    valid_event(second)


@pytest.mark.parametrize(
    ("settings", "structure", "proposers"),
    [
        ({"speculative_method": "ngram", "num_speculative_tokens": 4}, None, {"ngram"}),
        ({"speculative_method": "auto"}, StructuredOutputsParams(choice=("forcedforcedforced",)), {"forced", "ngram"}),
    ],
)
def test_a_draft_names_who_guessed(settings: dict[str, Any], structure: Any, proposers: set[str]) -> None:
    engine = make_engine(**settings)
    if engine.speculator.is_adaptive:
        engine.speculator.costs.seconds = lambda num_rows: 1.0  # drafts always pay
    reader = engine.tracer.reader()
    params = SamplingParams(max_tokens=24, ignore_eos=structure is None, temperature=0, structured_outputs=structure)
    engine.add_request("x", "abcabcabcabc", params, trace_level=1)
    drain(engine)
    assert {spec["proposer"] for spec in of_type(valid(reader.lines()), "spec")} == proposers


def test_blocks_in_use_when_tracing_begins_are_told() -> None:
    engine = make_engine()
    prompt = [ord(c) for c in "abcdefgh" * 6]
    engine.add_request("quiet", prompt, SamplingParams(max_tokens=20, ignore_eos=True))
    engine.step()
    used = engine.stats.kv_blocks_used
    engine.add_request("x", prompt, SamplingParams(max_tokens=2, ignore_eos=True), trace_level=1)
    engine.step()
    events = engine.tracer.reader({"x"}).read()
    held = of_type(events, "kv", op="held", req="quiet")
    assert len(held) == used == len({event["block"] for event in held})
    for event in held:
        valid_event(event)
    hits = of_type(events, "kv", op="hit", req="x")
    assert {(e["block"], e["hash"], e["parent"]) for e in hits} < {(e["block"], e["hash"], e["parent"]) for e in held}
    owned: set[int] = set()
    for event in of_type(events, "kv"):
        if event["op"] in ("held", "hit", "alloc", "share"):
            owned.add(event["block"])
        elif event["op"] == "free" and event["ref"] == 0:
            owned.discard(event["block"])
    assert len(owned) == engine.stats.kv_blocks_used
    assert of_type(events, "mem")[-1]["kv_used_bytes"] == len(owned) * (
        engine.storage.nbytes // engine.kv.pool.num_blocks
    )
    drain(engine)


def test_what_is_evicted_or_preempted_has_the_hash_that_it_was_kept_under() -> None:
    engine = make_engine(num_blocks=17, max_num_batched_tokens=24)
    for i in range(2):  # cached before anything is traced
        engine.add_request(f"before {i}", [97 + i] * 70, SamplingParams(max_tokens=2, ignore_eos=True))
        drain(engine)
    for i in range(4):
        engine.add_request(f"{i}", [99 + i] * 40, SamplingParams(max_tokens=60, ignore_eos=True), trace_level=1)
    drain(engine)
    kept: dict[int, str] = {}
    seen: Counter[str] = Counter()
    for event in of_type(valid(engine.tracer.reader().lines()), "kv"):
        if event["op"] == "cache":
            kept[event["block"]] = event["hash"]
        elif event["op"] == "evict":
            assert event["hash"] == kept.pop(event["block"], event["hash"])
            assert event["hash"] is not None
        elif event["op"] == "preempt":
            assert event["hash"] == kept.get(event["block"])
        seen[event["op"]] += 1
    assert seen["evict"] > 4
    assert seen["preempt"] > 0


def test_memory_is_told_when_the_use_of_the_cache_changes() -> None:
    engine = make_engine()
    reader = engine.tracer.reader()
    engine.add_request("x", "abc", SamplingParams(max_tokens=40, ignore_eos=True), trace_level=1)
    used = []
    while engine.has_unfinished_requests():
        engine.step()
        used += [event["kv_used_bytes"] for event in of_type(reader.read(), "mem")]
    size = engine.storage.nbytes // engine.kv.pool.num_blocks
    assert [one // size for one in dict.fromkeys(used)] == [1, 2, 3, 0]
    assert len(used) <= 5


def test_an_abort_is_told_with_its_blocks() -> None:
    engine = make_engine()
    reader = engine.tracer.reader()
    engine.add_request("x", "abcdefgh" * 4, SamplingParams(ignore_eos=True), trace_level=2)
    engine.add_request("never", "abc", SamplingParams(), trace_level=1)
    engine.abort("never")
    engine.step()
    engine.abort("x")
    events = valid(reader.lines())
    assert [(e["req"], e["reason"], e["n_output"]) for e in of_type(events, "finish")] == [
        ("never", "abort", 0),
        ("x", "abort", 1),
    ]
    assert of_type(events, "finish", req="never")[0]["ttft_parts"] is None
    assert len(of_type(events, "kv", op="free")) == len(of_type(events, "kv", op="alloc")) == 3 - 1
    assert engine._tracing is None
    engine.check_integrity()


def test_a_request_that_fails_says_why() -> None:
    engine = make_engine()
    reader = engine.tracer.reader()
    engine.add_request("nan", "ab#", SamplingParams(max_tokens=4), trace_level=3)
    engine.add_request("inf", "ab!", SamplingParams(max_tokens=4), trace_level=3)
    drain(engine)
    events = valid(reader.lines())
    assert {e["reason"] for e in of_type(events, "finish")} == {"error"}
    assert all(e["error"] for e in of_type(events, "finish"))


def test_held_text_has_a_reason() -> None:
    engine = make_engine()
    reader = engine.tracer.reader()
    params = SamplingParams(max_tokens=3, logit_bias={0xC3: 100.0}, temperature=0)
    engine.add_request("bytes", "abc", params, trace_level=1)
    params = SamplingParams(max_tokens=3, logit_bias={97: 100.0}, temperature=0, stop=("aaab",))
    engine.add_request("stop", "abc", params, trace_level=1)
    drain(engine)
    events = valid(reader.lines())
    assert [(e["held_bytes"], e["held_reason"]) for e in of_type(events, "emit", req="stop")][:2] == [
        (1, "possible stop string"),
        (2, "possible stop string"),
    ]
    first = of_type(events, "emit", req="bytes")[0]
    assert (first["held_bytes"], first["held_reason"]) == (1, "incomplete UTF-8")


def test_a_users_processor_runs_once_for_each_token() -> None:
    calls: list[int] = []

    def processor(output: list[int], logits: Any) -> Any:
        calls.append(len(output))
        logits[98] += len(calls)
        return logits

    said_by = []
    for level in (0, 2):
        calls.clear()
        engine = make_engine()
        reader = engine.tracer.reader()
        engine.add_request(
            "x",
            "abc",
            SamplingParams(max_tokens=6, seed=1, ignore_eos=True),
            logits_processors=[processor],
            trace_level=level,
        )
        said_by.append(drain(engine)["x"].outputs[0].token_ids)
        assert calls == list(range(6))
        names = [s["name"] for e in of_type(valid(reader.lines()), "sample") for s in e["stages"]]
    assert said_by[0] == said_by[1]
    assert names == ["raw", "logits_processors"] * 6


def test_an_exception_inside_a_step_leaves_the_tracer_usable() -> None:
    engine = make_engine()
    reader = engine.tracer.reader()

    def processor(output: list[int], logits: Any) -> Any:
        if len(output) == 1:
            raise KeyboardInterrupt
        return logits

    engine.add_request("x", "abc", SamplingParams(max_tokens=3), logits_processors=[processor], trace_level=2)
    engine.add_request("y", "abd", SamplingParams(max_tokens=3, ignore_eos=True), trace_level=2)
    engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.abort("x")
    drain(engine)
    events = valid(reader.lines())
    assert [e["reason"] for e in of_type(events, "finish")] == ["abort", "length"]
    assert engine._tracing is None


def test_drafts_are_told() -> None:
    engine = make_engine(speculative_method="draft_model", draft_model=NoisyModel())
    reader = engine.tracer.reader()
    engine.add_request("x", "abcabc", SamplingParams(max_tokens=24, ignore_eos=True, seed=3), trace_level=2)
    [answer] = drain(engine)["x"].outputs
    events = valid(reader.lines())
    specs = of_type(events, "spec")
    assert specs
    place = 0
    samples = of_type(events, "sample")
    for spec in specs:
        assert spec["proposer"] == "draft_model"
        drawn = [s["id"] for s in samples if s["step"] == spec["step"]]
        assert drawn[: spec["accepted"]] == spec["draft"][: spec["accepted"]]
        assert spec["bonus_id"] == (drawn[spec["accepted"]] if len(drawn) > spec["accepted"] else -1)
        place += len(drawn)
    assert [s["id"] for s in samples] == answer.token_ids


def test_waiting_requests_have_reasons() -> None:
    engine = make_engine(max_num_seqs=1)
    reader = engine.tracer.reader()
    for name in ("a", "b"):
        engine.add_request(name, "abc", SamplingParams(max_tokens=2, ignore_eos=True), trace_level=1)
    drain(engine)
    events = valid(reader.lines())
    assert next(step["waiting"] for step in of_type(events, "step")) == [{"req": "b", "reason": "max_num_seqs"}]
    finish = of_type(events, "finish", req="b")[0]
    check_parts(finish)


@pytest.mark.parametrize("level", [-1, 4, True, "2", 1.0, None])
def test_levels_outside_are_refused(level: Any) -> None:
    engine = make_engine()
    with pytest.raises(InvalidParameterError, match=r"trace_level is .*, but must be from 0 to 3"):
        engine.add_request("x", "abc", trace_level=level)
    assert not engine.has_unfinished_requests()
    assert engine._tracing is None


def test_the_end_token_is_named() -> None:
    engine = make_engine()
    reader = engine.tracer.reader()
    engine.add_request("x", "abc", SamplingParams(logit_bias={EOS: 100.0}, max_tokens=5), trace_level=1)
    drain(engine)
    [finish] = of_type(valid(reader.lines()), "finish")
    assert (finish["reason"], finish["stop_id"], finish["stop_str"]) == ("stop", EOS, None)
