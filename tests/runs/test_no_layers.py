"""Kim's classifier, an encoder without blocks: it learns; what needs a layer says so."""

from pathlib import Path
from typing import Any, cast

import pytest

import addnorm
from addnorm.errors import InputError
from addnorm.inspect.look import look
from addnorm.runs.rewriting.prune import PruneOptions, prune_run
from addnorm.runs.run import Run

ROWS = [
    "person Who's there?",
    "person Who didn't come, and who did?",
    "place Where's the key (and the door)?",
    "place Where wasn't it?",
]
POOLING = addnorm.ConvolutionPoolingConfig(kernel_size=(2, 3), channels=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kim") / "run"
    file = out.with_name("questions.txt")
    file.write_text("\n".join(ROWS * 4) + "\n")
    addnorm.train(
        addnorm.EncoderConfig(
            d_model=16,
            n_layers=0,
            position=addnorm.NoPositionConfig(),
            head=addnorm.ClassificationHeadConfig(pooling=POOLING),
            embedding=addnorm.EmbeddingConfig(scale="one"),
            dropout=0.0,
            init="kim",
        ),
        addnorm.labelled(file, valid=file),
        tokenizer=addnorm.WordConfig(words="kim"),
        folder=out,
        steps=40,
        lr=0.02,
        constraint=addnorm.MaxNormConfig(bound=3.0),
        batching=addnorm.TokensConfig(tokens=64),
        progress=False,
        device="cpu",
    )
    return out


def test_it_learns_and_answers(folder: Path) -> None:
    run = Run.open(folder)
    found = run.classify(["Who isn't here?", "Where is it?"])
    assert [one.label for one in found] == ["person", "place"]
    tokenizer = cast(Any, run.tokenizers).source
    assert tokenizer.pieces(tokenizer.encode("Who didn't")) == ["Who", "did", "n't"]


def test_operations_on_layers_reject_a_model_without_layers(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no layer to look at"):
        look(Run.open(folder), "Who is it?")
    with pytest.raises(InputError, match="no layer to prune"):
        prune_run(Run.open(folder), tmp_path / "out", PruneOptions(heads=0.5))
    assert not (tmp_path / "out").exists()
