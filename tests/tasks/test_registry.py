"""Tasks by name: those of AddNorm, and one that an installed package registers."""

from pathlib import Path

import pytest
from tests.commands import run_all

from addnorm.errors import InputError
from addnorm.tasks.registry import TASKS, task_named

RECIPE = """
[data]
kind = "counts"

[tokenizer]
kind = "char"

[model]
kind = "encoder"
d_model = 16
n_layers = 1
attention = { n_heads = 2 }
head = "count"

[train]
steps = 3
batching = { kind = "tokens", tokens = 128 }
select = "best"
"""


def test_a_task_is_named_by_its_word() -> None:
    assert all(task_named(name) is task for name, task in TASKS.items())
    with pytest.raises(InputError, match="Did you mean 'tagging'"):
        task_named("taging")
    with pytest.raises(InputError, match="a task is a subclass"):
        task_named(3)


def install(folder: Path) -> None:
    """Lay out a package with a task, its head and its data in a folder on Python's path."""
    text = (Path(__file__).parent / "counting.py").read_text("utf-8")
    head, task = "    task = Counting\n", '    task = "word_counting"\n'
    assert head in text
    (folder / "their_counting.py").write_text(text.replace(head, task), encoding="utf-8")
    info = folder / "their_counting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-counting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[addnorm.parts]\n"
        "count = their_counting:CountHeadConfig\n"
        "counts = their_counting:CountedConfig\n"
        "word_counting = their_counting:Counting\n"
    )


@pytest.mark.long
def test_a_task_of_an_installed_package_is_named_by_its_entry_points(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "count.toml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"text": "a b c"}', encoding="utf-8")
    use = ["predict", "run", "rows.jsonl"]
    imported = ("--import", "their_counting")
    done = run_all(
        [["train", "count.toml", "--out", "run"], ["info", "run", *imported], [*use, *imported]],
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "counting" in done.stdout
    assert '{"words": ' in done.stdout.splitlines()[-1]
    unnamed = run_all([use], tmp_path)
    assert unnamed.returncode == 2
    assert "--import their_counting" in unnamed.stderr
