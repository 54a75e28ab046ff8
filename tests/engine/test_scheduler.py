"""The Scheduler alone, without a model: order, budget, admission, preemption."""

from __future__ import annotations

from typing import Any

from pellucid.engine.fairness import MAX_OVERTAKING
from pellucid.engine.scheduler import Scheduler, SchedulerOutput
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.request import Request, RequestStatus
from pellucid.sampling_params import SamplingParams


def make_scheduler(num_blocks: int = 8, max_num_seqs: int = 4, budget: int = 32, **fields: Any) -> Scheduler:
    return Scheduler(KVCacheManager(num_blocks, 16), max_num_seqs, budget, **fields)


def make_request(
    key: int,
    num_prompt: int,
    *,
    priority: int = 0,
    params: SamplingParams | None = None,
    cache_key: tuple[str, ...] = (),
) -> Request:
    return Request(
        key=key,
        request_id=str(key),
        prompt_token_ids=[1] * num_prompt,
        params=params or SamplingParams(),
        seed=0,
        max_output_tokens=100,
        end_token_ids=frozenset(),
        arrival=key,
        priority=priority,
        cache_key=cache_key,
    )


def add(scheduler: Scheduler, key: int, num_prompt: int, *, priority: int = 0) -> Request:
    request = make_request(key, num_prompt, priority=priority)
    request.siblings.append(request)
    scheduler.add(request)
    return request


def step(scheduler: Scheduler) -> dict[int, tuple[int, int]]:
    """{key: (start, end)} of one step, with a token drawn where all is computed."""
    output = scheduler.schedule()
    complete(scheduler, output)
    return {entry.request.key: (entry.start, entry.end) for entry in output.scheduled}


def complete(scheduler: Scheduler, output: SchedulerOutput) -> None:
    for entry in output.scheduled:
        assert len(entry.block_table) * 16 >= entry.end
        scheduler.mark_computed(entry)
        if entry.end == entry.request.num_tokens:
            entry.request.output_token_ids.append(1)


def test_budget_is_used_up_in_order() -> None:
    scheduler = make_scheduler()
    for key, length in enumerate((10, 40, 5)):
        add(scheduler, key, length)
    assert step(scheduler) == {0: (0, 10), 1: (0, 22)}
    assert step(scheduler) == {0: (10, 11), 1: (22, 40), 2: (0, 5)}
    assert step(scheduler) == {0: (11, 12), 1: (40, 41), 2: (5, 6)}


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    requests = [add(scheduler, key, 3) for key in range(3)]
    assert set(step(scheduler)) == {0, 1}
    scheduler.finish(requests[0], "stop")
    assert set(step(scheduler)) == {1, 2}


def test_admission_keeps_room_for_those_who_run() -> None:
    scheduler = make_scheduler(num_blocks=4)
    add(scheduler, 0, 20)  # two blocks, and one to grow into
    add(scheduler, 1, 20)
    assert set(step(scheduler)) == {0}
    assert set(step(scheduler)) == {0}, "the second would be preempted as soon as the first grows"


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    scheduler = make_scheduler(num_blocks=4)
    add(scheduler, 0, 20)
    add(scheduler, 1, 60)
    add(scheduler, 2, 1)
    for _ in range(5):
        assert set(step(scheduler)) == {0}


def test_the_newest_gives_way_and_comes_back_first() -> None:
    scheduler = make_scheduler(num_blocks=5)
    first, second = add(scheduler, 0, 14), add(scheduler, 1, 14)
    add(scheduler, 2, 60)
    while second.num_preemptions == 0:
        step(scheduler)
    assert second.status is RequestStatus.WAITING
    assert scheduler.waiting[0] is second
    assert second.num_computed_tokens == 0
    assert len(second.output_token_ids) > 0, "its output is kept"
    assert first.num_preemptions == 0
    scheduler.finish(first, "stop")
    assert step(scheduler) == {1: (0, 32)}, "recomputed, in chunks of the budget"
    scheduler.kv.check_integrity()


def test_priority_comes_before_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, 0, 3, priority=1)
    add(scheduler, 1, 3, priority=0)
    assert set(step(scheduler)) == {1}


def under_load(low_priority: list[int], num_steps: int) -> list[int]:
    """Keys in the order in which they start, where two urgent requests more than fit come with every step."""
    scheduler = make_scheduler(num_blocks=40, max_num_seqs=2)
    for key, priority in enumerate(low_priority):
        add(scheduler, key, 40, priority=priority)
    started: list[int] = []
    for number in range(num_steps):
        for more in range(2):
            add(scheduler, 1000 + 2 * number + more, 3, priority=-(2**31) + 1)
        output = scheduler.schedule()
        started += [request.key for request in output.admitted]
        complete(scheduler, output)
        for request in [one for one in scheduler.running if one.output_token_ids]:
            scheduler.finish(request, "stop")
    scheduler.kv.check_integrity()
    return started


def test_priorities_delay_and_do_not_starve() -> None:
    started = under_load([5, 2**31 - 1], 300)
    places = [started.index(key) for key in (0, 1)]
    assert places == sorted(places)
    assert places[0] <= MAX_OVERTAKING + 2
    assert places[1] <= 2 * (MAX_OVERTAKING + 2)


def test_a_crowd_of_low_priority_does_not_turn_the_order_round() -> None:
    started = under_load([1] * 200, 400)
    urgent = sum(key >= 1000 for key in started)
    assert len(started) - urgent >= 3, "they are served"
    assert urgent >= MAX_OVERTAKING * (len(started) - urgent)


def test_a_step_that_was_not_completed_is_scheduled_again() -> None:
    scheduler = make_scheduler()
    add(scheduler, 0, 40)
    first = scheduler.schedule().scheduled[0]
    used = scheduler.kv.pool.num_free
    second = scheduler.schedule().scheduled[0]
    assert (first.start, first.end) == (second.start, second.end) == (0, 32)
    assert scheduler.kv.pool.num_free == used


def test_a_request_preempted_within_the_step_is_not_in_it_and_gives_its_budget_back() -> None:
    """The answer goes first, then the more urgent prompt needs its blocks."""
    scheduler = make_scheduler(num_blocks=7, budget=3)
    low = add(scheduler, 0, 3, priority=1)
    step(scheduler)
    high = add(scheduler, 1, 80, priority=0)
    while low.num_preemptions == 0:
        assert high.num_tokens - high.num_computed_tokens > 1
        entries = step(scheduler)
    assert set(entries) == {1}
    start, end = entries[1]
    assert end - start == 2, "the chunk had been cut to two before; what is given back is for those after it"
    scheduler.kv.check_integrity()
    assert scheduler.kv.num_blocks_held(0) == 0


def test_budget_given_back_serves_the_next() -> None:
    scheduler = make_scheduler(num_blocks=7, budget=4)
    low = add(scheduler, 0, 14, priority=2)
    while not low.output_token_ids:
        step(scheduler)
    for request in (add(scheduler, 1, 80, priority=0), add(scheduler, 2, 30, priority=1)):
        scheduler.waiting.remove(request)
        scheduler.running.append(request)  # the last one has no budget as long as the others run
        request.status = RequestStatus.RUNNING
    while low.num_preemptions == 0:
        entries = step(scheduler)
    assert {key: end - start for key, (start, end) in entries.items()} == {1: 3, 2: 1}


def test_prompt_rows_still_to_be_reported_are_not_taken_from_a_sibling() -> None:
    scheduler = make_scheduler()
    params = SamplingParams(n=2, prompt_logprobs=1)
    first, second = (make_request(key, 20, params=params, cache_key=("own",)) for key in (0, 1))
    second.sample_index, second.arrival = 1, 0
    first.siblings = second.siblings = [first, second]
    scheduler.add(second)
    assert step(scheduler) == {1: (0, 20)}
    scheduler.add(first)
    assert step(scheduler)[0] == (0, 20)
    assert step(scheduler) == {0: (20, 21), 1: (21, 22)}


def test_a_sibling_takes_the_full_blocks_of_the_prompt() -> None:
    scheduler = make_scheduler(budget=64)
    params = SamplingParams(n=2)
    first, second = (make_request(key, 40, params=params, cache_key=("own",)) for key in (0, 1))
    second.sample_index, second.arrival = 1, 0
    first.siblings = second.siblings = [first, second]
    scheduler.add(first)
    scheduler.add(second)
    assert step(scheduler) == {0: (0, 40)}, "the second waits for the prompt"
    assert step(scheduler) == {0: (40, 41), 1: (32, 40)}
    assert scheduler.kv.block_table(0)[:2] == scheduler.kv.block_table(1)[:2]
    for request in (first, second):
        scheduler.finish(request, "stop")
    assert len(scheduler.kv.cache) == 0, "without prefix caching nothing is kept"
    scheduler.kv.check_integrity()


def cached(scheduler: Scheduler, key: int, num_prompt: int, **fields: Any) -> Request:
    request = make_request(key, num_prompt, cache_key=("", "float16"), **fields)
    request.siblings.append(request)
    scheduler.add(request)
    return request


def test_a_request_computes_what_the_cache_has_not() -> None:
    scheduler = make_scheduler(budget=64, enable_prefix_caching=True)
    scheduler.finish(cached_and_run(scheduler, 0, 40), "stop")
    warm = cached(scheduler, 1, 45)
    assert step(scheduler) == {1: (32, 45)}
    assert warm.num_cached_tokens == 32
    assert (scheduler.num_queried_tokens, scheduler.num_hit_tokens) == (85, 32)


def cached_and_run(scheduler: Scheduler, key: int, num_prompt: int) -> Request:
    request = cached(scheduler, key, num_prompt)
    while not request.output_token_ids:
        step(scheduler)
    return request


def test_a_preempted_request_finds_again_what_nobody_needed() -> None:
    scheduler = make_scheduler(num_blocks=6, enable_prefix_caching=True)
    add(scheduler, 0, 14)
    second = cached(scheduler, 1, 40)
    while second.num_preemptions == 0:
        step(scheduler)
    assert second.num_computed_tokens == 0
    while second.num_computed_tokens == 0:
        entries = step(scheduler)
        scheduler.kv.check_integrity()
        if scheduler.running == [] or 0 in entries:
            scheduler.finish(scheduler.running[0], "stop")
    start, end = entries[1]
    assert start > 0
    assert end == second.num_tokens - 1
    assert second.num_cached_tokens == 0, "told once, of the prompt"


def test_cached_blocks_that_are_taken_can_no_longer_be_evicted() -> None:
    """Two blocks are free and two evictable: taking these two leaves nothing for the others to grow into."""
    scheduler = make_scheduler(num_blocks=5, budget=64, enable_prefix_caching=True)
    scheduler.finish(cached_and_run(scheduler, 0, 33), "stop")
    busy = add(scheduler, 1, 20)
    assert step(scheduler) == {1: (0, 20)}
    late = cached(scheduler, 2, 33)
    assert set(step(scheduler)) == {1}, "three blocks for the newcomer and one to grow into are not there"
    scheduler.finish(busy, "stop")
    assert step(scheduler) == {2: (32, 33)}
    assert late.num_cached_tokens == 32
    scheduler.kv.check_integrity()


def test_two_of_the_same_at_once_end_with_one_copy() -> None:
    scheduler = make_scheduler(num_blocks=12, budget=100, enable_prefix_caching=True)
    first, second = cached(scheduler, 0, 40), cached(scheduler, 1, 40)
    output = scheduler.schedule()
    assert [entry.start for entry in output.scheduled] == [0, 0]
    complete(scheduler, output)
    assert scheduler.released == [1], "the runner reads its table again"
    assert scheduler.kv.block_table(0)[:2] == scheduler.kv.block_table(1)[:2]
    assert scheduler.kv.pool.num_free == 12 - 4
    for request in (first, second):
        scheduler.finish(request, "stop")
    scheduler.kv.check_integrity()
    assert scheduler.kv.num_available == 12
