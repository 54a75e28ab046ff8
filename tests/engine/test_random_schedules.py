"""Law 1 on the mock: whatever is scheduled, every answer is what it is alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_model import EOS, IM_END, LETTERS, ByteTokenizer, NoisyModel, check_cached_blocks, make_engine
from naive_constraint import SHAPES
from naive_generate import naive_generate, naive_prompt_logprobs

from pellucid.config import SpeculativeMethod
from pellucid.engine.output_processor import add_delta
from pellucid.engine.step_pace import StepLoad
from pellucid.outputs import RequestOutput
from pellucid.sampling.constraints.mask_worker import MaskWorker
from pellucid.sampling_params import SamplingParams

STOPS = ("ab", "cde", "f", "gg", "<|im_end|>", "<tool>", "a<tool>", "abc")


def random_params(rng: random.Random, room: int) -> SamplingParams:
    fields: dict[str, Any] = {
        "n": rng.choice((1, 1, 1, 2, 3, 5)),
        "temperature": rng.choice((0.0, 0.7, 1.0, 1.5)),
        "seed": rng.choice((None, rng.randrange(2**40))),
        "max_tokens": rng.choice((None, 1, rng.randint(1, room))),
        "stop": rng.sample(STOPS, rng.choice((0, 1, 3))),
        "stop_token_ids": rng.choice(((), (), (ord("d"),), (EOS,))),
        "ignore_eos": rng.random() < 0.4,
        "include_stop_str_in_output": rng.random() < 0.3,
        "skip_special_tokens": rng.random() < 0.7,
        "logprobs": rng.choice((None, 0, 3)),
        "prompt_logprobs": rng.choice((None, None, 2)),
        "repetition_penalty": rng.choice((1.0, 1.3)),
        "logit_bias": rng.choice(({}, {259: 3.0})),
    }
    if rng.random() < 0.4:  # a long answer, so that blocks run out
        fields.update(max_tokens=None, stop=(), stop_token_ids=(), ignore_eos=True)
    if rng.random() < 0.3:
        fields.update(structured_outputs=rng.choice(SHAPES), ignore_eos=False, stop_token_ids=())
    if fields["max_tokens"]:
        fields["min_tokens"] = rng.choice((0, 0, rng.randint(0, fields["max_tokens"])))
    return SamplingParams(**fields)


class Run:
    """A random schedule over one engine; keeps what was asked and what came."""

    def __init__(self, rng: random.Random, *, num_requests: int) -> None:
        self.rng = rng
        self.max_model_len = rng.choice((40, 64, 100))
        fewest = -(-self.max_model_len // 16)
        method: SpeculativeMethod = rng.choice(("off", "auto", "auto", "ngram", "draft_model", "draft_model"))
        draft_model = None
        if method == "draft_model" or (method == "auto" and rng.random() < 0.5):
            draft_model = NoisyModel(rng.randrange(100), rng.choice((0.0, 0.3, 0.8)))
        self.engine = make_engine(
            num_blocks=rng.choice((fewest, fewest + 1, fewest + 4, 40)),
            max_model_len=self.max_model_len,
            max_num_seqs=rng.choice((1, 2, 4, 8)),
            max_num_batched_tokens=rng.choice((1, 3, 7, 16, 33, 64)),
            enable_prefix_caching=rng.random() < 0.8,
            speculative_method=method,
            num_speculative_tokens=rng.choice((1, 3, 7, 20)),
            draft_model=draft_model,
        )
        self.engine.runner._masks = MaskWorker(overlaps=rng.random() < 0.5)
        self.salts: dict[str, str] = {}
        self.num_tokens_found = 0
        self.asked: dict[str, tuple[list[int], SamplingParams]] = {}
        self.totals: dict[str, RequestOutput] = {}
        self.aborted: set[str] = set()
        self.deltas: dict[str, list[RequestOutput]] = {}
        self.prefilled: list[tuple[str, list[int]]] = []
        self.to_come = num_requests
        self.rush = rng.choice((0.05, 0.3, 0.3))

    def arrive(self) -> None:
        name = f"r{len(self.asked)}"
        prompt = self.random_prompt()
        params = random_params(self.rng, self.max_model_len - len(prompt))
        salt = self.salts[name] = self.rng.choice(("", "", "", "tenant"))
        priority = self.rng.choice((0, 0, 0, 1))
        self.engine.add_request(name, prompt, params, priority=priority, cache_salt=salt)
        self.asked[name] = (prompt, params)
        self.deltas[name] = []
        self.to_come -= 1

    def random_prompt(self) -> list[int]:
        """A new one, or one that begins as an earlier prompt, alone or with what was answered to it."""
        length = self.rng.randint(1, self.rng.choice((12, self.max_model_len - 1, self.max_model_len - 1)))
        prompt = [self.rng.choice(LETTERS) for _ in range(length)]
        if not self.asked or self.rng.random() < 0.3:
            return prompt
        name = self.rng.choice(sorted(self.asked))
        known = list(self.asked[name][0])
        if name in self.totals and self.totals[name].outputs:
            known += self.rng.choice(self.totals[name].outputs).token_ids
        known = known[: self.rng.choice((len(known), len(known), self.rng.randint(0, len(known))))]
        length = self.rng.choice((self.max_model_len, max(1, len(known)), 17, 33))
        return (known + prompt)[: min(length, self.max_model_len - 1)]

    def prefill(self) -> None:
        """Something that only fills the cache."""
        prompt, salt = self.random_prompt(), self.rng.choice(("", "tenant"))
        may = self.engine.args.enable_prefix_caching and len(self.prefilled) < 20  # a queue that grows never ends
        if may and len(prompt) >= 16:
            self.engine.add_prefill(f"ahead {len(self.prefilled)}", prompt, cache_salt=salt)
            self.prefilled.append((salt, prompt))

    def take(self, output: RequestOutput) -> None:
        if output.is_prefill:
            return
        self.deltas[output.request_id].append(output)
        self.totals[output.request_id] = add_delta(self.totals.get(output.request_id), output)

    def go(self) -> None:
        for _ in range(20_000):
            while self.to_come and self.rng.random() < self.rush:
                self.arrive()
            if self.rng.random() < 0.03:
                self.prefill()
            if self.rng.random() < 0.1:  # as if the last steps had been dear, or cheap
                self.engine.scheduler.pace.observe(StepLoad(0, 0, 8, 64), self.rng.choice((10**6, 10**9, 10**10)))
            if not self.engine.has_unfinished_requests():
                if not self.to_come:
                    break
                continue
            for output in self.engine.step():
                self.take(output)
            self.engine.check_integrity()
            check_cached_blocks(self.engine)
            if self.asked and self.rng.random() < 0.02:
                name = self.rng.choice(sorted(self.asked))
                output = self.engine.abort(name)
                if output is not None:
                    self.aborted.add(name)
                    self.take(output)
        assert not self.engine.has_unfinished_requests(), "the schedule does not end"
        self.engine.check_integrity()

    def check(self) -> None:
        for name, (prompt, params) in self.asked.items():
            total = self.totals[name]
            assert total.finished
            assert sum(delta.finished for delta in self.deltas[name]) == 1
            assert [c.index for c in total.outputs] == list(range(params.n))
            for completion in total.outputs:
                expected = naive_generate(prompt, params, completion.seed, completion.index, self.max_model_len)
                if completion.finish_reason == "abort":
                    assert name in self.aborted
                    assert completion.token_ids == expected.token_ids[: len(completion.token_ids)]
                    text = ByteTokenizer().decode(completion.token_ids, skip_special_tokens=params.skip_special_tokens)
                    assert completion.text == text, "text held back is given out"
                    continue
                assert completion.token_ids == expected.token_ids
                assert completion.text == expected.text
                assert completion.finish_reason == expected.finish_reason
                assert completion.stop_reason == expected.stop_reason
                if params.logprobs is not None:
                    got = [[(i, lp.logprob, lp.rank) for i, lp in row.items()] for row in completion.logprobs or []]
                    assert got == expected.logprobs, "logprobs to the bit"
            self.check_cached(name, total)
            if params.prompt_logprobs is not None and name not in self.aborted:
                assert total.prompt_logprobs is not None
                rows = [row and [(i, lp.logprob, lp.rank) for i, lp in row.items()] for row in total.prompt_logprobs]
                assert rows == naive_prompt_logprobs(prompt, params.prompt_logprobs)
                assert sum(delta.prompt_logprobs is not None for delta in self.deltas[name]) == 1

    def check_cached(self, name: str, total: RequestOutput) -> None:
        """What was found is whole blocks, never the last token, and was computed before under the same salt."""
        found, (prompt, params) = total.num_cached_tokens, self.asked[name]
        if found is None:
            assert name in self.aborted
            return
        assert found % 16 == 0
        assert found < len(prompt)
        if not self.engine.args.enable_prefix_caching or params.prompt_logprobs is not None:
            assert found == 0
        if found:
            self.num_tokens_found += found
            assert any(
                self.salts[other] == self.salts[name]
                and any((before + answer.token_ids)[:found] == prompt[:found] for answer in self.totals[other].outputs)
                for other, (before, _) in self.asked.items()
                if other != name
            ) or any(salt == self.salts[name] and ids[:found] == prompt[:found] for salt, ids in self.prefilled)


def check_schedule(number: int) -> None:
    rng = random.Random(number)
    run = Run(rng, num_requests=rng.randint(1, 10))
    run.go()
    run.check()


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_every_answer_is_what_it_is_alone(number: int) -> None:
    check_schedule(number)


@pytest.mark.slow
@settings(max_examples=500)
@given(st.integers(0, 2**32))
def test_every_answer_is_what_it_is_alone_in_many_schedules(number: int) -> None:
    check_schedule(number)


def test_the_random_schedules_do_what_they_are_for() -> None:
    """Preemption, prefixes found, evictions, drafts, aborts, both ends and stop strings all occur among them."""
    preemptions, num_stop_strings, num_found, num_evictions, reasons = 0, 0, 0, 0, set()
    drafted, accepted = 0, 0
    for number in range(50):
        run = Run(random.Random(number), num_requests=8)
        run.go()
        run.check()
        preemptions += run.engine.stats.num_preemptions
        num_found += run.num_tokens_found
        drafted += run.engine.stats.spec_draft_tokens
        accepted += run.engine.stats.spec_accepted_tokens
        num_evictions += run.engine.stats.prefix_cache_evicted_blocks
        for total in run.totals.values():
            reasons |= {c.finish_reason for c in total.outputs}
            num_stop_strings += sum(isinstance(c.stop_reason, str) for c in total.outputs)
    assert preemptions > 20
    assert num_found > 500
    assert num_evictions > 100
    assert drafted - accepted > 1000
    assert accepted > 300
    assert num_stop_strings > 10
    assert reasons == {"stop", "length", "abort"}
    assert IM_END in ByteTokenizer().eos_ids
