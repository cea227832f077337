"""What training did to a text is done to it in use: `evaluate` equals the answers on its lines.

Every task of texts, in every kind of data that it comes in, from files and given in Python.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tests.runs.inference.test_masked_tokens import RECIPES as HIDING
from tests.runs.inference.test_sentence_vectors import RECIPE as SIMILARITY
from tests.runs.recipes.test_starting_model import GPT2_PARTS
from tests.runs.tiny import RECIPES, quiet, train_text
from torch.nn import functional as F

import addnorm
from addnorm.data import Corpus
from addnorm.inspect.prepared_text import prepare_text
from addnorm.metrics.scores import accuracy, translation_scores
from addnorm.runs.evaluation import evaluation_of
from addnorm.runs.export import Form, export_run
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.teacher import written_sequences

WORDS = ["ÉTÉ", "Ein", "HUND", "rote", "Katze", "ΟΔΟΣ", "İzmir", "SIEHT", "den", "Fisch", "STRAẞE"]


def sentence(n: int) -> list[str]:
    """Words in capitals and others, in an order of their own for each number."""
    draw = torch.Generator().manual_seed(n)
    chosen = torch.randint(len(WORDS), (3 + n % 4,), generator=draw).tolist()
    return [WORDS[i] for i in chosen]


TEXTS = [" ".join(sentence(n)) for n in range(24)]
SECONDS = [" ".join(sentence(n)) for n in range(100, 124)]
LABELS = ["Good" if n % 3 else "BAD" for n in range(24)]
TOPICS = [["A", "B"][: n % 3] for n in range(24)]
VALUES = [n / 7 for n in range(24)]
TAGS = [["O" if word.islower() else "B-Word" for word in text.split()] for text in TEXTS]


def table(folder: Path, name: str, **columns: Sequence[Any]) -> None:
    rows = zip(*columns.values(), strict=True)
    lines = [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows]
    (folder / name).write_text("\n".join(lines), encoding="utf-8")


def write(folder: Path) -> None:
    """The same examples in every kind of file."""
    files = {
        "lines.txt": [f"{label}\t{text}" for label, text in zip(LABELS, TEXTS, strict=True)],
        "play.txt": TEXTS,
        "a.txt": TEXTS,
        "b.txt": SECONDS,
        "words.conll": [
            line
            for text, tags in zip(TEXTS, TAGS, strict=True)
            for line in (*map(" ".join, zip(text.split(), tags, strict=True)), "")
        ],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines), encoding="utf-8")
    table(folder, "labels.jsonl", text=TEXTS, label=LABELS)
    table(folder, "topics.jsonl", text=TEXTS, labels=TOPICS)
    table(folder, "values.jsonl", text=TEXTS, values=VALUES)
    table(folder, "pair_labels.jsonl", text=TEXTS, text_pair=SECONDS, label=LABELS)
    table(folder, "pair_values.jsonl", text=TEXTS, text_pair=SECONDS, values=VALUES)
    table(folder, "words.jsonl", tokens=[one.split() for one in TEXTS], tags=TAGS)
    table(folder, "pairs.jsonl", source=TEXTS, target=SECONDS)


# What the answers of a command make of a metric.


def class_loss(run: Run, texts: Any = TEXTS) -> float:
    found = run.classify(texts)
    right = [one.probabilities[label] for one, label in zip(found, LABELS, strict=True)]
    return -sum(map(math.log, right)) / len(right)


def label_loss(run: Run) -> float:
    total = 0.0
    for one, labels in zip(run.classify(TEXTS), TOPICS, strict=True):
        shares = [p if name in labels else 1 - p for name, p in one.probabilities.items()]
        total -= sum(map(math.log, shares)) / len(shares)
    return total / len(TEXTS)


def squared_error(run: Run, texts: Any = TEXTS) -> float:
    return float((run.predict(texts)[:, 0].double() - torch.tensor(VALUES)).square().mean())


def cosine_error(run: Run) -> float:
    one, two = run.embed(TEXTS), run.embed(SECONDS)
    low, high = run.recipe.model.head.range  # pyright: ignore
    numbers = low + (high - low) * F.cosine_similarity(one, two)
    return float((numbers.double() - torch.tensor(VALUES)).square().mean())


def right_tags(run: Run) -> float:
    tags = [tag for row in run.tag([text.split() for text in TEXTS]) for tag in row]
    return accuracy(tags, [tag for row in TAGS for tag in row])


def chrf(run: Run) -> float:
    written = run.generate(TEXTS)
    return translation_scores(written, [lower(text) for text in SECONDS], "13a")["chrf"]


def lower(text: str) -> str:
    """Each character by itself: a sigma at the end of a word is as one within."""
    return "".join("σ" if one == "Σ" else one.lower() for one in text)


@dataclass(frozen=True)
class Case:
    """A kind of data, the recipe that learns from it, and a metric as its answers make it."""

    recipe: str
    data: str
    metric: str
    by_answers: Callable[[Run], float]
    make: Any
    """The function of Python for such data, what it is given, and the names of columns."""
    train: Sequence[Any]
    columns: Sequence[str] = ()

    def corpus(self, *, lowercase: bool) -> Corpus:
        names = {name: name for name in self.columns}
        train: Any = [*self.train]
        return self.make(train, test=train, lowercase=lowercase, **names)


def rows(**columns: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def table_of(file: str, *names: str) -> str:
    named = "\n".join(f'{name} = "{name}"' for name in names)
    return f'kind = "table"\ntrain = "{file}"\ntest = "{file}"\n{named}'


def from_table(
    recipe: str, file: str, metric: str, by_answers: Callable[[Run], float], **columns: Any
) -> Case:
    data = table_of(file, *columns)
    return Case(recipe, data, metric, by_answers, addnorm.table, rows(**columns), [*columns])


CLASSES, TAGGED, TRANSLATED = (
    RECIPES[task] for task in ("classification", "tagging", "translation")
)
PAIRED = list(zip(TEXTS, SECONDS, strict=True))
BOTH: Any = {"text": TEXTS, "text_pair": SECONDS}
CASES = {
    "lines": Case(
        CLASSES,
        'kind = "lines"\ntrain = "lines.txt"\ntest = "lines.txt"\nseparator = "\\t"',
        "loss",
        class_loss,
        addnorm.labelled,
        list(zip(TEXTS, LABELS, strict=True)),
    ),
    "table": from_table(CLASSES, "labels.jsonl", "loss", class_loss, text=TEXTS, label=LABELS),
    "pairs of texts": from_table(
        CLASSES,
        "pair_labels.jsonl",
        "loss",
        lambda run: class_loss(run, PAIRED),
        **BOTH,
        label=LABELS,
    ),
    "several labels": from_table(
        RECIPES["multi_label"], "topics.jsonl", "loss", label_loss, text=TEXTS, labels=TOPICS
    ),
    "numbers": from_table(
        RECIPES["regression"], "values.jsonl", "mse", squared_error, text=TEXTS, values=VALUES
    ),
    "numbers of pairs": from_table(
        RECIPES["regression"],
        "pair_values.jsonl",
        "mse",
        lambda run: squared_error(run, PAIRED),
        **BOTH,
        values=VALUES,
    ),
    "similarity": from_table(
        SIMILARITY, "pair_values.jsonl", "mse", cosine_error, **BOTH, values=VALUES
    ),
    "conll": Case(
        TAGGED,
        'kind = "conll"\ntrain = "words.conll"\ntest = "words.conll"',
        "accuracy",
        right_tags,
        addnorm.tagged,
        list(zip(TEXTS, map(" ".join, TAGS), strict=True)),
    ),
    "crf": from_table(
        TAGGED.replace('"tagging"', '"crf"'),
        "words.jsonl",
        "accuracy",
        right_tags,
        tokens=[text.split() for text in TEXTS],
        tags=TAGS,
    ),
    "parallel": Case(
        TRANSLATED,
        'kind = "parallel"\ntrain = ["a.txt", "b.txt"]\ntest = ["a.txt", "b.txt"]',
        "chrf",
        chrf,
        addnorm.pairs,
        PAIRED,
    ),
    "two tokenizers": from_table(
        TRANSLATED.replace('kind = "word"', 'kind = "word"\njoint = false'),
        "pairs.jsonl",
        "chrf",
        chrf,
        source=TEXTS,
        target=SECONDS,
    ),
}


def recipe_of(case: Case) -> str:
    """The recipe of the case, in two steps."""
    _, _, after = case.recipe.partition("[tokenizer]")
    lines = after.partition("[eval]")[0].replace("[train]", "[train]\nsteps = 2").splitlines()
    left_out = ("validate_every", "save_every", "select", "epochs", "steps = 4", "steps = 100")
    kept = "\n".join(line for line in lines if not line.startswith(left_out))
    text = f"[data]\n{case.data}\nlowercase = true\n[tokenizer]{kept}"
    if case.metric == "chrf":
        text += '\n[eval]\ndecoding = { kind = "greedy", rules = { max_new_tokens = 12 } }'
    return text


def learnt(folder: Path, case: Case, *, python: bool) -> Run:
    """A run whose weights are random and large, so that its answers depend on every token."""
    write(folder)
    if python:
        file = folder / "recipe.toml"
        file.write_text(recipe_of(case), encoding="utf-8")
        recipe = read_recipe(file)
        assert recipe.tokenizer is not None
        run = addnorm.train(
            recipe.model,
            case.corpus(lowercase=True),
            tokenizer=recipe.tokenizer,
            evaluation=recipe.eval,
            steps=2,
            batching=recipe.train.batching,
            progress=False,
        )
    else:
        run = train_text(folder, "run", recipe_of(case))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in run.model.parameters():
            if weight.ndim > 1:
                weight.copy_(0.5 * torch.randn(weight.shape, generator=draw))
    return run


@pytest.mark.long
@pytest.mark.parametrize("python", [False, True], ids=["files", "python"])
@pytest.mark.parametrize("name", CASES)
def test_evaluate_is_what_the_answers_make(tmp_path: Path, name: str, python: bool) -> None:
    """On the run as trained, saved and opened again, and given the same lines as they are."""
    case = CASES[name]
    run = learnt(tmp_path, case, python=python)
    measured = evaluation_of(run, "test").scores[case.metric]
    run.save(tmp_path / "saved")
    for one in (run, Run.open(tmp_path / "saved")):
        assert case.by_answers(one) == pytest.approx(measured, rel=1e-5)
        for lowercase in (True, False):
            scores = one.evaluate(case.corpus(lowercase=lowercase))
            assert scores[case.metric] == pytest.approx(measured, rel=1e-5)


@pytest.mark.long
def test_runs_of_earlier_versions_open_as_they_learnt(tmp_path: Path) -> None:
    """Their tokenizer does not say lower case, and their recipe does."""
    run = learnt(tmp_path, CASES["lines"], python=False).save(tmp_path / "saved")
    file = tmp_path / "saved" / "tokenizer.json"
    facts = json.loads(file.read_text(encoding="utf-8"))
    assert facts["normalizer"] == {"type": "Lowercase"}
    file.write_text(json.dumps(facts | {"normalizer": None}), encoding="utf-8")
    assert Run.open(tmp_path / "saved").classify(TEXTS) == run.classify(TEXTS)


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A language model, a masked one and denoisers of lines in lower case."""
    folder = tmp_path_factory.mktemp("language")
    (folder / "play.txt").write_text("\n".join(TEXTS * 3), encoding="utf-8")
    recipes = {"language": RECIPES["language"], "gpt2": RECIPES["language"], **HIDING}
    more = {"data__lowercase": "true", "data__unit": "line", "train__steps": "2"}
    parts = GPT2_PARTS | {"model.feedforward.activation": "gelu_tanh"}
    gpt2: Any = {key.replace(".", "__"): value for key, value in parts.items()}
    return {
        name: train_text(folder, name, text, **more, **(gpt2 if name == "gpt2" else {}))
        for name, text in recipes.items()
    }


@pytest.mark.long
def test_prompts_and_stop_strings(language: dict[str, Run]) -> None:
    run = language["language"]
    written = run.generate(lower(TEXTS[0]), max_new_tokens=40)
    assert run.generate(TEXTS[0], max_new_tokens=40) == written == written.lower()
    assert "".join(run.stream(TEXTS[0], max_new_tokens=40)) == written
    stop = next(one for one in written[3:] if one.upper() != one)
    cut = run.generate(TEXTS[0], max_new_tokens=40, stop=stop.upper())
    assert cut == written.partition(stop)[0] != written
    assert torch.equal(run.embed(TEXTS), run.embed([lower(text) for text in TEXTS]))
    assert prepare_text(run, TEXTS[0]).pieces == prepare_text(run, lower(TEXTS[0])).pieces


@pytest.mark.long
@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("mask", ["<mask>", "[MASK]"])
def test_masks_stay_masks(language: dict[str, Run], name: str, mask: str) -> None:
    run = language[name]
    text = f"EIN {mask} SIEHT den {mask}"
    found = run.fill(text)
    assert found == run.fill(text.replace("EIN", "ein").replace("SIEHT", "sieht"))
    assert len(found.masks) == (0 if name == "infilling" else 2)
    if name == "spans":
        assert run.fill(text.replace(mask, "<extra_id_0>", 1)) == found


@pytest.mark.long
def test_large_files_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus that is kept on the disk is in lower case too, and under a name of its own."""
    monkeypatch.setattr("addnorm.data.ids.cache.SMALLEST", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "play.txt").write_text("\n".join(TEXTS * 3), encoding="utf-8")
    losses: list[float] = []
    for lowercase in ("true", "false", "true"):
        run = train_text(
            tmp_path, f"run{len(losses)}", RECIPES["language"], data__lowercase=lowercase
        )
        assert run.tokenizers.lowercase == (lowercase == "true")
        losses.append(run.evaluate()["loss"])
    assert losses[0] == losses[2] != losses[1]
    assert Run.open(tmp_path / "run0").evaluate()["loss"] == losses[0]


@pytest.mark.long
@pytest.mark.parametrize("student", [False, True])
def test_a_teacher_translates_as_it_learnt(tmp_path: Path, student: bool) -> None:
    """Whatever the case of the student: its lines are the answers of the teacher's command."""
    teacher = learnt(tmp_path, CASES["parallel"], python=False)
    teacher = teacher.save(tmp_path / "teacher")
    recipe = replace(teacher.recipe.data, lowercase=student)  # pyright: ignore
    _, file = written_sequences(
        teacher, replace(teacher.recipe, data=recipe), tmp_path / "out", quiet()
    )
    assert file.read_text(encoding="utf-8").splitlines() == teacher.generate(TEXTS)


@pytest.mark.long
@pytest.mark.parametrize("to", ["hf", "ctranslate2", "onnx", "gguf"])
def test_exports_carry_it_or_say_that_they_do_not(
    language: dict[str, Run], tmp_path: Path, to: Form
) -> None:
    run, out = language["gpt2"], tmp_path / "out"
    said = "\n".join(export_run(run, out, to=to))
    ids = run.tokenizers.source.encode_batch(TEXTS)
    if to == "hf":
        theirs: Any = transformers.AutoTokenizer.from_pretrained(out)
        assert theirs(TEXTS)["input_ids"] == [[run.tokenizers.source.bos_id, *row] for row in ids]
        assert Run.open(out).tokenizers.source.encode_batch(TEXTS) == ids
    elif to == "ctranslate2":
        inner = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
        assert [found.ids for found in inner.encode_batch(TEXTS)] == ids
    assert ("put texts in lower case first" in said) == (to in ("onnx", "gguf"))
