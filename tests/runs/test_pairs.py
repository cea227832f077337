"""Two texts read together: from table to model, as transformers reads them, shortened, and used."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.tiny import train_text
from torch.testing import assert_close

import addnorm
from addnorm.cli.main import status
from addnorm.data.batches.buckets import TokensConfig
from addnorm.data.examples import Labelled
from addnorm.data.readers.tables import TableConfig
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer, WordConfig
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode
from addnorm.runs.evaluation import evaluate_on
from addnorm.runs.run import Run

COLOURS = ["red", "blue", "green", "black", "white", "pink"]

RECIPE = """
[data]
kind = "table"
train = "pairs.csv"
valid_fraction = 0.2
text = "one"
text_pair = "two"
label = "label"

[tokenizer]
kind = "word"

[model]
kind = "encoder"
d_model = 16
n_layers = 1
attention = { n_heads = 2 }
feedforward = { kind = "mlp", d_ff = 32 }
head = { kind = "classification" }
embedding = { n_types = 2 }
dropout = 0.0

[train]
steps = 4
batching = { kind = "tokens", tokens = 200 }
"""


def rows(n: int = 60) -> list[tuple[str, str, str]]:
    """Colours of unequal number, and whether the second text has the first's first one."""
    draw = random.Random(0)
    found: list[tuple[str, str, str]] = []
    for _ in range(n):
        one, two = (draw.sample(COLOURS, draw.randint(1, 5)) for _ in "ab")
        found.append((" ".join(one), " ".join(two), str(one[0] in two)))
    return found


def write(file: Path, lines: list[Any]) -> None:
    with file.open("w", newline="") as out:
        csv.writer(out).writerows(lines)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pairs.csv", [("one", "two", "label"), *rows()])
    return tmp_path


def test_types_reach_the_model_and_a_batch_changes_nothing(root: Path) -> None:
    run = train_text(root, "run", RECIPE)
    pairs = [(one, two) for one, two, _ in rows(9)]
    together = run.classify(pairs)
    for pair, one in zip(pairs, together, strict=True):
        [alone] = run.classify([pair])
        assert one.probabilities == pytest.approx(alone.probabilities, abs=1e-6)
    first, second = pairs[0]
    tokenizer = run.tokenizers.source
    a, b = tokenizer.encode(first), tokenizer.encode(second)
    eos = [tokenizer.eos_ids[0]]
    ids = torch.tensor([[tokenizer.bos_id, *a, *eos, *b, *eos]])
    types = torch.tensor([[0] * (len(a) + 2) + [1] * (len(b) + 1)])
    with torch.no_grad():
        logits = run.model(ids, None, types)[0]  # pyright: ignore[reportCallIssue, reportArgumentType]
        without = run.model(ids, None)[0]
    expected = dict(zip(run.labels, logits.softmax(-1).tolist(), strict=True))
    assert together[0].probabilities == pytest.approx(expected, abs=1e-6)
    assert not torch.allclose(logits, without)


def test_training_reads_what_use_reads(root: Path) -> None:
    run = train_text(root, "run", RECIPE)
    corpus = run.recipe.corpus()
    scores = evaluate_on(run)
    pairs = [(one.text, one.text_pair) for one in corpus.valid]  # pyright: ignore[reportAttributeAccessIssue]
    gold = [one.label for one in corpus.valid]  # pyright: ignore[reportAttributeAccessIssue]
    found = run.classify(pairs)
    right = sum(one.label == label for one, label in zip(found, gold, strict=True))
    assert scores["accuracy"] == pytest.approx(100 * right / len(gold))
    losses = [-torch.tensor(one.probabilities[y]).log() for one, y in zip(found, gold, strict=True)]
    assert scores["loss"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-4)
    with pytest.raises(InputError, match="reads two texts together"):
        run.classify(["red"])


def test_from_the_command_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_text(root, "run", RECIPE)
    (root / "some.txt").write_text("red blue\tred\ngreen\tpink\n")
    assert status(["classify", "run", "some.txt", "--pairs"]) == 0
    expected = Run.open(root / "run").classify([("red blue", "red"), ("green", "pink")])
    assert capsys.readouterr().out.split() == [one.label for one in expected]
    assert status(["classify", "run", "some.txt"]) == 2
    assert "give pairs" in capsys.readouterr().err


def test_numbers_of_pairs_have_their_correlation(root: Path) -> None:
    scipy = pytest.importorskip("scipy")
    scored = [(a, b, len({*a.split()} & {*b.split()})) for a, b, _ in rows()]
    lines = [json.dumps({"one": a, "two": b, "score": n}) for a, b, n in scored]
    (root / "pairs.jsonl").write_text("\n".join(lines))
    text = RECIPE.replace("pairs.csv", "pairs.jsonl").replace('label = "label"', 'values = "score"')
    text = text.replace('"classification"', '"classification", problem = "regression"')
    run = train_text(root, "run", text)
    held = run.recipe.corpus().valid
    predicted = run.predict([(one.text, one.text_pair) for one in held])  # pyright: ignore[reportAttributeAccessIssue]
    gold = [one.values[0] for one in held]  # pyright: ignore[reportAttributeAccessIssue]
    expected = scipy.stats.spearmanr(predicted[:, 0].double(), gold).statistic
    assert evaluate_on(run)["spearman"] == pytest.approx(expected, abs=1e-5)


def test_early_exits_read_sentence_types(root: Path) -> None:
    text = RECIPE.replace("n_layers = 1", "n_layers = 2\nexits = [1]")
    run = train_text(root, "run", text)
    assert evaluate_on(run)["examples"] == 12


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [("one", "too", "label"), *rows()],
            "no column 'two'. Did you mean 'too'? Valid: one, too, label",
        ),
        ([("one", "two", "label"), ("red", "blue")], "2 cells, but 3 columns"),
    ],
)
def test_wrong_tables(
    lines: list[Any], message: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root / "pairs.csv", lines)
    (root / "p.toml").write_text(RECIPE)
    assert status(["train", "p.toml"]) == 2
    assert message in capsys.readouterr().err
    assert not (root / "runs" / "p" / "config.json").exists()


def test_an_empty_second_text_is_left_out_and_counted(root: Path) -> None:
    write(root / "pairs.csv", [("one", "two", "label"), *rows(), ("red", " ", "True")])
    corpus = TableConfig(
        train=Path("pairs.csv"), text="one", text_pair="two", label="label", root=root
    ).load()
    assert corpus.reports["train"].left_out == {"empty text_pair": [f"{root}/pairs.csv:62"]}


def test_pairs_in_memory() -> None:
    corpus = addnorm.labelled([((a, b), label) for a, b, label in rows()])
    assert isinstance(corpus.train[0], Labelled)
    assert corpus.train[0].text_pair == rows()[0][1]
    assert {*" ".join(corpus.source_texts()).split()} == {*COLOURS}
    mixed: Any = [(("red", "blue"), "yes"), ("red", "no")]
    with pytest.raises(InputError, match="a second text and others have none"):
        addnorm.labelled(mixed)


@pytest.mark.parametrize("longest", [5, 6, 7, 8, 9, 12, 20])
def test_shortened_as_transformers_does(longest: int) -> None:
    """The longer text first, `truncation="longest_first"` of BERT's tokenizer."""
    transformers = pytest.importorskip("transformers")
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *COLOURS]
    theirs = transformers.BertTokenizerFast(
        vocab={name: i for i, name in enumerate(names)}, do_lower_case=True
    )
    ours = Tokenizer(
        theirs.backend_tokenizer,
        unk_id=1, bos_id=2, eos_ids=(3,), pad_id=0, before=(2,), after=(3,),
    )  # fmt: skip
    draw = random.Random(longest)
    some = [
        tuple(" ".join(draw.choices(COLOURS, k=draw.randint(1, 9))) for _ in "ab")
        for _ in range(40)
    ]
    corpus = encode(addnorm.labelled([(pair, "x") for pair in some]), Tokenizers(ours, ours))
    for pair, one in zip(some, corpus.within(longest, "shorten").train, strict=True):
        read = theirs(*pair, truncation="longest_first", max_length=longest)
        assert one.tokens == read["input_ids"]
        assert list(one.types) == read["token_type_ids"]


def test_batches_hold_tokens_and_types() -> None:
    corpus = addnorm.labelled([((a, b), label) for a, b, label in rows()])
    text = Tokenizers.train(WordConfig(), corpus)
    encoded = encode(corpus, text)
    loader = TokensConfig(tokens=100, pad_to=4).build(encoded).train
    for batch in loader.batches():
        types, tokens = batch.inputs["types"], batch.inputs["inputs"]
        assert types.shape == tokens.shape
        for row, ids, i in zip(types, tokens, batch.indices, strict=True):
            one = encoded.train[i]
            n = len(one.tokens)
            assert row[:n].tolist() == list(one.types)
            assert not row[n:].any()
            ends = (ids == text.source.eos_ids[0]).nonzero()[:, 0].tolist()
            assert row[ends[0]] == 0
            assert row[ends[0] + 1] == 1
            assert len(ends) == 2
    assert_close(encoded.lengths(encoded.train), [len(one.tokens) for one in encoded.train])
