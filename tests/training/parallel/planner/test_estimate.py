"""The best plan comes first, and every other one says why it is not."""

from dataclasses import replace

import pytest
from tests.training.parallel.planner.published import sizes

from addnorm.errors import InputError
from addnorm.training.parallel.planner.cluster import CARDS, LINKS, Cluster
from addnorm.training.parallel.planner.estimate import Plans, estimate, plans, why_not
from addnorm.training.parallel.planner.memory import memory
from addnorm.training.parallel.planner.model import ModelSizes
from addnorm.training.parallel.planner.speed import step_time
from addnorm.training.parallel.planner.traffic import exchanges
from addnorm.training.parallel.planner.training import OURS, Training

CLUSTER = Cluster(8, CARDS["h100"], LINKS["nvlink4"], LINKS["ib400"], 8)
TRAINING = Training(rows=16, seq_len=8192, steps=1000, precision="bfloat16")


def of_8b(tensor: int) -> ModelSizes:
    if tensor > 4:
        raise InputError(f"heads do not divide among {tensor}")
    return sizes("Llama 3 8B", tensor)


@pytest.fixture(scope="module")
def found() -> Plans:
    return plans(of_8b, TRAINING, CLUSTER)


def test_those_that_fit_come_first_and_the_fastest_of_them(found: Plans) -> None:
    fit = [each for each in found.estimates if each.fits]
    assert [*found.estimates[: len(fit)]] == fit
    times = [each.time.total for each in fit]
    assert times == sorted(times)
    least = [each.memory.total for each in found.estimates[len(fit) :]]
    assert least == sorted(least)
    assert all(each.memory.total > CLUSTER.card.memory for each in found.estimates[len(fit) :])


def test_each_says_why_it_loses_or_does_not_fit(found: Plans) -> None:
    best = found.estimates[0]
    for each in found.estimates[1:]:
        text = why_not(each, best, CLUSTER)
        assert (" × the time: " in text) == each.fits
        assert ("GB of 80, " in text) == (not each.fits)


def test_a_number_that_does_not_divide_is_left_out_with_its_reason(found: Plans) -> None:
    assert found.refused == {8: "heads do not divide among 8"}
    assert all(each.plan.tensor <= 4 for each in found.estimates)


def test_the_chosen_variant_takes_no_longer_than_a_plain_one(found: Plans) -> None:
    for each in found.estimates[:20]:
        plain = replace(each.plan, rows=1, schedule="1f1b", stages=1, checkpointing="none")
        other = estimate(of_8b(plain.tensor), TRAINING, plain, CLUSTER)
        assert not other.fits or each.time.total <= other.time.total * 1.000001


def test_utilisation_is_of_the_peak_of_all_cards(found: Plans) -> None:
    best = found.estimates[0]
    flops = 6 * 7.5e9 * best.tokens_per_second  # without attention and the embedding
    assert 1 < best.mfu * 989e12 / flops < 1.4
    assert best.hfu >= best.mfu
    assert best.days == pytest.approx(TRAINING.tokens * 1000 / best.tokens_per_second / 8 / 86_400)
    assert OURS.weights == 4


@pytest.mark.parametrize("pipeline", [2, 3, 5, 12, 24])
def test_the_process_that_needs_most_is_among_those_computed(found: Plans, pipeline: int) -> None:
    """Also where 32 layers do not divide, and a later process has more of them than the first."""
    model = of_8b(1)
    for schedule in ("1f1b", "gpipe"):
        plan = replace(
            found.estimates[0].plan,
            data=1, tensor=1, context=1, pipeline=pipeline, schedule=schedule, stages=1, rows=1,
        )  # fmt: skip
        of_all = [memory(model, TRAINING, OURS, plan, p).total for p in range(pipeline)]
        result = estimate(model, TRAINING, plan, CLUSTER)
        assert result.memory.total == max(of_all)
        times = [
            step_time(
                model, TRAINING, OURS, plan, CLUSTER, exchanges(model, TRAINING, OURS, plan, p), p
            ).total
            for p in range(pipeline)
        ]
        assert result.time.total == max(times)
