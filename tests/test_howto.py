"""The how-to pages: their commands run in their order, and print what the pages say."""

import re
import runpy
import shlex
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import soundfile
from tests.runs.tiny import ENGLISH, GERMAN, LINES, SENTENCES
from tests.test_house import write_gpt2

from addnorm.cli.main import status
from addnorm.cli.terminal import console
from addnorm.convert.exporters.web import TEMPLATE

DOCS = Path(__file__).parent.parent / "docs"
SLOW = {"compress", "export", "faster", "first_hour", "parallel_training", "web_page"}
"""Pages whose commands compile graphs, or take ten seconds."""
PAGES = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in SLOW else [])
    for page in [*sorted((DOCS / "howto").glob("*.md")), DOCS / "tutorials" / "first_hour.md"]
]
FILES = {
    "my.txt": "To be, or not to be, that is the question.\n" * 60,
    "my.en": "".join(f"{line}\n" for line in ENGLISH * 4),
    "my.de": "".join(f"{line}\n" for line in GERMAN * 4),
    "new.en": "one red cat\na dog\n",
    "new.txt": "a fine day\nAnna is wet\n",
    "reviews.txt": "".join(f"{line}\n" for line in LINES * 5),
    "reviews.csv": 'review,stars\na fine day,good\n"wet, and cold",bad\n' + "a day,good\n" * 8,
    "pairs.csv": "question,answer,right\n"
    + "is it cold,it is cold,yes\nis it cold,a dog runs,no\n" * 10,
    "pairs.tsv": "is it cold\tit is cold\nis it wet\ta dog runs\n",
    "names.conll": SENTENCES * 5,
    "talk.jsonl": "".join(
        f'{{"messages": [{{"role": "user", "content": "{n} and {n}?"}},'
        f' {{"role": "assistant", "content": "{2 * n}."}}]}}\n'
        for n in range(20)
    ),
    "papers.jsonl": "".join(
        f'{{"abstract": ["We train {n} models.", "They are good. A {n} is best."], '
        f'"summary": ["{n} models are good.", "Training {n} models"]}}\n'
        for n in range(20)
    ),
    "questions.jsonl": '{"question": "Who?", "context": "Ada came late.", "answers": ["Ada"]}\n'
    '{"question": "When?", "context": "Ada came late.", "answers": ["late"], "starts": [9]}\n'
    '{"question": "Who left?", "context": "Ada came late.", "answers": []}\n' * 5,
    "ask.jsonl": '{"question": "Who came?", "context": "Bob came late."}\n',
    "load.csv": "date,load,temperature\n"
    + "".join(
        f"{datetime(2023, 1, 1) + timedelta(hours=i)},{i % 24},{(7 * i) % 24}\n" for i in range(720)
    ),
    "texts/a.jsonl": "".join(
        f'{{"text": "{"" if n == 7 else f"{n % 40} red cats and a dog sat down, " * 5}"}}\n'
        for n in range(50)
    ),
    "texts/b.txt": "To be, or not to be, that is the question.\n" * 20,
    "gait.csv": "id,speed,turn,gait\n"
    + "".join(
        f"r{n},{n % 2 + i % 3 / 4},{i % 2},{'run' if n % 2 else 'walk'}\n"
        for n in range(20)
        for i in range(9)
    ),
    "small/config.json": '{"model_type": "my_family", "architectures": ["LlamaForCausalLM"], '
    '"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, '
    '"num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64}',
    "requests.jsonl": "".join(
        f'{{"custom_id": "{n}", "method": "POST", "url": "/v1/completions", '
        f'"body": {{"prompt": "To be", "max_tokens": {n}}}}}\n'
        for n in (1, 2)
    ),
    "new_gait.csv": "turn,id,speed\n" + "0,n1,0.4\n1,n1,0.5\n" * 4 + "0,n2,1.4\n" * 7,
}
SHORTER = {
    r"\bsteps = \d+": "steps = 4",
    r"\bepochs = \d+": "epochs = 1",
    r"\bsave_every = \d+": "save_every = 2",
    r"\bd_model = \d+": "d_model = 32",
    r"\bn_layers = \d+": "n_layers = 1",
    r"\bvocab_size = \d+": "vocab_size = 300",
}
OPTIONS = {
    "--train.steps 2000": "--train.steps 6",
    "--train.steps 3000": "--train.steps 8",
    "--recover 100": "--recover 2",
    "--seeds 3": "--seeds 2",
}


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """Each command of a page, and the lines that it is said to print; scripts print nothing."""
    found: list[tuple[str, list[str]]] = []
    for line in "".join(blocks(page, "console")).splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    scripts = "".join(blocks(page, "sh"))
    return [(one, []) for one in re.findall(r"^srun (addnorm .*)$", scripts, re.MULTILINE)] + found


def run(command: str, shown: Callable[[], str]) -> tuple[int, str]:
    """The exit status of a command, and all that it printed."""
    for long, short in OPTIONS.items():
        command = command.replace(long, short)
    words = shlex.split(command)
    if words[0] == "cp":
        subprocess.run(words, check=True)
        return 0, ""
    assert words[0] == "addnorm"
    code = status(words[1:])
    return code, shown()


def missing(expected: list[str], printed: str) -> str | None:
    """The first expected line that is not printed after the one before; `…` is any text."""
    lines = iter(printed.splitlines())
    for line in expected:
        for long, short in OPTIONS.items():
            line = line.replace(long.split()[1], short.split()[1]) if "so far" in line else line
        wanted = r"\s+".join(re.escape(word).replace("…", ".*") for word in line.split())
        if not any(re.fullmatch(wanted, one.strip()) for one in lines):
            return line
    return None


def run_python(page: Path, file: Path) -> None:
    """Run the Python of a page, but for what asks a server."""
    if page.stem != "serve":
        code = re.sub(r"steps=\d+", "steps=4", "\n".join(blocks(page, "python")))
        file.write_text(code, encoding="utf-8")
        runpy.run_path(str(file))


def write_clips(folder: Path) -> None:
    """A few tones, high or low, each with its word beside it."""
    for i in range(8):
        for label, hertz in (("yes", 900), ("no", 300)):
            file = folder / ("train" if i < 7 else "test") / label / f"{i}.wav"
            file.parent.mkdir(parents=True, exist_ok=True)
            times = np.arange(2400 + 80 * i) / 8000
            soundfile.write(file, 0.5 * np.sin(2 * np.pi * hertz * times), 8000)
            file.with_suffix(".txt").write_text(label)


def write_pictures(folder: Path) -> None:
    """A ring or a disc on a grey ground."""
    pillow = pytest.importorskip("PIL.Image")
    rows, columns = np.mgrid[-1:1:32j, -1:1:32j]
    for i in range(8):
        for label, inner in (("disc", 0.0), ("ring", 0.4)):
            file = folder / ("train" if i < 7 else "test") / label / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            distance = np.hypot(rows, columns)
            shape = (distance > inner) & (distance < 0.7)
            pillow.fromarray(np.where(shape, 220 - i, 60 + i).astype(np.uint8)).save(file)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_print_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one process and one folder, with tiny data and the training cut short; then its Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(console, "_width", 200)  # it may be older than the variable
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    if page.stem == "web_page" and not TEMPLATE.is_file():
        pytest.skip("the page is not built: `make page`")
    if page.stem == "fine_tune":
        write_gpt2(tmp_path / "gpt2")
    if page.stem in ("images_and_sound", "transcribe"):
        write_clips(tmp_path / "clips")
        write_pictures(tmp_path / "pictures")
    for recipe in blocks(page, "toml"):
        name = recipe.split("\n", 1)[0].removeprefix("# ")
        for long, short in SHORTER.items():
            recipe = re.sub(long, short, recipe)
        (tmp_path / name).write_text(recipe, encoding="utf-8")
    for command, expected in commands(page):
        code, printed = run(command, lambda: "".join(capsys.readouterr()))
        mistake = any(line.startswith("addnorm: ") for line in expected)
        assert code == (2 if mistake else 0), f"$ {command}\n{printed}"
        lacking = missing(expected, printed)
        assert lacking is None, f"$ {command}\nsays {lacking!r}, and printed:\n{printed}"
    run_python(page, tmp_path / "page.py")


def test_every_page_has_commands_and_is_in_the_contents() -> None:
    contents = (DOCS / "index.md").read_text(encoding="utf-8")
    for page in sorted((DOCS / "howto").glob("*.md")):
        assert commands(page), page
        assert f"\nhowto/{page.stem}\n" in contents
        text = page.read_text(encoding="utf-8")
        assert "If it differs" in text, page
        for link in re.findall(r"\]\(([\w/.]+\.md)\)", text):
            assert (page.parent / link).is_file(), (page, link)


def test_a_line_that_is_not_printed_is_reported() -> None:
    printed = "step 1/4 · loss 2\n  state   trained \n"
    assert missing(["step 1/… · loss …", " state … trained"], printed) is None
    assert missing(["state trained", "step 1/4 · loss 2"], printed) == "step 1/4 · loss 2"
    assert missing(["step 2/…"], printed) == "step 2/…"
