"""StepPace against steps whose cost is known, and the Scheduler under it: streams are not held up, nobody starves."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler import make_request

from pellucid.engine.scheduler import Scheduler, load_of
from pellucid.engine.step_pace import FIRST_CHUNK, LEAST_CHUNK, StepLoad, StepPace, num_pairs
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.request import Request
from pellucid.sampling_params import SamplingParams

MS = 1_000_000


@dataclass(frozen=True)
class Machine:
    """Nanoseconds of a step's parts."""

    fixed: float
    per_token: float
    per_pair: float

    def time(self, load: StepLoad) -> int:
        tokens, pairs = load.answer_tokens + load.prompt_tokens, load.answer_pairs + load.prompt_pairs
        return int(self.fixed + self.per_token * tokens + self.per_pair * pairs)


machines = st.builds(
    Machine, st.floats(1 * MS, 20 * MS), st.floats(0.05 * MS, 3 * MS), st.floats(0, 2_000).map(lambda x: round(x, 3))
)


def load(answers: int, prompt: tuple[int, int]) -> StepLoad:
    """`answers` answers at position 100, and a chunk (start, tokens)."""
    found = StepLoad()
    for _ in range(answers):
        found.add(100, 1, is_answer=True)
    if prompt[1]:
        found.add(*prompt, is_answer=False)
    return found


@given(machines, st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4000), st.integers(0, 512)), min_size=12))
def test_the_chunk_offered_takes_what_it_may(machine: Machine, seen: list[tuple[int, int, int]]) -> None:
    """Steps whose time is exactly of the model's form are predicted within a tenth, whatever they were."""
    pace = StepPace(250)
    for answers, start, tokens in [*seen, (8, 0, 0), (8, 0, 256), (8, 3000, 256), (4, 1500, 100), (0, 10, 500)]:
        known = load(answers, (start, tokens))
        pace.observe(known, machine.time(known))
    pace._ratios.clear()
    start = 2500
    room = pace.prompt_time(load(8, (0, 0)), is_streaming=True)
    tokens = pace.tokens_within(room, start, is_streaming=True)
    took = machine.time(load(8, (start, tokens)))
    assert took <= 1.25 * 250 * MS or tokens == 0
    if 0 < tokens < 512 and took > 100 * MS:
        assert took >= 0.5 * 250 * MS


def test_nothing_is_promised_before_anything_was_timed() -> None:
    pace = StepPace(250)
    assert pace.tokens_within(10**12, 0, is_streaming=True) == FIRST_CHUNK
    assert pace.tokens_within(1, 0, is_streaming=False) > 10**6
    known = load(0, (0, 40))
    pace.observe(known, MS)
    assert pace.tokens_within(10**12, 0, is_streaming=True) == 80, "at most twice of what was timed"


def test_later_chunks_are_dearer() -> None:
    pace, machine = StepPace(250), Machine(5 * MS, MS, 500)
    for start in range(0, 4000, 100):
        known = load(4, (start, 100))
        pace.observe(known, machine.time(known))
    offered = [pace.tokens_within(200 * MS, start, is_streaming=True) for start in (0, 2000, 8000)]
    assert offered == sorted(offered, reverse=True)
    assert offered[0] > 2 * offered[2]


def test_a_pair_costs_at_least_its_arithmetic() -> None:
    """Short prompts say nothing about long ones: a prompt that begins at a cached position 8,000 is not free."""
    pace = StepPace(250, pair_ratio=1e-3)
    for _ in range(10):
        known = load(0, (0, 100))
        pace.observe(known, 100 * MS)
    assert pace.tokens_within(100 * MS, 8000, is_streaming=True) <= 13


def test_a_machine_that_slows_down_gets_smaller_chunks() -> None:
    pace, machine = StepPace(250), Machine(5 * MS, MS, 0)
    for _ in range(40):
        pace.observe(load(1, (0, 100)), machine.time(load(1, (0, 100))))
    before = pace.tokens_within(pace.prompt_time(load(1, (0, 0)), is_streaming=True), 0, is_streaming=True)
    for _ in range(6):
        pace.observe(load(1, (0, 100)), 3 * machine.time(load(1, (0, 100))))
    after = pace.tokens_within(pace.prompt_time(load(1, (0, 0)), is_streaming=True), 0, is_streaming=True)
    assert after < before / 2


def test_pairs_are_counted() -> None:
    assert num_pairs(3, 2) == 4 + 5


class Run:
    """A Scheduler on a machine whose time is known."""

    def __init__(self, rng: random.Random, machine: Machine, *, max_num_seqs: int, num_blocks: int = 1024) -> None:
        self.rng, self.machine = rng, machine
        self.pace = StepPace(250)
        self.scheduler = Scheduler(KVCacheManager(num_blocks), max_num_seqs, 512, pace=self.pace)
        self.wanted: dict[int, int] = {}
        self.begun: list[Request] = []
        self.times: list[tuple[int, StepLoad]] = []
        """Nanoseconds and load of the steps in which somebody waited for his next token."""

    def add(
        self, num_prompt: int, num_output: int, *, client: str = "", priority: int = 0, prefill_only: bool = False
    ) -> Request:
        request = make_request(len(self.wanted), num_prompt, priority=priority, params=SamplingParams(max_tokens=99))
        request.client, request.max_output_tokens, request.prefill_only = client, num_output, prefill_only
        request.siblings.append(request)
        self.wanted[request.key] = num_output
        self.scheduler.add(request)
        return request

    def step(self) -> set[int]:
        """Keys of the requests that ended."""
        streaming = {r.key for r in self.scheduler.running if r.output_token_ids}
        output = self.scheduler.schedule()
        assert output.scheduled
        assert output.num_tokens <= 512
        self.begun += output.admitted
        known = load_of(output.scheduled)
        elapsed = self.machine.time(known)
        self.pace.observe(known, elapsed)
        if streaming & {entry.request.key for entry in output.scheduled}:
            self.times.append((elapsed, known))
        ended = set()
        for entry in output.scheduled:
            self.scheduler.mark_computed(entry)
            request = entry.request
            if entry.end < request.num_tokens:
                continue
            if not request.prefill_only:
                request.output_token_ids.append(1)
            if len(request.output_token_ids) >= (0 if request.prefill_only else self.wanted[request.key]):
                self.scheduler.finish(request, "length")
                ended.add(request.key)
        output.released.clear()
        if self.rng.random() < 0.02:
            self.scheduler.kv.check_integrity()
        return ended


@settings(max_examples=25)
@given(st.integers(0, 2**32), machines)
def test_whatever_comes_everyone_ends_and_no_stream_is_held_up(number: int, machine: Machine) -> None:
    rng = random.Random(number)
    run = Run(rng, machine, max_num_seqs=rng.choice((1, 3, 8)), num_blocks=rng.choice((140, 300)))
    to_come, ended = rng.randint(1, 12), set()
    for _ in range(20_000):
        while to_come and rng.random() < 0.2:
            run.add(
                rng.choice((rng.randint(1, 60), rng.randint(1, 2000))),
                rng.randint(1, 30),
                client=rng.choice("ab") + rng.choice(("", "", str(number))),
                priority=rng.choice((0, 0, 1)),
                prefill_only=rng.random() < 0.1,
            )
            to_come -= 1
        if not run.scheduler.has_requests:
            if not to_come:
                break
            continue
        ended |= run.step()
    assert ended == set(run.wanted), "every request ends"
    assert run.scheduler.kv.num_available == run.scheduler.kv.pool.num_blocks
    for elapsed, known in run.times:
        least = machine.time(StepLoad(known.answer_tokens, known.answer_pairs, min(LEAST_CHUNK, known.prompt_tokens)))
        alone = known.prompt_tokens <= LEAST_CHUNK
        assert elapsed <= 400 * MS or alone or least > 250 * MS


def test_a_long_prompt_goes_on_beside_streams_that_take_all_the_time() -> None:
    run = Run(random.Random(0), Machine(300 * MS, MS, 0), max_num_seqs=4)
    run.add(10, 50)
    run.step()
    long = run.add(100, 1)
    for _ in range(3):
        run.step()
    assert long.num_computed_tokens == 3 * LEAST_CHUNK


def test_no_guesses_on_top_of_prompts_beside_streams() -> None:
    run = Run(random.Random(0), Machine(5 * MS, MS, 0), max_num_seqs=4)
    run.add(10, 50)
    assert run.scheduler.schedule().may_draft, "nobody streams yet"
    run.step()
    assert run.scheduler.schedule().may_draft
    run.add(1000, 1)
    assert not run.scheduler.schedule().may_draft


def test_a_short_prompt_passes_a_long_one() -> None:
    run = Run(random.Random(0), Machine(5 * MS, MS, 0), max_num_seqs=4)
    long = run.add(4000, 1)
    run.step()
    short = run.add(100, 1)
    before = long.num_computed_tokens
    assert short.key in run.step()
    assert long.num_computed_tokens - before == 412, "what the short one does not need is the long one's"
    other = run.add(2000, 1)
    run.step()
    assert other.num_computed_tokens == 0, "half as long is not short"


def test_a_client_with_one_request_does_not_wait_for_anothers_hundred() -> None:
    run = Run(random.Random(0), Machine(5 * MS, MS, 0), max_num_seqs=2)
    many = [run.add(50, 5, client="many") for _ in range(100)]
    run.step()
    one = run.add(50, 5, client="one")
    while one not in run.begun:
        run.step()
    assert len(run.begun) <= 4
    assert run.begun[:2] == many[:2]


def test_shares_are_equal_in_tokens() -> None:
    """A client with long prompts gets as many tokens as one with short ones, not as many requests."""
    run = Run(random.Random(0), Machine(5 * MS, MS, 0), max_num_seqs=1)
    for _ in range(60):
        run.add(400, 1, client="long")
    for _ in range(60):
        run.add(100, 1, client="short")
    while len(run.begun) < 50:
        run.step()
    num_long = sum(request.client == "long" for request in run.begun)
    assert 8 <= num_long <= 12, "101 tokens to 401"


def test_newcomers_without_end_do_not_keep_a_busy_client_out() -> None:
    run = Run(random.Random(0), Machine(5 * MS, MS, 0), max_num_seqs=1)
    for _ in range(5):
        last = run.add(20, 2, client="busy")
    for number in range(400):
        run.add(20, 2, client=f"new {number}")
        run.step()
        if last in run.begun:
            return
    raise AssertionError("the busy client's last request never ran")


def test_a_client_alone_is_served_in_order_of_arrival() -> None:
    run = Run(random.Random(0), Machine(5 * MS, MS, 0), max_num_seqs=1)
    requests = [run.add(random.Random(n).randint(1, 90), 2) for n in range(20)]
    while run.scheduler.has_requests:
        run.step()
    assert run.begun == requests


def test_what_only_fills_the_cache_makes_way() -> None:
    run = Run(random.Random(0), Machine(5 * MS, MS, 0), max_num_seqs=1)
    ahead = run.add(2000, 0, priority=9, prefill_only=True)
    run.step()
    assert ahead.num_computed_tokens == 512
    asked = run.add(100, 2)
    run.step()
    assert run.begun[-1] is asked, "its place was taken by the one that only fills the cache"
    assert ahead.num_preemptions == 1
    while run.scheduler.has_requests:
        run.step()
    assert run.scheduler.kv.num_available == 1024
