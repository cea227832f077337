"""What a cell measures: values of examples average to their score."""

from pathlib import Path

from addnorm.data.examples import Labelled, Pair, Scored, Text
from addnorm.lab.training import texts_of, values_of
from addnorm.runs.evaluation import Evaluation


def evaluation(predictions: dict[int, str]) -> Evaluation:
    return Evaluation({"loss": 1.0}, predictions, ((3.0, 2), (5.0, 2)))


def test_batches_have_their_losses_and_targets() -> None:
    found = values_of(evaluation({}), [])
    assert found == {"loss": [3.0, 5.0], "targets": [2.0, 2.0]}


def test_right_and_wrong_average_to_the_accuracy() -> None:
    examples = [Labelled("a", "yes"), Labelled("b", "no"), Labelled("c", "no")]
    found = values_of(evaluation({0: "yes", 1: "yes", 2: "no"}), examples)
    assert found["accuracy"] == [100.0, 0.0, 100.0]


def test_squares_average_to_the_mean_squared_error() -> None:
    examples = [Scored("a", (1.0, 2.0)), Scored("b", (0.0, 0.0))]
    found = values_of(evaluation({0: "2,2", 1: "1,3"}), examples)
    assert found["mse"] == [0.5, 5.0]


def test_translations_have_their_references() -> None:
    found = texts_of(evaluation({0: "ein Haus"}), [Pair("a house", "das Haus")])
    assert found == [("ein Haus", "das Haus")]
    assert texts_of(evaluation({}), [Text("a")]) == []


def test_damaged_times_are_begun_anew(tmp_path: Path) -> None:
    from addnorm.lab.training import TIMES, _times

    file = tmp_path / TIMES
    assert _times(file) == []
    for text, expected in (("[1,", []), ('["a"]', []), ("[1.5, 2]", [1.5, 2.0])):
        file.write_text(text)
        assert _times(file) == expected
