"""`addnorm forecast`: CSV in units, a picture, the truth, and each mistake in one message."""

import csv
import json
from datetime import datetime
from pathlib import Path

import pytest
import torch
from tests.runs.inference.test_forecast import HOUR, START, N, folder_of, trained, truth_of, waves
from torch.testing import assert_close

from addnorm.cli.main import status
from addnorm.runs.inference.forecast import forecast
from addnorm.runs.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("waves"))


def test_from_the_command_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = str(folder_of(run)), str(folder_of(run).parent / "waves.csv")
    picture, out = tmp_path / "f.png", tmp_path / "f.csv"
    words = ["forecast", folder, file, "--until", "2020-01-12", "--horizon", "8"]
    assert status([*words, "--plot", str(picture), "--out", str(out)]) == 0
    assert picture.stat().st_size > 1000
    rows = list(csv.reader(out.read_text().splitlines()))
    assert rows[0] == ["time", "low", "high"]
    assert [row[0] for row in rows[1:]] == [str(datetime(2020, 1, 12) + i * HOUR) for i in range(8)]
    expected = run.forecast(file, until="2020-01-12", horizon=8).values.T
    assert_close(torch.tensor([[float(x) for x in row[1:]] for row in rows[1:]]).double(), expected,
                 rtol=1e-6, atol=1e-6)  # fmt: skip
    capsys.readouterr()
    assert status(words) == 0
    assert capsys.readouterr().out == out.read_text()
    (tmp_path / "later.csv").write_text("\n".join(waves(N, N + 10)) + "\n")
    assert status(["forecast", folder, file, "--truth", str(tmp_path / "later.csv")]) == 0
    known = forecast(run, Path(file), truth=tmp_path / "later.csv").truth
    assert known is not None
    assert_close(known.T.tolist(), truth_of(tmp_path / "later.csv", 0, 6))
    capsys.readouterr()
    assert status(["evaluate", folder, "--split", "valid"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 55
    assert status(["evaluate", folder, "--predictions", str(tmp_path / "said.txt")]) == 2
    assert "predicts no line for each example" in capsys.readouterr().err
    assert not (tmp_path / "said.txt").exists()


@pytest.mark.parametrize(
    ("lines", "words", "message"),
    [
        (waves(0, 20), (), "20 steps before the forecast: the model reads 24"),
        ([waves()[0], *waves()[50:75], *waves()[76:90]], (), "s.csv:27: a gap or an empty cell at"),
        (
            [*waves(0, 30), f"{START + 30 * HOUR},,100"],
            (),
            "s.csv:32: a gap or an empty cell at 2020-01-02 06",
        ),
        (["when,low", *waves()[1:3]], (), "3 cells, but 2 columns"),
        (["when,low,hihg", *waves()[1:3]], (), "no column 'high'"),
        (waves(), ("--until", "2030-01-01"), "goes from 2020-01-01"),
        (waves(), ("--horizon", "0"), "--horizon 0: must be at least 1"),
        (waves(), ("--plot", "f.gif"), "Valid: .png"),
        (waves(), ("--truth", "none.csv"), "none.csv does not exist"),
        (waves(), ("--truth", "s.csv"), "it holds no truth for the forecast"),
    ],
)
def test_a_mistake_is_one_message(
    run: Run,
    lines: list[str],
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.csv").write_text("\n".join(lines) + "\n")
    assert status(["forecast", str(folder_of(run)), "s.csv", "--out", "f.csv", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert not (tmp_path / "f.csv").exists()


def test_a_gap_before_the_look_back_is_accepted(run: Run, tmp_path: Path) -> None:
    whole, parted = tmp_path / "whole.csv", tmp_path / "parted.csv"
    whole.write_text("\n".join([waves()[0], *waves()[50:90]]) + "\n")
    parted.write_text("\n".join([waves()[0], *waves()[50:60], *waves()[61:90]]) + "\n")
    expected = forecast(run, whole)
    assert_close(forecast(run, parted).values, expected.values)
    assert forecast(run, parted).times == expected.times
