"""Small corpora and recipes for every task, and runs trained for a few steps."""

import io
from pathlib import Path

from rich.console import Console

from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run

PARTS = """
d_model = 16
n_layers = 1
attention = { n_heads = 2 }
feedforward = { kind = "mlp", d_ff = 32 }
dropout = 0.0
"""

LANGUAGE = f"""
[data]
kind = "text"
train = "play.txt"
valid_fraction = 0.2
test_fraction = 0.1

[tokenizer]
kind = "char"

[model]
kind = "decoder"
{PARTS}
[train]
steps = 4
batching = {{ kind = "windows", batch_size = 4, seq_len = 16 }}
validate_every = 2
save_every = 2
"""

TRANSLATION = f"""
[data]
kind = "parallel"
train = ["train.en", "train.de"]
valid = ["valid.en", "valid.de"]
test = ["valid.en", "valid.de"]

[tokenizer]
kind = "word"

[model]
kind = "encoder_decoder"
{PARTS}
[train]
steps = 4
batching = {{ kind = "tokens", tokens = 64 }}
validate_every = 2
save_every = 2

[eval]
metric = "bleu"
valid_examples = 2
decoding = {{ kind = "beam", beams = 2 }}
"""

CLASSIFICATION = f"""
[data]
kind = "lines"
train = "train.txt"
valid = "valid.txt"
test = "valid.txt"

[tokenizer]
kind = "word"

[model]
kind = "encoder"
head = {{ kind = "classification" }}
{PARTS}
[train]
epochs = 2
batching = {{ kind = "tokens", tokens = 64 }}
select = "best"
"""

MULTI_LABEL = f"""
[data]
kind = "table"
train = "topics.tsv"
valid = "topics.tsv"
test = "topics.tsv"
text = "text"
labels = "topics"

[tokenizer]
kind = "word"

[model]
kind = "encoder"
head = {{ kind = "classification", problem = "multi_label" }}
{PARTS}
[train]
epochs = 2
batching = {{ kind = "tokens", tokens = 64 }}
"""

REGRESSION = f"""
[data]
kind = "table"
train = "stars.jsonl"
valid = "stars.jsonl"
test = "stars.jsonl"
text = "text"
values = "stars"

[tokenizer]
kind = "word"

[model]
kind = "encoder"
head = {{ kind = "classification", problem = "regression" }}
{PARTS}
[train]
epochs = 2
batching = {{ kind = "tokens", tokens = 64 }}
select = "best"
"""

TAGGING = f"""
[data]
kind = "conll"
train = "train.conll"
valid = "valid.conll"
test = "valid.conll"

[tokenizer]
kind = "bpe"
vocab_size = 280

[model]
kind = "encoder"
head = {{ kind = "tagging" }}
{PARTS}
[train]
epochs = 2
batching = {{ kind = "tokens", tokens = 128, max_len = 60 }}
"""

RECIPES = {
    "language": LANGUAGE,
    "translation": TRANSLATION,
    "classification": CLASSIFICATION,
    "multi_label": MULTI_LABEL,
    "regression": REGRESSION,
    "tagging": TAGGING,
}

VARIANTS = {"crf": TAGGING.replace('kind = "tagging"', 'kind = "crf"')}
"""Recipes of the same tasks with other parts."""

ENGLISH = ["one dog", "two dogs", "a red cat", "the cat sees a dog", "no cat", "one red dog"]
GERMAN = ["ein hund", "zwei hunde", "eine rote katze", "die katze sieht einen hund"]
GERMAN += ["keine katze", "ein roter hund"]
LINES = ["good a fine day", "bad a wet day", "good fine and dry", "bad wet and cold"]
TOPICS = ["a fine day\tweather,joy", "a wet day\tweather", "a ball\t", "a fine ball\tjoy"]
STARS = ['{"text": "a fine day", "stars": 4.5}', '{"text": "a wet day", "stars": "-100"}']
SENTENCES = "Anna B-PER\nlives O\nin O\nNew B-LOC\nYork I-LOC\n\nshe O\nlikes O\nBonn B-LOC\n\n"


def write_corpora(folder: Path) -> None:
    """Write the files that the recipes name; each has something to leave out where it can."""
    files = {
        "play.txt": "To be, or not to be:\nthat is the question. Grüße!\n" * 20,
        "train.en": "".join(f"{line}\n" for line in [*ENGLISH * 3, "left out"]),
        "train.de": "".join(f"{line}\n" for line in [*GERMAN * 3, " "]),
        "valid.en": "".join(f"{line}\n" for line in ENGLISH[:3]),
        "valid.de": "".join(f"{line}\n" for line in GERMAN[:3]),
        "train.txt": "".join(f"{line}\n" for line in LINES * 4),
        "valid.txt": "".join(f"{line}\n" for line in LINES),
        "topics.tsv": "".join(f"{line}\n" for line in ["text\ttopics", *TOPICS * 4]),
        "stars.jsonl": "".join(f"{line}\n" for line in STARS * 6),
        "train.conll": SENTENCES * 4,
        "valid.conll": SENTENCES + "word O\n" * 60,
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def write_recipe(folder: Path, task: str) -> Path:
    """Write the corpora and the recipe of a task; its paths are those of `folder`."""
    write_corpora(folder)
    recipe = {**RECIPES, **VARIANTS}[task].replace('kind = "', f'root = "{folder}"\nkind = "', 1)
    file = folder / f"{task}.toml"
    file.write_text(recipe, encoding="utf-8")
    return file


def train_text(folder: Path, name: str, text: str, **overrides: str) -> Run:
    """Train the text of a recipe, whose data are in `folder`; `train__steps` is `train.steps`."""
    file = folder / f"{name}.toml"
    file.write_text(text)
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    given["data.root"] = f'"{folder}"'
    return train_run(read_recipe(file, given), folder / name, resume=True, console=quiet())


def quiet() -> Console:
    """A console that keeps what it is told."""
    return Console(file=io.StringIO(), width=200)


def said(console: Console) -> str:
    """What a quiet console was told."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def train_tiny(folder: Path, task: str, **overrides: str) -> Path:
    """Train the recipe of a task; return the run folder."""
    recipe = read_recipe(write_recipe(folder, task), overrides)
    train_run(recipe, folder / "run", resume=False, console=quiet())
    return folder / "run"
