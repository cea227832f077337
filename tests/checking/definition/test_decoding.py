"""The definition of decoding against exhaustive search."""

import math
from collections.abc import Sequence
from itertools import product

import pytest

from addnorm.checking.definition.decoding import Hypothesis, beam_search, greedy
from addnorm.generate.beam import BeamConfig

END = 0


def log_p(ids: Sequence[int]) -> list[float]:
    """Three tokens, more or less probable by what was written."""
    weights = [1 + (7 * sum(ids) + 3 * len(ids) + 5 * token) % 11 for token in range(3)]
    return [math.log(weight / sum(weights)) for weight in weights]


def every(limit: int, penalty: float) -> list[Hypothesis]:
    """All texts that end within the limit, best first."""
    found: list[Hypothesis] = []
    for n in range(1, limit + 1):
        for start in product((1, 2), repeat=n - 1):
            ids = (*start, END)
            total = sum(log_p(ids[:i])[ids[i]] for i in range(n))
            found.append(Hypothesis(ids, total / ((5 + n) / 6) ** penalty, True))
    return sorted(found, key=lambda h: -h.score)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("width", ["shrinking", "constant"])
def test_beams_wide_enough_find_the_best_of_all(penalty: float, width: str) -> None:
    config = BeamConfig(beams=64, n_best=3, length_penalty=penalty, width=width)  # type: ignore[arg-type]
    found = beam_search(log_p, config, 4, [END])
    assert [h.ids for h in found] == [h.ids for h in every(4, penalty)[:3]]
    assert found[0].score == pytest.approx(every(4, penalty)[0].score)


def test_unfinished_ones_follow_where_too_few_end() -> None:
    config = BeamConfig(beams=2, n_best=2, length_penalty=0.0)
    found = beam_search(lambda ids: [-50.0, -0.1, -5.0 + len(ids)], config, 3, [END])
    assert [(h.ids, h.ended) for h in found] == [((1, 1, 1), False), ((1, 1, 2), False)]
    assert found[0].score == pytest.approx(-0.3)


def test_widths_differ_in_what_ends_among_the_best() -> None:
    def two_ends(ids: Sequence[int]) -> list[float]:
        return [-0.1, -0.2, -9.0, -1.0] if not ids else [-3.0, -4.0, -0.1, -2.0]

    ends = [0, 1]
    shrinking = BeamConfig(beams=2, n_best=2, length_penalty=0.0)
    assert [h.ids for h in beam_search(two_ends, shrinking, 2, ends)] == [(0,), (1,)]
    constant = BeamConfig(beams=2, n_best=2, length_penalty=0.0, width="constant")
    assert [h.ids for h in beam_search(two_ends, constant, 2, ends)] == [(0,), (1,)]
    one = BeamConfig(beams=1, length_penalty=0.0)
    assert beam_search(lambda _: [-1.0, -2.0], one, 5, [0])[0].ids == (0,)


def test_greedy_ends_at_an_end_or_the_limit() -> None:
    assert greedy(lambda ids: [-1.0, -0.5], 3, [0]) == Hypothesis((1, 1, 1), -1.5, False)
    found = greedy(lambda ids: [-0.5, -1.0] if len(ids) else [-1.0, -0.5], 9, [0])
    assert (found.ids, found.ended) == ((1, 0), True)
