"""The contrastive task: what a batch holds, retrieval by hand, learning, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as pillow
from torch import Tensor

from addnorm.cli.main import status
from addnorm.data import Captioned, Corpus
from addnorm.data.batches.images import ExamplesConfig
from addnorm.data.examples import Report
from addnorm.errors import InputError
from addnorm.metrics.scores import recalls
from addnorm.models import DualEncoderConfig, EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.contrastive import ContrastiveHeadConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.nn.vectors import VectorHeadConfig
from addnorm.runs.recipes.recipe import Recipe, read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_function import train
from addnorm.tasks.contrastive import Contrastive

SIDES = {
    "left": (slice(None), slice(0, 2)),
    "right": (slice(None), slice(2, 4)),
    "top": (slice(0, 2),),
}


def pictures(n: int, seed: int) -> Iterator[Captioned]:
    """Pictures of which one side is bright, and its name."""
    generator = torch.Generator().manual_seed(seed)
    for i in range(n):
        name = [*SIDES][i % len(SIDES)]
        pixels = torch.randint(0, 60, (1, 4, 4), generator=generator, dtype=torch.uint8)
        pixels[(0, *SIDES[name])] += 150
        yield Captioned(pixels, f"a {name}")


def corpus() -> Corpus:
    splits: dict[str, Any] = {"train": [*pictures(48, 0)], "valid": [*pictures(9, 1)]}
    reports = {name: Report(len(rows), len(rows)) for name, rows in splits.items()}
    return Corpus(**splits, reports=reports)


SMALL: dict[str, Any] = {
    "d_model": 8,
    "n_layers": 1,
    "attention": AttentionConfig(n_heads=2),
    "feedforward": FeedForwardConfig(d_ff=16),
    "residual": PreNormConfig(),
    "dropout": 0.0,
}


def model(loss: str) -> DualEncoderConfig:
    image = EncoderConfig(
        **SMALL,
        position=NoPositionConfig(),
        input=PatchEmbeddingConfig(size=(4, 4), patch=2, channels=1),
        head=VectorHeadConfig(pooling="mean", width=6),
    )
    text = VectorHeadConfig(pooling="last", width=6)
    starts: dict[str, Any] = {} if loss == "softmax" else {"log_scale": 2.3, "bias": -3.0}
    head = ContrastiveHeadConfig(text=text, loss=loss, **starts)  # type: ignore[arg-type]
    return DualEncoderConfig(**SMALL, max_len=8, causal=True, image=image, head=head)


def trained(loss: str, **options: Any) -> Run:
    given = {"steps": 100, "batching": ExamplesConfig(size=12), "lr": 1e-2, "seed": 0} | options
    return train(model(loss), corpus(), tokenizer="word", progress=False, **given)


LOSSES = [
    pytest.param("softmax", marks=pytest.mark.long),
    pytest.param("sigmoid", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=LOSSES)
def run(request: pytest.FixtureRequest) -> Run:
    return trained(request.param)


def test_it_learns_the_text_of_a_picture(run: Run, tmp_path: Path) -> None:
    scores = run.evaluate(corpus(), split="valid")
    assert scores["text_recall_1"] == 100
    assert scores["recall_1"] >= 90
    assert scores["examples"] == 9
    texts = run.embed([f"a {name}" for name in SIDES])
    torch.testing.assert_close(texts.norm(dim=1), torch.ones(3))
    evaluation = run.evaluation("valid")
    assert evaluation.predictions == {i: x.text for i, x in enumerate(pictures(9, 1))}


def test_the_loss_of_an_evaluation_is_that_of_its_batches(run: Run) -> None:
    [*examples] = pictures(9, 1)
    ids = [run.tokenizers.source.encode(x.text) for x in examples]
    images = torch.stack([x.pixels for x in examples]).float() / 127.5 - 1
    start, end = run.tokenizers.source.bos_id, run.tokenizers.source.eos_ids[0]
    tokens = torch.tensor([[start, *row, end] for row in ids])
    with torch.no_grad():
        logits = run.model(images, tokens)  # type: ignore[call-arg]
        loss = run.model.head.loss_sum(logits, torch.arange(9)) / 9  # type: ignore[operator]
    assert abs(run.evaluate(corpus(), split="valid")["loss"] - float(loss)) < 1e-5


def test_training_ends_with_a_scale_of_a_hundred_at_most() -> None:
    head = ContrastiveHeadConfig(text=VectorHeadConfig(pooling="last", width=6), log_scale=9.0)
    batching = ExamplesConfig(size=12)
    given = replace(model("softmax"), head=head)
    done = train(given, corpus(), tokenizer="word", progress=False, steps=2, batching=batching)
    assert done.model.head.logit_scale.exp() <= 100.001  # type: ignore[union-attr, operator]


def test_a_saved_run_is_the_same(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    again = Run.open(tmp_path / "run")
    assert again.recipe.model == run.recipe.model
    texts = ["a left", "a top"]
    assert torch.equal(again.embed(texts), run.embed(texts))


def test_a_batch_has_the_ids_of_each_text(run: Run) -> None:
    data = corpus()
    encoded = Contrastive().encode_corpus(data, run.tokenizers, {}, lambda _: None)
    batch = next(iter(ExamplesConfig(size=5).build(encoded).valid.batches()))  # type: ignore[union-attr]
    assert batch.inputs["images"].shape == (5, 1, 4, 4)
    assert batch.inputs["tokens"].shape == (5, 4)
    assert batch.targets.tolist() == [0, 1, 2, 3, 4]
    assert batch.n_tokens == 5


def test_recalls_by_hand() -> None:
    z = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 1.0, 1.0]])
    right = torch.eye(3, dtype=torch.bool)
    assert recalls(z, right, (1, 2, 3)) == pytest.approx([100 / 3, 200 / 3, 100])


def test_a_tie_counts_as_wrong() -> None:
    same = torch.zeros(4, 4)
    assert recalls(same, torch.eye(4, dtype=torch.bool), (1, 3, 4)) == [0, 0, 100]


def test_several_right_candidates_count_by_the_best() -> None:
    z = torch.tensor([[0.0, 3.0, 2.0, 1.0]])
    right: Tensor = torch.tensor([[True, False, True, False]])
    assert recalls(z, right, (1, 2)) == [0, 100]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 2}, "a picture is compared with all texts of its batch"),
        ({"label_smoothing": 0.1}, "a contrastive head learns its outputs together"),
        ({"r_drop": 1.0}, "a contrastive head learns its outputs together"),
    ],
)
def test_what_divides_a_batch_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trained("softmax", **options)


RECIPE = """
[data]
kind = "image_files"
root = "{root}"
train = "pictures"
valid = "pictures"
image_size = [4, 4]
channels = 1
labels = "text"

[tokenizer]
kind = "word"

[model]
kind = "dual_encoder"
d_model = 8
n_layers = 1
max_len = 9
causal = true
position = "learned"
residual = "pre"
embedding = {{ scale = "one" }}
attention = {{ n_heads = 2 }}
head = {{ text = {{ pooling = "last", width = 6 }} }}

[model.image]
d_model = 8
n_layers = 1
attention = {{ n_heads = 2 }}
residual = "pre"
position = "none"
head = {{ kind = "vector", pooling = "first", width = 6 }}

[model.image.input]
kind = "patches"
size = [4, 4]
patch = 2
channels = 1
bias = false
norm = "layernorm"

[train]
steps = 2
batching = {{ kind = "examples", size = 6 }}
"""


def recipe(folder: Path) -> Path:
    """Pictures in a folder for each text, and a recipe that compares them."""
    for i, example in enumerate(pictures(6, 2)):
        place = folder / "pictures" / example.text
        place.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(example.pixels[0].numpy()).save(place / f"{i}.png")
    file = folder / "pairs.toml"
    file.write_text(RECIPE.format(root=folder))
    return file


def read(file: Path, **changes: str) -> Recipe:
    return read_recipe(file, {name.replace("__", "."): value for name, value in changes.items()})


def test_processes_are_refused(tmp_path: Path) -> None:
    file = recipe(tmp_path)
    assert read(file).model.kind == "dual_encoder"
    for split in ("data", "tensor", "pipeline", "context"):
        with pytest.raises(InputError, match="train a dual_encoder in one process"):
            read(file, **{f"parallel__{split}": "2"})


def test_every_command_works_or_names_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, run = str(recipe(tmp_path)), str(tmp_path / "run")
    picture = str(next((tmp_path / "pictures" / "a left").iterdir()))
    lines = tmp_path / "lines.txt"
    lines.write_text("a left\na top\n")
    out = str(tmp_path / "out")
    for command in (
        ["train", file, "--out", run],
        ["info", run],
        ["evaluate", run],
        ["embed", run, picture],
        ["embed", run, str(lines)],
        ["classify", run, picture, "--labels", "left", "right"],
        ["export", run, str(tmp_path / "theirs")],
    ):
        assert status(command) == 0, (command, capsys.readouterr())
    capsys.readouterr()
    for command, message in {
        ("classify", run, picture): "name the classes by",
        ("classify", run, picture, "--labels", "left"): "give at least two",
        ("embed", run, picture, str(lines)): "is a picture, and",
        ("embed", run, picture, "--pooling", "mean"): "by the vectors that it learnt",
        ("generate", run, picture): "contrastive model writes no text",
        ("fill", run, str(lines)): "contrastive",
        ("prune", run, "--out", out, "--heads", "0.5"): "a dual encoder is not pruned",
        ("quantize", run, "--out", out): "a dual encoder is not quantised",
        (
            "swap",
            run,
            "--out",
            out,
            "--set",
            "norm=rmsnorm",
        ): "a dual encoder is not given other parts",
        ("export", run, out, "--to", "onnx"): "is not exported to ONNX",
        ("export", run, out, "--to", "gguf"): "runs decoders only",
        ("export", run, out, "--to", "ctranslate2"): "this one is an encoder",
        ("look", run, "--text", "a left"): "this model reads images, not text",
        (
            "plan",
            file,
            "--cards",
            "8",
            "--card",
            "h100",
        ): "batches of examples have none",
    }.items():
        assert status([*command]) == 2, (command, capsys.readouterr())
        assert message in capsys.readouterr().err, command
