"""`addnorm demo` passes on its options and writes its run to the given folder."""

from pathlib import Path

import pytest

import addnorm.demo
from addnorm.cli.main import status


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("de", Path("runs/demo-de"))),
        (["--to", "zh"], ("zh", Path("runs/demo-zh"))),
        (["--to", "fr", "--out", "elsewhere"], ("fr", Path("elsewhere"))),
    ],
)
def test_options(
    words: list[str], expected: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Path]] = []
    monkeypatch.setattr(addnorm.demo, "demo", lambda to, out, _: asked.append((to, out)))
    assert status(["demo", *words]) == 0
    assert asked == [expected]


def test_an_unknown_language_is_one_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert status(["demo", "--to", "German", "--out", str(tmp_path / "run")]) == 2
    said = capfd.readouterr().err
    assert "Did you mean 'de'?" in said
    assert "Traceback" not in said
