"""Results and findings: intervals fall on either side of a limit, or hold it."""

import math

import pytest

from addnorm.lab.claims.claim import Finding, Results, Row, verdict

TEXT = ("{mean} in {low} to {high}, {limit}", "{mean}：{low} 至 {high}，{limit}")


def results(*values: float, panel: str = "loss", series: str = "a", x: float = 1) -> Results:
    return Results((seed, Row(panel, series, x, value)) for seed, value in enumerate(values))


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        ((1.0, 1.1, 0.9), "supported", "refuted"),
        ((-1.0, -1.1, -0.9), "refuted", "supported"),
        ((-1.0, 1.0, 0.3), "undecided", "undecided"),
        ((5.0,), "undecided", "undecided"),
    ],
)
def test_a_limit_is_passed_missed_or_within(
    values: tuple[float, ...], least: str, most: str
) -> None:
    found = results(*values).mean("loss", "a", 1)
    assert Finding.at_least(found, 0.0, TEXT).word == least
    assert Finding.at_most(found, 0.0, TEXT).word == most


def test_findings_have_figures_in_both_languages() -> None:
    found = Finding.at_most(results(1.0, 1.2, 1.4).mean("loss", "a", 1), 0.5, TEXT)
    assert found.text == ("1.2 in 0.703 to 1.7, 0.5", "1.2：0.703 至 1.7，0.5")


def test_points_are_compared_seed_by_seed() -> None:
    rows = [(seed, Row("loss", "a", 1, 10.0 * seed)) for seed in (1, 2, 3)]
    rows += [(seed, Row("loss", "b", 1, 10.0 * seed + 1)) for seed in (3, 2)]
    found = Results(rows)
    a, b = ("loss", "a", 1), ("loss", "b", 1)
    assert found.difference(b, a).mean == 1
    assert found.difference(b, a).n == 2
    assert found.ratio(a, a).mean == 1
    assert math.isclose(found.ratio(b, a).mean, (21 / 20 + 31 / 30) / 2)


def test_places_are_numbers_in_order_then_words() -> None:
    places = (16, "none", 2, 0.5)
    found = Results((1, Row("loss", "a", x, 0.0)) for x in places)
    assert found.xs("loss") == [0.5, 2, 16, "none"]
    assert found.xs("loss", "b") == []
    assert found.series("loss") == ["a"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["supported", "supported"], "supported"),
        (["supported", "undecided"], "undecided"),
        (["refuted", "undecided", "supported"], "refuted"),
        ([], "undecided"),
    ],
)
def test_a_verdict_is_that_of_the_worst_part(words: list, expected: str) -> None:
    assert verdict([Finding(word, TEXT) for word in words]) == expected
