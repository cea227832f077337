"""The picture of which classes are taken for which: its cells are the counts."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from addnorm.errors import InputError
from addnorm.inspect import confusion
from addnorm.inspect.confusion import confusion_picture

PAIRS = [("a", "a"), ("a", "b"), ("b", "b"), ("b", "b"), ("$x", "a")]


def drawn(monkeypatch: pytest.MonkeyPatch, labels: list[str], file: Path) -> Figure:
    kept: list[Figure] = []
    whole = confusion.finished

    def finished(figure: Figure, *rest: object) -> Figure:
        kept.append(whole(figure, *rest))
        return kept[0]

    monkeypatch.setattr(confusion, "finished", finished)
    confusion_picture(PAIRS, labels, file)
    return kept[0]


def test_cells_are_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figure = drawn(monkeypatch, ["$x", "a", "b"], tmp_path / "a.png")
    [ax] = figure.axes
    cells = {(*text.get_position(),): text.get_text() for text in ax.texts}
    assert cells == {(1, 0): "1", (1, 1): "1", (2, 1): "1", (2, 2): "2"}  # (taken for, class)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["$x", "a", "b"]
    assert ax.images[0].get_array().tolist() == [[0, 1, 0], [0, 0.5, 0.5], [0, 0, 1]]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_many_classes_have_no_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    labels = ["$x", "a", "b", *(f"class {i}" for i in range(30))]
    figure = drawn(monkeypatch, labels, tmp_path / "a.svg")
    assert not figure.axes[0].texts


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="end the name in"):
        confusion_picture(PAIRS, ["$x", "a", "b"], tmp_path / "a.doc")
