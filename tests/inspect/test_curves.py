"""Training curves show the logged metrics."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from addnorm.errors import InputError
from addnorm.inspect.curves import Curves, distinct_names, smoothed, training_picture


def journal(folder: Path, lines: list[dict[str, float]]) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def steps(n: int, start: int = 1) -> list[dict[str, float]]:
    return [
        {"step": i, "loss": 9.0 / i, "grad_norm": 0.5, "lr": 1e-3, "tokens": 7}
        for i in range(start, start + n)
    ]


def test_curves_have_each_step_once(tmp_path: Path) -> None:
    lines = [*steps(4), {"step": 4, "valid_loss": 2.0}, {"step": 3, "loss": 5.0}]
    curves = Curves.of(journal(tmp_path / "r", lines))
    assert curves.name == "r"
    assert curves.steps["loss"] == ([1, 2, 3, 4], [9.0, 4.5, 5.0, 2.25])
    assert curves.steps["lr"][1] == [1e-3] * 4
    assert curves.valid == ([4], [2.0])
    with pytest.raises(InputError, match="nothing to draw"):
        Curves.of(tmp_path)


def test_smoothed_is_a_mean_of_the_last_values() -> None:
    assert smoothed([4.0, 2.0, 6.0], 10) == [4.0, 3.0, 4.0]
    assert smoothed([4.0, 2.0, 6.0], 1) == [4.0, 2.0, 6.0]
    assert smoothed([0.0] * 50 + [1.0] * 500, 10)[-1] == pytest.approx(1.0)


def test_a_picture_has_every_run_and_its_points(tmp_path: Path) -> None:
    folder = journal(tmp_path / "one", [*steps(200), {"step": 100, "valid_loss": 2.0}])
    two = journal(tmp_path / "二", steps(5))
    figure = training_picture([Curves.of(folder), Curves.of(two)], title="Two runs")
    assert isinstance(figure, Figure)
    loss, rate, norm = figure.axes
    assert [ax.get_ylabel() for ax in figure.axes] == ["loss", "learning rate", "gradient norm"]
    drawn = {tuple(map(float, line.get_ydata())) for line in loss.lines}
    assert tuple(9.0 / i for i in range(1, 201)) in drawn
    assert tuple(smoothed([9.0 / i for i in range(1, 201)], 4)) in drawn
    assert (2.0,) in drawn
    legend = loss.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels[:2] == ["one, training", "one, validation"]
    assert len(labels) == 3
    assert len(rate.lines) == 2
    assert len(norm.lines) == 3


def test_runs_of_one_name_are_distinguished_by_their_folders() -> None:
    paths = [Path("/a/small/run"), Path("/a/large/run"), Path("/b/large/run"), Path("/a/other")]
    assert distinct_names(paths) == ["small/run", "a/large/run", "b/large/run", "other"]
    assert distinct_names([Path("/run"), Path("/a/run")])[1] == "a/run"


@pytest.mark.parametrize("name", ["x$frac$", "_net", "lr$1e-3$_2"])
def test_every_name_of_a_run_is_drawn_literally(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = journal(tmp_path / name, steps(3))
    figure = training_picture([Curves.of(folder)], tmp_path / "p.png")
    [text] = figure.axes[0].get_legend().get_texts()
    assert text.get_text().strip() == f"{name}, training"
    assert not text.get_parse_math()
    monkeypatch.chdir(folder)
    assert Curves.of(Path()).name == name


def test_a_picture_that_cannot_be_written_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Figure, file: Path, **__: object) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / "p.png").write_bytes(b"earlier")
    curves = Curves.of(journal(tmp_path / "r", steps(3)))
    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(InputError, match=r"p\.png cannot be written: No space left"):
        training_picture([curves], tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.png", "r"]
