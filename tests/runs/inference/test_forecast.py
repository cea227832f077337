"""A run that forecasts: trained, resumed, evaluated, and asked for what comes next."""

import csv
import json
import math
import shutil
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.runs.tiny import quiet
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.runs.evaluation import evaluation_of
from addnorm.runs.inference.forecast import forecast
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run

RECIPE = """
[data]
kind = "series"
file = "waves.csv"
valid_from = 240
test_from = 300

[model]
kind = "encoder"
d_model = 8
n_layers = 1
input = { kind = "series", channels = 2, patch = 6, norm = "instance", variables = "independent",
          look_back = 24 }
position = { kind = "learned" }
attention = { n_heads = 2 }
feedforward = { kind = "mlp", d_ff = 16 }
residual = { kind = "pre" }
head = { kind = "forecast", horizon = 6 }
dropout = 0.1

[train]
epochs = 6
batching = { kind = "series", size = 16 }
lr = 1e-2
schedule = { kind = "constant" }
""".replace(",\n          look_back", ", look_back")
START, HOUR, N = datetime(2020, 1, 1), timedelta(hours=1), 360


def waves(first: int = 0, last: int = N) -> list[str]:
    """Two noisy waves of a day, on other levels and scales."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.05, (N + 100, 2))
    lines = ["when,low,high"]
    for i in range(first, last):
        angle = 2 * math.pi * i / 24
        low, high = math.sin(angle) + noise[i, 0], 100 + 20 * math.cos(angle) + noise[i, 1]
        lines.append(f"{START + i * HOUR},{low:.6f},{high:.6f}")
    return lines


def write(folder: Path) -> Path:
    (folder / "waves.csv").write_text("\n".join(waves()) + "\n")
    file = folder / "waves.toml"
    file.write_text(RECIPE.replace('"series"\nfile', f'"series"\nroot = "{folder}"\nfile', 1))
    return file


@cache
def trained(folder: Path) -> Run:
    return train_run(read_recipe(write(folder)), folder / "run", resume=True, console=quiet())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("waves"))


def folder_of(run: Run) -> Path:
    assert run.folder is not None
    return run.folder


def truth_of(file: Path, first: int, n: int) -> list[list[float]]:
    rows = list(csv.reader(file.read_text().splitlines()))[1:]
    return [[float(cell) for cell in row[1:]] for row in rows[first : first + n]]


def test_it_learns_and_is_evaluated_on_every_window(run: Run) -> None:
    found = evaluation_of(Run.open(folder_of(run)), "test")
    scores = found.scores
    assert scores["examples"] == 55
    assert scores["mse"] == scores["loss"] < scores["mse of last value"] / 2
    # The same by hand, in units, window after window.
    file = folder_of(run).parent / "waves.csv"
    errors, by_window = np.zeros(2), np.zeros((55, 2))
    for i in range(300, 355):
        until = str(START + i * HOUR)
        said = forecast(run, file, until=until)
        wrong = said.values.T.numpy() - np.array(truth_of(file, i, 6))
        assert_close(said.truth.T.tolist(), truth_of(file, i, 6))  # type: ignore[union-attr]
        errors += np.square(wrong).mean(0) / 55
        assert run.scaling is not None
        scaled = wrong / np.array(run.scaling.deviation)
        by_window[i - 300] = np.square(scaled).mean(), np.abs(scaled).mean()
    for name, column in zip(("mse", "mae"), by_window.T, strict=True):
        values = found.values[name]
        assert list(values) == list(range(55))
        assert list(values.values()) == pytest.approx(column.tolist(), rel=1e-3)
        assert np.mean(list(values.values())) == pytest.approx(scores[name], rel=1e-12)
    assert scores["mse of low"] == pytest.approx(errors[0], rel=1e-4)
    assert scores["mse of high"] == pytest.approx(errors[1], rel=1e-4)
    scaled = (errors / np.square(run.scaling.deviation)).mean()
    assert scores["mse"] == pytest.approx(scaled, rel=1e-4)


def test_a_forecast_is_a_call_of_the_model(run: Run) -> None:
    """In units, by the scaling of the training part, computed here by hand."""
    file = folder_of(run).parent / "waves.csv"
    train = torch.tensor(truth_of(file, 0, 240), dtype=torch.float64)
    mean, deviation = train.mean(0), train.std(0, correction=0)
    past = torch.tensor(truth_of(file, N - 24, 24), dtype=torch.float64)
    with torch.no_grad():
        first = run.model(((past - mean) / deviation).float().T[None])[0].T.double()
        again = torch.cat([((past - mean) / deviation)[6:], first]).float()
        second = run.model(again.T[None])[0].T.double()
    expected = torch.cat([first, second])[:9] * deviation + mean
    found = forecast(run, file, horizon=9)
    assert_close(found.values.T, expected, rtol=1e-5, atol=1e-5)
    assert found.times[0] == START + N * HOUR
    assert found.times[-1] == START + (N + 8) * HOUR
    assert found.truth is None
    assert found.names == ("low", "high")
    assert_close(found.past.T, past)


def test_resumed_training_equals_uninterrupted_training(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace("epochs = 6", "steps = 8\nsave_every = 4"))

    def weights(name: str, **overrides: str) -> dict[str, torch.Tensor]:
        recipe = read_recipe(file, overrides)
        train_run(recipe, tmp_path / name, resume=True, console=quiet())
        return load_file(tmp_path / name / "model.safetensors")

    whole = weights("whole")
    weights("parts", **{"train.steps": "4"})
    parts = weights("parts")
    assert all(whole[name].equal(parts[name]) for name in whole)


def test_a_saved_run_forecasts_the_same(run: Run, tmp_path: Path) -> None:
    file = folder_of(run).parent / "waves.csv"
    saved = Run.open(folder_of(run)).save(tmp_path / "copy")
    opened = Run.open(tmp_path / "copy")
    assert opened.scaling == saved.scaling == run.scaling
    assert forecast(opened, file).values.equal(forecast(run, file).values)


def test_other_data_are_scaled_as_the_run_was(run: Run, tmp_path: Path) -> None:
    """Its own scale would hide that a series lies elsewhere."""
    (tmp_path / "later.csv").write_text("\n".join(waves(200, N)) + "\n")
    overrides = {"data.root": str(tmp_path), "data.file": "later.csv", "data.valid_from": "40",
                 "data.test_from": "100"}  # fmt: skip
    other = evaluation_of(Run.open(folder_of(run), overrides), "test").scores
    same = evaluation_of(Run.open(folder_of(run)), "test").scores
    assert other["examples"] == same["examples"]
    assert other["mse"] == pytest.approx(same["mse"], rel=1e-5)


def test_steps_of_another_length_are_refused(run: Run, tmp_path: Path) -> None:
    """A model of hours would read days without a word."""
    file = tmp_path / "days.csv"
    rows = [line.split(",", 1)[1] for line in waves()[1:]]
    days = [f"{START + i * timedelta(days=1)},{row}" for i, row in enumerate(rows)]
    file.write_text("\n".join([waves()[0], *days]) + "\n")
    for opened in (run, Run.open(folder_of(run))):
        with pytest.raises(InputError, match=r"days.csv: its steps are 1 day.* training data 1:00"):
            forecast(opened, file)
    overrides = {"data.root": str(tmp_path), "data.file": "days.csv"}
    with pytest.raises(InputError, match=r"its steps are 1 day, 0:00:00 apart"):
        evaluation_of(Run.open(folder_of(run), overrides), "test")


def test_a_run_of_before_intervals_were_kept_opens(run: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(folder_of(run), tmp_path / "run")
    kept = json.loads((copy / "scaling.json").read_text())
    assert kept.pop("interval") == {"months": 0, "fixed": "PT1H"}
    (copy / "scaling.json").write_text(json.dumps(kept))
    file = folder_of(run).parent / "waves.csv"
    assert forecast(Run.open(copy), file).values.equal(forecast(run, file).values)


WRONG = {
    "channels": ("channels = 2", "channels = 3", "give model.input.channels = 2, not 3"),
    "columns": ('"waves.csv"', '"waves.csv"\ncolumns = ["low", "hihg"]', "Did you mean 'high'"),
    "tokens": ('{ kind = "series", size = 16 }', '{ kind = "tokens" }', "needs 'series'"),
    "another head": ('"forecast", horizon = 6', '"classification"', "reads them 'mixed'"),
    "no look-back": (", look_back = 24", "", "model.input.look_back is missing"),
    "a long look-back": ("look_back = 24", "look_back = 500", "no window of look_back = 500"),
    "a metric": ("[train]", '[eval]\nmetric = "accuracy"\n\n[train]', "Valid: mse, mae, loss"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_in_a_recipe_is_named(case: str, tmp_path: Path) -> None:
    old, new, message = WRONG[case]
    file = write(tmp_path)
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError) as caught:
        train_run(read_recipe(file), tmp_path / "run", resume=True, console=quiet())
    assert message in str(caught.value)
    assert not (tmp_path / "run" / "config.json").exists()


def test_holes_outside_the_look_back_are_accepted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("\n".join([waves()[0], *waves()[1:20], *waves()[25:80]]) + "\n")
    overrides = {"data.missing": "leave_out"}
    lenient = Run.open(folder_of(run), overrides)
    found = forecast(lenient, tmp_path / "s.csv")
    assert not found.past.isnan().any()
    with pytest.raises(InputError, match=r"a gap or an empty cell at 2020-01-01 19:00:00"):
        forecast(lenient, tmp_path / "s.csv", until="2020-01-02 02:00")
