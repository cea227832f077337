"""The tasks in `examples/own_tasks`: short, and trained, measured and asked by their import."""

import json
import math
import shutil
import wave
from array import array
from pathlib import Path
from random import Random

import pytest
from tests.commands import run_all

FOLDER = Path(__file__).parent.parent / "examples" / "own_tasks"

SPANS = """
[data]
kind = "records"
example = "Question"
train = "rows.jsonl"
valid = "rows.jsonl"

[tokenizer]
kind = "char"

[model]
kind = "encoder"
d_model = 16
n_layers = 1
attention = { n_heads = 2 }
head = { kind = "spans:SpanHeadConfig" }

[train]
steps = 4
batching = { kind = "tokens", tokens = 200 }
select = "best"
"""

SOUNDS = """
[data]
kind = "audio"
train = "train/*.wav"
valid = "valid/*.wav"
label_pattern = "^([0-9])_"
sample_rate = 8000
n_mels = 8
strings = { shortest = 1, longest = 2 }

[tokenizer]
kind = "char"

[model]
kind = "encoder"
d_model = 16
n_layers = 1
input = { kind = "log_mel", n_mels = 8 }
position = "sinusoidal"
attention = { n_heads = 2 }
head = { kind = "ctc:SpellingHeadConfig" }

[train]
steps = 4
batching = { kind = "frames", frames = 400 }
"""


@pytest.mark.parametrize("name", ["spans", "ctc"])
def test_an_example_is_short_and_tells_its_commands(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text("utf-8")
    assert text.count("\n") <= 80
    assert f"addnorm train {name}.toml --import {name}.py" in text


def test_every_example_is_tried() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == {"spans", "ctc"}


@pytest.mark.long
def test_questions_are_answered_by_words_of_their_text(tmp_path: Path) -> None:
    random = Random(0)
    rows: list[dict[str, str]] = []
    for _ in range(12):
        words = random.choices(["ab", "cd", "ef"], k=4)
        words[random.randrange(4)] = "XY"
        rows.append({"question": "X?", "text": " ".join(words), "answer": "XY"})
    lost = {"question": "X?", "text": "ab cd", "answer": "ef"}  # left out and counted
    lines = "\n".join(map(json.dumps, [*rows, lost]))
    (tmp_path / "rows.jsonl").write_text(lines, encoding="utf-8")
    asked = [{key: row[key] for key in ("question", "text")} for row in rows[:3]]
    (tmp_path / "ask.jsonl").write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
    done = tried(tmp_path, "spans", SPANS, ["predict", "run", "ask.jsonl"])
    assert "1 left out: nothing to predict" in done
    assert '"exact": ' in done
    answers = [json.loads(line)["prediction"] for line in done.splitlines()[-3:]]
    for answer, row in zip(answers, asked, strict=True):
        assert answer in f"{row['text']} {row['question']}"


@pytest.mark.long
def test_sounds_are_written_as_text(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        (tmp_path / split).mkdir()
        for n in range(6):
            write_tone(tmp_path / split / f"{n % 2}_{n}.wav", 500 + 1000 * (n % 2))
    done = tried(tmp_path, "ctc", SOUNDS, ["generate", "run", "valid/0_0.wav"])
    assert '"wer": ' in done
    assert "valid/0_0.wav" in done.splitlines()[-1]


def tried(folder: Path, name: str, recipe: str, use: list[str]) -> str:
    """What training, evaluation and use of an example print; without its import it is refused."""
    shutil.copy(FOLDER / f"{name}.py", folder)
    (folder / f"{name}.toml").write_text(recipe, encoding="utf-8")
    imported = ["--import", f"{name}.py"]
    done = run_all(
        [
            ["train", f"{name}.toml", "--out", "run", *imported],
            ["evaluate", "run", "--split", "valid", *imported],
            [*use, *imported],
        ],
        folder,
    )
    assert done.returncode == 0, done.stderr
    refused = run_all([use], folder)
    assert refused.returncode == 2
    assert f"--import {name}.py" in refused.stderr
    return done.stderr + done.stdout


def write_tone(path: Path, hertz: int) -> None:
    samples = (20_000 * math.sin(2 * math.pi * hertz * t / 8000) for t in range(2400))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(array("h", map(int, samples)).tobytes())
