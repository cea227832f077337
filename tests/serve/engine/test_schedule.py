"""The schedule: whatever arrives, every answer is that of a server with one request."""

from collections.abc import Iterator
from itertools import count
from random import Random
from time import perf_counter, process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.engine.simulator import Paged, answers_alone, run, run_step

from addnorm.serve.engine.pages import PagePool
from addnorm.serve.engine.schedule import Limits, QueueFull, Schedule, TooLarge
from addnorm.serve.engine.sequence import Request, Sequence


def request(name: str, prompt: list[int], limit: int = 5, **more: object) -> Request:
    return Request(name=name, prompt=tuple(prompt), limit=limit, **more)  # pyright: ignore[reportArgumentType]


requests = st.lists(
    st.tuples(
        st.lists(st.integers(1, 3), min_size=1, max_size=20),
        st.integers(1, 12),
        st.integers(1, 3),
        st.integers(0, 2),
        st.integers(0, 6),
    ),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(
    requests,
    st.integers(8, 40),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(3, 9),
    st.booleans(),
    st.sampled_from([float("inf"), 0, 3, 7]),
    st.sets(st.integers(0, 11), max_size=2),
)
def test_answers_are_those_of_requests_alone_and_all_pages_come_back(
    asked: list[tuple[list[int], int, int, int, int]],
    n_slots: int,
    page_size: int,
    chunk: int,
    rows: int,
    shares: bool,
    reach: float,
    cancelled: set[int],
) -> None:
    pool = PagePool(-(-n_slots // page_size), page_size)
    limits = Limits(rows=rows, chunk=chunk, shares=shares, reach=reach)
    steps = count()
    schedule, model = Schedule(pool, limits, lambda: now), Paged(pool, reach)
    now, added, ended = 0.0, dict[str, Request](), list[Sequence]()
    for i, (prompt, limit, n, priority, pause) in enumerate(asked):
        each = request(f"r{i}", prompt, limit, n=n, priority=priority)
        if len(prompt) + limit - 1 > pool.n_pages * page_size:
            with pytest.raises(TooLarge):
                schedule.add(each)
            continue
        schedule.add(each)
        added[each.name] = each
        for _ in range(pause):
            now = float(next(steps))
            ended += run_step(schedule, model)
        if i in cancelled:
            gone = schedule.cancel(each.name)
            assert all(sequence.ended == "cancelled" for sequence in gone)
            finished = [s for s in ended if s.request is each]
            assert len(gone) + len(finished) == n
            del added[each.name]
    ended += run(schedule, model)
    for each in added.values():
        answers = {s.index: (s.written, s.ended) for s in ended if s.request is each}
        assert [answers[i] for i in range(each.n)] == answers_alone(each)
    assert pool.held == 0
    assert len(ended) == len({id(s) for s in ended})


def test_a_common_beginning_is_computed_once() -> None:
    pool = PagePool(64, page_size=4)
    schedule = Schedule(pool, Limits(chunk=100))
    model = Paged(pool)
    prefix = list(range(1, 34))
    schedule.add(request("first", [*prefix, 7], 2))
    run(schedule, model)
    second = schedule.add(request("second", [*prefix, 9], 2))
    step = schedule.next_step()
    assert second.computed == 32
    assert step.decode == ()
    assert step.chunk == (second, 2)
    third = schedule.add(request("third", [*prefix, 9], 2, salt="another reader"))
    model.compute(step)
    schedule.finish(step)
    assert schedule.next_step().chunk == (third, 34)
    assert third.computed == 0


def test_the_last_token_of_a_prompt_is_computed_even_if_its_page_is_in_the_cache() -> None:
    pool = PagePool(64, page_size=4)
    schedule, model = Schedule(pool), Paged(pool)
    schedule.add(request("first", [1] * 8, 3))
    run(schedule, model)
    second = schedule.add(request("second", [1] * 8, 3))
    assert schedule.next_step().chunk == (second, 4)


def test_answers_of_one_request_share_the_pages_of_the_prompt() -> None:
    pool = PagePool(64, page_size=4)
    schedule, model = Schedule(pool), Paged(pool)
    schedule.add(request("r", [1] * 30, 3, n=5))
    run_step(schedule, model)
    assert pool.held == 8  # the last one is copied when it is written
    run_step(schedule, model)
    assert pool.held <= 8 + 4


def test_a_chunk_is_read_in_the_steps_of_sequences_that_are_written() -> None:
    pool = PagePool(64, page_size=4)
    schedule, model = Schedule(pool, Limits(chunk=8)), Paged(pool)
    first = schedule.add(request("first", [5], 40))
    run_step(schedule, model)
    second = schedule.add(request("second", [1] * 20, 4))
    for n in (8, 8, 4):
        step = schedule.next_step()
        if first.ended is None:
            assert step.decode == (first,)
        assert step.chunk == (second, n)
        model.compute(step)
        schedule.finish(step)
        if first.ended is None:
            first.tokens.append(1)
    assert second.missing == 0


def test_the_newest_is_set_aside_and_computed_again() -> None:
    pool = PagePool(6, page_size=2)
    schedule, model = Schedule(pool), Paged(pool)
    prompts = ([i, 2] for i in range(1, 99))
    long = [request(f"r{p[0]}", p, 9) for p in prompts]
    every = [each for each in long if len(answers_alone(each)[0][0]) == 9][:3]
    for each in every:
        schedule.add(each)
    ended = run(schedule, model)
    assert schedule.n_set_aside > 0
    by_name = {s.request.name: (s.written, s.ended) for s in ended}
    assert [by_name[each.name] for each in every] == [answers_alone(each)[0] for each in every]


def test_priority_starts_first_and_waiting_raises_it() -> None:
    now = 0.0
    schedule = Schedule(PagePool(64, 4), Limits(rows=1, ageing=10.0), lambda: now)
    low = schedule.add(request("low", [1, 2]))
    now = 5.0
    high = schedule.add(request("high", [1, 2], priority=1))
    now = 16.0
    late = schedule.add(request("late", [1, 2], priority=1))
    order = list[Sequence]()
    for _ in range(3):
        schedule.next_step()
        order += schedule.running
        schedule.end(schedule.running[0], "stop")
    assert order == [high, low, late]


def test_a_full_queue_and_a_passed_deadline_are_told() -> None:
    now = 0.0
    schedule = Schedule(PagePool(8, 4), Limits(queue=2, rows=2), lambda: now)
    schedule.add(request("a", [1] * 20, 2, n=2, deadline=3.0))
    schedule.add(request("b", [1], 2))
    with pytest.raises(QueueFull, match="try again in 1 s"):
        schedule.add(request("c", [1], 2))
    schedule.next_step()
    now = 3.0
    assert [(s.index, s.ended) for s in schedule.expire()] == [(0, "timeout"), (1, "timeout")]
    assert schedule.pool.held == 0
    assert schedule.n_waiting == 1


def test_what_never_fits_is_refused() -> None:
    schedule = Schedule(PagePool(2, 4), Limits(rows=3))
    schedule.add(request("fits", [1] * 8, 1))
    with pytest.raises(
        TooLarge,
        match=r"8 tokens and 2 new ones: 9 are kept, .* at most 8$",
    ):
        schedule.add(request("long", [1] * 8, 2))
    with pytest.raises(TooLarge, match="n = 4: at most 3"):
        schedule.add(request("many", [1], 1, n=4))


@pytest.mark.long
def test_many_requests_of_heavy_tails_are_answered_and_none_starves() -> None:
    random = Random(0)
    pool = PagePool(512, 16)
    now = 0.0
    schedule = Schedule(pool, Limits(rows=64, queue=10**9), lambda: now)
    model = Paged(pool)
    started, waited = dict[str, float](), list[float]()
    for i in range(2_000):
        prompt = [
            random.randrange(1, 9) for _ in range(min(2000, int(random.paretovariate(1.1) * 8)))
        ]
        each = request(f"r{i}", prompt, min(500, int(random.paretovariate(1.1) * 8)))
        started[each.name] = now
        schedule.add(each)
        for _ in range(random.randrange(4)):
            now += 0.01
            waited += [now - started[s.request.name] for s in run_step(schedule, model)]
    waited += [now - started[s.request.name] for s in run(schedule, model)]
    assert len(waited) == 2_000
    assert pool.held == 0


def arrivals(n: int) -> Iterator[Request]:
    """Requests of which few are very long, each with a prompt of its own."""
    random = Random(0)
    for i in range(n):
        length = min(2000, int(random.paretovariate(1.1) * 8))
        limit = min(500, int(random.paretovariate(1.1) * 8))
        yield request(f"r{i}", [i, *[7] * (length - 1)], limit)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_thousand_requests_are_scheduled_within_a_minute_and_none_starves() -> None:
    """A queue that is always full; every request starts before the next few queues' worth."""
    now = 0.0
    schedule = Schedule(PagePool(4096, 16), Limits(chunk=512), lambda: now)
    ahead, n_ended = arrivals(100_000), 0
    waiting = next(ahead, None)
    entered = dict[str, int]()
    seconds = process_time()
    while waiting is not None or schedule.running or schedule.n_waiting:
        while waiting is not None and schedule.n_waiting < 256:
            schedule.add(waiting)
            entered[waiting.name] = n_ended
            waiting = next(ahead, None)
        now += 0.05
        schedule.expire()
        step = schedule.next_step()
        schedule.finish(step)
        for sequence in (*step.decode, *(() if step.chunk is None else step.chunk[:1])):
            if not sequence.missing:
                if not sequence.written:
                    assert n_ended - entered[sequence.request.name] < 2048
                sequence.tokens.append(5)
                if sequence.is_full:
                    schedule.end(sequence, "length")
                    del entered[sequence.request.name]
                    n_ended += 1
    assert process_time() - seconds < 60
    assert (n_ended, schedule.pool.held) == (100_000, 0)


@pytest.mark.slow
def test_a_step_of_256_sequences_is_scheduled_within_a_millisecond() -> None:
    schedule = Schedule(PagePool(256 * 40, 16), Limits(chunk=1000))
    for i in range(256):
        schedule.add(request(f"r{i}", [i] * 200, 400))
    for _ in range(300):
        advance(schedule)
    assert len(schedule.running) == 256
    seconds = []
    for _ in range(50):
        start = perf_counter()
        step = schedule.next_step()
        schedule.finish(step)
        seconds.append(perf_counter() - start)
        assert len(step.decode) == 256
        for sequence in step.decode:
            sequence.tokens.append(5)
    assert min(seconds) < 1e-3


def advance(schedule: Schedule) -> None:
    """One step, in which each sequence that has read its tokens writes one."""
    step = schedule.next_step()
    schedule.finish(step)
    for sequence in (*step.decode, *(() if step.chunk is None else step.chunk[:1])):
        if not sequence.missing:
            sequence.tokens.append(5)
