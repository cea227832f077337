"""Texts encoded each by itself and compared: learnt, used, shortened, and given to others."""

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runs.tiny import train_text
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.cli.main import status
from addnorm.data.batches.buckets import TokensConfig
from addnorm.data.examples import Corpus, Scored
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import WordConfig
from addnorm.errors import InputError
from addnorm.runs.evaluation import evaluate_on
from addnorm.runs.run import Run
from addnorm.tasks.encoding import encode

ANIMALS = ["cat", "dog", "bird", "fish", "horse", "cow", "ant", "bee"]

RECIPE = """
[data]
kind = "table"
train = "pairs.csv"
valid_fraction = 0.2
text = "one"
text_pair = "two"
values = "score"

[tokenizer]
kind = "bpe"
vocab_size = 300

[model]
kind = "encoder"
d_model = 16
n_layers = 1
max_len = 64
position = { kind = "learned" }
attention = { n_heads = 2 }
feedforward = { kind = "mlp", activation = "gelu", d_ff = 32 }
embedding = { scale = "one", norm = { kind = "layernorm" }, n_types = 2 }
head = { kind = "similarity", range = [0, 5] }
dropout = 0.0
init = "bert"

[train]
steps = 100
lr = 3e-3
batching = { kind = "tokens", tokens = 400 }

[eval]
metric = "spearman"
"""


def rows(n: int = 300) -> list[tuple[str, str, float, str]]:
    """Lists of animals of unequal length, and how much of the shorter one is in the other."""
    draw = random.Random(0)
    found: list[tuple[str, str, float, str]] = []
    for _ in range(n):
        one, two = (draw.sample(ANIMALS, draw.randint(1, 5)) for _ in "ab")
        share = len({*one} & {*two}) / min(len(one), len(two))
        found.append((" ".join(one), " ".join(two), 5 * share, "near" if share > 0.5 else "far"))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bi")
    with (folder / "pairs.csv").open("w", newline="") as out:
        csv.writer(out).writerows([("one", "two", "score", "class"), *rows()])
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return train_text(folder, "run", RECIPE)


PAIRS = [(one, two) for one, two, *_ in rows(9)]


def test_a_number_is_the_cosine_of_the_two_vectors(run: Run) -> None:
    apart = [run.embed([one for one, _ in PAIRS]), run.embed([two for _, two in PAIRS])]
    assert_close(run.predict(PAIRS)[:, 0], 5 * F.cosine_similarity(*apart), rtol=1e-4, atol=1e-4)
    alone = torch.cat([run.predict([pair]) for pair in PAIRS])
    assert_close(run.predict(PAIRS), alone, rtol=1e-4, atol=1e-4)


def test_the_vectors_learn_what_the_data_say(run: Run, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        scores = evaluate_on(run, split="valid")
    assert scores["examples"] == 60
    assert scores["spearman"] > 0.5
    assert run.embed(["cat dog", "ant"]).shape == (2, 16)
    assert run.embed([]).shape == (0, 16)


def test_a_batch_has_two_rows_a_pair_and_no_types(run: Run) -> None:
    corpus = Corpus([Scored("cat dog", (1.0,), "ant bee cow"), Scored("bee", (2.0,), "ant")])
    encoded = encode(corpus, run.text, apart=True)
    [batch] = TokensConfig(tokens=400).build(encoded).train.batches()
    assert batch.inputs.keys() == {"inputs", "valid"}
    assert len(batch.inputs["inputs"]) == 2 * len(batch.targets) == 4
    tokenizer = run.tokenizers.source
    ids = [tokenizer.bos_id, *tokenizer.encode("cat dog"), tokenizer.eos_ids[0]]
    place = 2 * batch.indices.index(0)
    assert batch.inputs["inputs"][place].tolist()[: len(ids)] == ids


@pytest.mark.parametrize("longer", ["shorten", "leave_out"])
def test_each_text_has_its_own_length(longer: Any) -> None:
    examples = [Scored("a b c d e f", (1.0,), "a"), Scored("a b", (2.0,), "a b c d")]
    corpus = Corpus(examples)
    text = Tokenizers.train(WordConfig(), corpus)
    encoded = encode(corpus, text, apart=True)
    assert encoded.lengths(encoded.train) == [8, 6]
    loaders = TokensConfig(tokens=100, max_len=6, longer=longer).build(encoded)
    report = loaders.reports["train"]
    batches = [batch.inputs["inputs"] for batch in loaders.train.batches()]
    assert sum(map(len, batches)) == (4 if longer == "shorten" else 2)
    assert report.shortened == (["train example 1"] if longer == "shorten" else ())
    end = text.source.eos_ids[0]
    assert all(int((row == end).sum()) == 1 for rows in batches for row in rows)


def test_classes_of_pairs_by_two_vectors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    text = RECIPE.replace('values = "score"', 'label = "class"').replace(
        "range = [0, 5]", 'problem = "single_label"'
    )
    run = train_text(folder, "classes", text.replace('metric = "spearman"', ""))
    found = run.classify(PAIRS)
    assert {one.label for one in found} <= {"near", "far"}
    assert evaluate_on(run, split="valid")["accuracy"] > 50


@pytest.mark.filterwarnings("default")
def test_sentence_transformers_gives_the_same_vectors(run: Run, tmp_path: Path) -> None:
    texts = ["cat dog", "ant", "bee bee horse cow cat dog bird"]
    run.export(tmp_path / "hf", to="hf")
    assert_close(Run.open(tmp_path / "hf").embed(texts), run.embed(texts))
    st = pytest.importorskip("sentence_transformers")
    theirs = st.SentenceTransformer(str(tmp_path / "hf"), device="cpu").encode(texts)
    assert np.abs(theirs - run.embed(texts).numpy()).max() < 1e-5


@pytest.mark.long
def test_a_graph_gives_the_vectors(run: Run, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run.export(tmp_path / "onnx", to="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    tokenizer = run.tokenizers.source
    ids = np.array([[tokenizer.bos_id, *tokenizer.encode("cat dog ant"), tokenizer.eos_ids[0]]])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    known = {one.name for one in session.get_inputs()}
    inputs |= {"token_type_ids": np.zeros_like(ids)} if "token_type_ids" in known else {}
    [got] = session.run(None, inputs)
    assert_close(torch.tensor(got), run.embed(["cat dog ant"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (["--model.head", "{kind='similarity'}"], "give range = [0, 5]"),
        (["--data.text_pair", "three"], "three"),
        (["--model.head", "{kind='similarity', pooling='middle'}"], "mean"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    fields: list[str],
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    Path("wrong.toml").write_text(RECIPE)
    assert status(["train", "wrong.toml", "--out", "wrong", *fields]) == 2
    assert said in capsys.readouterr().err
    assert not Path("wrong").exists()


def test_one_text_is_not_compared(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="compares two texts: give pairs"):
        run.predict(["cat"])
    monkeypatch.chdir(folder)
    Path("one.csv").write_text("one,score\n" + "cat,1\ndog,2\n" * 5)
    text = RECIPE.replace("pairs.csv", "one.csv").replace('text_pair = "two"\n', "")
    with pytest.raises(InputError, match=r"data\.text_pair"):
        train_text(folder, "single", text)
