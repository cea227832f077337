"""Plans: every way to split cards once, and the micro-batches and idle time of a schedule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.training.parallel.planner.estimate import rows_at_once
from addnorm.training.parallel.planner.plan import Held, Plan, divisors, meshes


@given(st.integers(1, 96), st.integers(1, 64))
def test_numbers_of_a_mesh_multiply_to_the_cards(cards: int, rows: int) -> None:
    every = [*meshes(cards, rows=rows, n_layers=6, seq_len=64)]
    assert len({*every}) == len(every)
    for plan in every:
        assert plan.cards == cards
        assert rows >= plan.data
        assert plan.pipeline <= 6
        assert plan.replicas > 1 or not plan.shard


@given(st.integers(1, 96), st.integers(1, 9))
def test_batches_have_as_many_rows_and_processes_at_most_those_of_a_plan(
    rows: int, data: int
) -> None:
    for each in rows_at_once(rows, data) if rows >= data else ():
        batch, rest = divmod(rows, Plan(data=data, rows=each).micro_batches(rows))
        assert rest == 0
        assert batch >= data
        assert -(-batch // data) == each
        assert batch % data == 0 or rows % data


def test_every_mesh_of_four_cards_is_there() -> None:
    every = {
        (p.data, p.tensor, p.pipeline, p.context) for p in meshes(4, rows=4, n_layers=4, seq_len=64)
    }
    assert len(every) == 10  # ways to write 4 as an ordered product of four numbers


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 4))
def test_each_layer_has_one_process(n_layers: int, pipeline: int, stages: int) -> None:
    held = Held(pipeline, stages)
    layers = [i for process in range(pipeline) for r in held.layers(n_layers, process) for i in r]
    assert sorted(layers) == [*range(n_layers)]


def peak(pipeline: int, n: int, process: int) -> int:
    """The micro-batches that a process holds at most in 1F1B, by running the schedule."""
    forward, backward = [-1] * pipeline, [-1] * pipeline
    done: list[list[str]] = [[] for _ in range(pipeline)]
    most = 0
    while any(b < n - 1 for b in backward):
        before = [*forward], [*backward]
        for p in range(pipeline):
            ready_back = p == pipeline - 1 or before[1][p + 1] > backward[p]
            ready = p == 0 or before[0][p - 1] > forward[p]
            waiting = forward[p] - backward[p] >= min(n, pipeline - p)
            if backward[p] < forward[p] and ready_back and (waiting or forward[p] == n - 1):
                backward[p] += 1
            elif forward[p] < n - 1 and ready and not waiting:
                forward[p] += 1
            done[p].append("")
        most = max(most, forward[process] - backward[process])
    return most


@given(st.integers(2, 6), st.integers(1, 9), st.data())
def test_micro_batches_in_flight_are_those_of_the_schedule(
    pipeline: int, n: int, data: st.DataObject
) -> None:
    process = data.draw(st.integers(0, pipeline - 1))
    plan = Plan(pipeline=pipeline)
    assert plan.in_flight(n, process) == peak(pipeline, n, process)


def test_the_idle_time_is_that_of_the_papers() -> None:
    assert Plan(pipeline=4).bubble(8) == 3 / 8
    assert Plan(pipeline=4, schedule="interleaved", stages=2).bubble(8) == 3 / 16
    assert Plan().bubble(8) == 0
    interleaved = Plan(pipeline=8, schedule="interleaved", stages=3)
    first = interleaved.in_flight(64, 0)  # Korthikanti et al. 2022, §4.2.3
    assert first / 8 == pytest.approx(1 + 7 / 24, rel=0.01)
    assert Plan(pipeline=4, schedule="gpipe").in_flight(16, 3) == 16


def test_divisors_are_all_there() -> None:
    for n in (1, 2, 12, 36, 97, 1024):
        assert divisors(n) == [k for k in range(1, n + 1) if n % k == 0]
    assert divisors(1_000_000_007) == [1, 1_000_000_007]
