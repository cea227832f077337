"""A run asked for what its model cannot do names the call that uses it; the commands a command."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.every_kind import KINDS, write_kind

from addnorm.cli.main import with_options
from addnorm.cli.messages import COMMANDS
from addnorm.errors import InputError
from addnorm.runs.run import Run

USES: dict[str, Callable[[Run, list[Path]], object]] = {
    "run.generate(texts)": lambda run, _: run.generate(["a b"], max_new_tokens=2),
    "run.translate(texts)": lambda run, _: run.translate(["a b"], max_new_tokens=2),
    "run.transcribe(files)": lambda run, files: [*run.transcribe(files, max_new_tokens=2)],
    "run.classify(texts)": lambda run, _: run.classify(["a b"]),
    "run.classify_files(files)": lambda run, files: [*run.classify_files(files)],
    "run.predict_series(files)": lambda run, files: [*run.predict_series(files)],
    "run.predict(texts)": lambda run, _: run.predict(["a b"]),
    "run.predict(rows)": lambda run, _: run.predict([{"a": "b"}]),
    "run.tag(sentences)": lambda run, _: run.tag(["a b"]),
    "run.forecast(history)": lambda run, files: run.forecast(files[0]),
    "run.fill(text)": lambda run, _: run.fill("a [MASK]"),
    "run.embed(texts)": lambda run, _: run.embed(["a b"]),
    "run.embed_files(files)": lambda run, files: [*run.embed_files(files)],
    "run.stream(text)": lambda run, _: [*run.stream("a", max_new_tokens=2)],
    "run.rows(file)": lambda run, files: [*run.rows(files[0])],
}
"""Every use of a run, by what a message would call it."""


def file_for(folder: Path) -> Path:
    """A file that a model of this folder reads, if it reads any."""
    of_model = (".png", ".wav", ".csv")
    files = (file for file in sorted(folder.rglob("*")) if file.suffix in of_model)
    return next(files, folder / "none.csv")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_use_of_any_kind_of_run_names_the_right_one(kind: str, tmp_path: Path) -> None:
    run, refused = write_kind(tmp_path, kind), dict[str, str]()
    for name, use in USES.items():
        try:
            use(run, [file_for(tmp_path)])
        except InputError as error:
            refused[name] = str(error)
    assert refused
    for message in refused.values():
        assert "addnorm" not in message.replace(str(tmp_path), "")
        for call in re.findall(r"use `(.+?)`", message):
            assert call == run.call
            assert f"use `addnorm {COMMANDS[call]}`" in with_options(message, "info")
    assert "use `" not in refused.get(run.call, ""), "the call that it names is right"
