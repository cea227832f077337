"""Rows of weights go by the names that they stand for: labels, variables and tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.inference.test_forecast import RECIPE as FORECAST
from tests.runs.inference.test_forecast import waves
from tests.runs.inference.test_series import RECIPE as SERIES
from tests.runs.tiny import CLASSIFICATION, TAGGING, quiet, said, train_text, write_corpora
from torch import Tensor, nn

from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.models.weights import Weights, weights_of
from addnorm.nn.context import Context
from addnorm.nn.crf import CRFHeadConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.heads import ClassificationHeadConfig, TaggingHeadConfig, TokenHeadConfig
from addnorm.nn.patches import SeriesEmbeddingConfig, Variables
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.runs.files.weights import sized_model
from addnorm.runs.named_rows import Axes, Names, named_axes, transfer_by_name
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.recipes.starting_model import MatchReport
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run


def taken_by_name(
    model: nn.Module, ours: Names, axes: Axes, weights: Weights, theirs: Names
) -> MatchReport:
    return transfer_by_name(model, ours, axes, weights, theirs).all_into(model, weights)


class OwnHead(nn.Module):
    """A head with a parameter of every layout: rows, columns, and one of the labels alone."""

    def __init__(self, d_model: int, n: int) -> None:
        super().__init__()
        self.columns = nn.Parameter(torch.randn(d_model, n))
        self.offsets = nn.Parameter(torch.randn(n))
        self.mixing = nn.Parameter(torch.randn(n, n))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        scores = x.mean(1) @ self.columns + self.offsets
        return scores + scores @ self.mixing


@dataclass(frozen=True)
class OwnHeadConfig:
    task = "classification"

    def build(self, d_model: int, n_outputs: int) -> OwnHead:
        return OwnHead(d_model, n_outputs)


def encoder(**options: Any) -> EncoderConfig:
    return EncoderConfig(d_model=16, n_layers=2, dropout=0.0, max_len=32, **options)


def series(variables: Variables, **options: Any) -> EncoderConfig:
    read = SeriesEmbeddingConfig(
        channels=3, patch=4, norm="instance", affine="learned", variables=variables, look_back=16
    )
    return encoder(input=read, **options)


LABELLED: dict[str, EncoderConfig] = {
    "classification": encoder(head=ClassificationHeadConfig()),
    "exits": encoder(head=ClassificationHeadConfig(), exits=(1,)),
    "tagging": encoder(head=TaggingHeadConfig()),
    "crf": encoder(head=CRFHeadConfig()),
    "similarity": encoder(head=SimilarityHeadConfig(problem="single_label")),
    "own": encoder(head=OwnHeadConfig()),
    "series": series("mixed", head=ClassificationHeadConfig()),
}
FORECASTERS = {
    "mixed": series("mixed", head=ForecastHeadConfig(horizon=5)),
    "independent": series("independent", head=ForecastHeadConfig(horizon=5)),
    "mean": series("mixed", head=ForecastHeadConfig(horizon=1, pooling="mean")),
}


def filled(config: ModelConfig, source: int, target: int, n_labels: int, seed: int) -> Any:
    """A model whose weights are all random, also those that begin at zero or one."""
    torch.manual_seed(seed)
    model = sized_model(config, source, target, n_labels).double().eval()
    with torch.no_grad():
        for weight in weights_of(model).values():
            weight.normal_(std=0.3)
    return model


def inputs_of(config: EncoderConfig) -> Tensor:
    torch.manual_seed(3)
    if config.input.kind == "series":
        return torch.randn(4, 3, 16).double()
    return torch.randint(0, 11, (4, 6))


@pytest.mark.parametrize("name", LABELLED)
def test_permuted_labels_give_the_same_outputs_by_name(name: str) -> None:
    config, there, here = LABELLED[name], ("a", "b", "c"), ("c", "a", "b")
    old, new = (filled(config, 11, 11, 3, seed) for seed in (0, 1))
    variables = ("x", "y", "z") if name == "series" else ()
    names = [Names(labels, variables) for labels in (here, there)]
    report = taken_by_name(new, names[0], named_axes(config, 11, 11, 3), weights_of(old), names[1])
    assert not report.fresh
    assert not report.unused
    x, order = inputs_of(config), [there.index(label) for label in here]
    torch.testing.assert_close(new(x), old(x)[..., order])
    if config.exits:
        for mine, theirs in zip(new.exit_logits(x), old.exit_logits(x), strict=True):
            torch.testing.assert_close(mine, theirs[..., order])
    if name == "crf":
        chain, other = new.head.chain, old.head.chain
        torch.testing.assert_close(chain.start, other.start[order])
        torch.testing.assert_close(chain.end, other.end[order])
        torch.testing.assert_close(chain.transitions, other.transitions[order][:, order])
    assert "another order" in str(report)


@pytest.mark.parametrize("name", ["classification", "exits", "tagging", "similarity", "series"])
def test_labels_that_stay_keep_their_rows(name: str) -> None:
    config = LABELLED[name]
    old, new, untouched = (filled(config, 11, 11, n, seed) for n, seed in ((2, 0), (3, 1), (3, 1)))
    ours, theirs = Names(("b", "c", "a")), Names(("a", "b"))
    report = taken_by_name(new, ours, named_axes(config, 11, 11, 3), weights_of(old), theirs)
    x = inputs_of(config)
    torch.testing.assert_close(new(x)[..., [2, 0]], old(x))
    assert report.partly
    for part in report.partly:
        assert torch.equal(weights_of(new)[part][1], weights_of(untouched)[part][1])
    assert "2 of 3 labels taken over by name, new labels: c" in str(report)


@pytest.mark.parametrize("name", LABELLED)
@pytest.mark.parametrize("theirs", [("LABEL_0", "LABEL_1", "LABEL_2"), ("x", "y", "z")])
def test_other_labels_get_new_rows(name: str, theirs: tuple[str, ...]) -> None:
    config, ours = LABELLED[name], ("a", "b", "c")
    old, new, untouched = (filled(config, 11, 11, 3, seed) for seed in (0, 1, 1))
    axes = named_axes(config, 11, 11, 3)
    report = taken_by_name(new, Names(ours), axes, weights_of(old), Names(theirs))
    named = {
        name for name, by_dim in axes.items() if any(a.kind == "labels" for a in by_dim.values())
    }
    assert named
    assert {*report.new} == named
    for part in named:
        assert torch.equal(weights_of(new)[part], weights_of(untouched)[part])
    assert "no labels in common" in str(report)


@pytest.mark.parametrize("name", FORECASTERS)
def test_permuted_variables_give_the_same_forecast(name: str) -> None:
    config, there, here = FORECASTERS[name], ("x", "y", "z"), ("z", "x", "y")
    old, new = (filled(config, 0, 0, 0, seed) for seed in (0, 1))
    ours, theirs = (Names(variables=variables) for variables in (here, there))
    report = taken_by_name(new, ours, named_axes(config, 11, 11, 3), weights_of(old), theirs)
    assert not report.fresh
    x, order = inputs_of(config), [there.index(variable) for variable in here]
    torch.testing.assert_close(new(x[:, order]), old(x)[:, order])


def test_permuted_variables_give_the_same_classes() -> None:
    config, there, here = LABELLED["series"], ("x", "y", "z"), ("z", "x", "y")
    old, new = (filled(config, 0, 0, 2, seed) for seed in (0, 1))
    ours, theirs = (Names(("a", "b"), variables) for variables in (here, there))
    taken_by_name(new, ours, named_axes(config, 0, 0, 2), weights_of(old), theirs)
    x, order = inputs_of(config), [there.index(variable) for variable in here]
    torch.testing.assert_close(new(x[:, order]), old(x))


SEVEN = tuple("abcdefg")
TOKENS: dict[str, ModelConfig] = {
    "tied": DecoderConfig(d_model=16, n_layers=1, dropout=0.0),
    "untied": DecoderConfig(
        d_model=16, n_layers=2, dropout=0.0, head=TokenHeadConfig(tied=False, bias=True), exits=(1,)
    ),
    "masked": encoder(head=TokenHeadConfig(bias=True)),
    "shared": EncoderDecoderConfig(d_model=16, n_layers=1, dropout=0.0, share_embeddings=True),
    "two tables": EncoderDecoderConfig(d_model=16, n_layers=1, dropout=0.0, share_embeddings=False),
}


@pytest.mark.parametrize("name", TOKENS)
def test_tokens_of_other_ids_keep_their_rows(name: str) -> None:
    config, there, here = TOKENS[name], SEVEN, ("g", *SEVEN[:-1])
    old, new = (filled(config, 7, 7, 0, seed) for seed in (0, 1))
    ours, theirs = (Names(source=tokens, target=tokens) for tokens in (here, there))
    report = taken_by_name(new, ours, named_axes(config, 7, 7, 0), weights_of(old), theirs)
    assert not report.fresh
    order = [there.index(token) for token in here]
    torch.manual_seed(0)
    ids = torch.randint(0, 7, (2, 5))
    theirs_ids = torch.tensor(order)[ids]
    both = isinstance(config, EncoderDecoderConfig)
    mine = new(ids, ids) if both else new(ids)
    other = old(theirs_ids, theirs_ids) if both else old(theirs_ids)
    torch.testing.assert_close(mine, other[..., order])


# Whole runs.


def further(recipe: str, start: str = "old", more: str = "") -> str:
    """A recipe that takes over weights and hardly changes them."""
    before, train = recipe.split("[train]\n")
    if "[tokenizer]" in before:
        head, tokenizer = before.split("[tokenizer]")
        before = head + tokenizer[tokenizer.index("[model]") :]
    kept = "".join(
        f"{x}\n" for x in train.splitlines() if not x.startswith(("epochs", "lr", "sel"))
    )
    begun = f'[train]\nstart = "{start}"\nlr = 1e-9\nsteps = 1\n{more}'
    return before + begun + kept.replace("steps = 60", "")


def reordered(run: Run, folder: Path) -> None:
    """Save a run with its labels in the reverse order, which is the same function by name."""
    model = run.model
    with torch.no_grad():
        for name, weight in weights_of(model).items():
            if "head.proj" in name or name.startswith("head.chain"):
                weight.copy_(weight.flip(0) if "transitions" not in name else weight.flip(0, 1))
    Run(None, run.recipe, run.text, run.labels[::-1], model).save(folder)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_corpora(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("task", ["classification", "tagging", "crf"])
def test_a_start_with_its_labels_in_another_order_scores_the_same(root: Path, task: str) -> None:
    recipe = (
        CLASSIFICATION if task == "classification" else TAGGING.replace('"tagging"', f'"{task}"')
    )
    fast = recipe.replace("epochs = 2", "epochs = 30\nlr = 1e-2")
    run = train_text(root, "plain", fast)
    before = run.evaluate()
    assert before["accuracy"] > 90
    reordered(run, root / "old")
    after = train_text(root, "new", further(recipe)).evaluate()
    assert after == pytest.approx(before, abs=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("variables", ["mixed", "independent"])
def test_a_table_with_its_columns_in_another_order_is_forecast_the_same(
    root: Path, variables: str
) -> None:
    (root / "waves.csv").write_text("\n".join(waves()) + "\n")
    recipe = FORECAST.replace('"independent"', f'"{variables}", affine = "learned"')
    before = train_text(root, "old", recipe).evaluate()
    swapped = recipe.replace('"waves.csv"', '"waves.csv"\ncolumns = ["high", "low"]')
    run = train_text(root, "new", further(swapped))
    assert run.labels == ("high", "low")
    scores = run.evaluate()
    assert scores["mse"] == pytest.approx(before["mse"], rel=1e-3)


def test_whole_series_with_columns_in_another_order_are_classified_the_same(root: Path) -> None:
    lines = ["id,x,y,class"]
    for n in range(12):
        lines += [f"{n},{i % (3 + n % 2)},{n % 2 + i / 9},{'ab'[n % 2]}" for i in range(12)]
    (root / "waves.csv").write_text("\n".join(lines) + "\n")
    text = SERIES.replace("patch = 4", "patch = 4, channels = 2").replace('["value"]', '["x", "y"]')
    before = train_text(root, "old", text.replace("steps = 60", "steps = 5")).evaluate()
    swapped = further(text.replace('["x", "y"]', '["y", "x"]'))
    assert train_text(root, "new", swapped).evaluate()["loss"] == pytest.approx(
        before["loss"], 1e-4
    )


def relabelled(root: Path, labels: Sequence[str]) -> None:
    """Give the lines of a classifier other classes."""
    for name in ("train.txt", "valid.txt"):
        lines = (root / name).read_text().splitlines()
        new = (f"{labels[i % len(labels)]} {x.split(' ', 1)[1]}\n" for i, x in enumerate(lines))
        (root / name).write_text("".join(new))


@pytest.mark.parametrize("labels", ["xyz", "xya", "cab"])
def test_a_head_under_an_adapter_is_learned_where_its_classes_are_others(
    root: Path, labels: str
) -> None:
    relabelled(root, "abc")
    old = train_text(root, "old", CLASSIFICATION)
    relabelled(root, labels)
    adapter = 'adapter = { kind = "lora", rank = 2 }\n'
    text = further(CLASSIFICATION, more=adapter).replace("lr = 1e-9", "lr = 1e-1")
    run = train_text(root, "new", text)
    opened = Run.open(root / "new")
    assert opened.labels == tuple(sorted(labels))
    assert all(torch.equal(w, run.weights[name]) for name, w in opened.weights.items())
    head = "head.proj.weight"
    assert torch.equal(run.weights[head], old.weights[head]) == (labels == "cab")
    saved = (root / "new" / "adapter_config.json").read_text()
    assert ('"head.proj"' in saved) == (labels != "cab")


def test_an_adapter_of_an_earlier_version_opens_with_rows_in_their_order(root: Path) -> None:
    relabelled(root, "abc")
    train_text(root, "plain", CLASSIFICATION)
    adapter = 'adapter = { kind = "lora", rank = 2 }\n'
    run = train_text(root, "new", further(CLASSIFICATION, start="plain", more=adapter))
    base = root / "new" / "base.json"
    facts = base.read_text().replace(', "rows": "by name"', "")
    base.write_text(facts)
    (root / "new" / "digests.json").unlink()
    labels = root / "plain" / "labels.json"
    labels.write_text('["c", "b", "a"]')
    (root / "plain" / "digests.json").unlink()
    opened = Run.open(root / "new")
    assert all(torch.equal(w, run.weights[name]) for name, w in opened.weights.items())


@pytest.mark.parametrize("task", ["classification", "tagging"])
def test_a_teacher_with_its_labels_in_another_order_teaches_the_same(root: Path, task: str) -> None:
    recipe = CLASSIFICATION if task == "classification" else TAGGING
    run = train_text(root, "plain", recipe.replace("epochs = 2", "epochs = 4\nlr = 1e-2"))
    reordered(run, root / "old")
    text = further(recipe).replace('start = "old"\nlr = 1e-9', "lr = 1e-2")
    taught = "[train]\ndistillation = { teacher = %r, weight = 1.0 }"
    first, second = (
        train_text(root, f"by-{name}", text.replace("[train]", taught % name))
        for name in ("plain", "old")
    )
    for name, weight in first.weights.items():
        assert torch.equal(weight, second.weights[name])


def test_what_goes_by_name_is_told_in_one_line(root: Path) -> None:
    train_text(root, "old", CLASSIFICATION)
    relabelled(root, ["good", "fair"])
    file = root / "new.toml"
    file.write_text(
        further(CLASSIFICATION).replace('kind = "lines"', f'kind = "lines"\nroot = "{root}"')
    )
    console = quiet()
    train_run(read_recipe(file), root / "new", resume=False, console=console)
    told = [line for line in said(console).splitlines() if line.startswith("old: ")]
    assert len(told) == 1
    assert "1 of 2 labels taken over by name, new labels: fair, labels left out: bad" in told[0]


def test_an_adapter_of_an_earlier_version_is_resumed_with_rows_in_their_order(root: Path) -> None:
    relabelled(root, "abc")
    train_text(root, "plain", CLASSIFICATION)
    adapter = 'adapter = { kind = "lora", rank = 2 }\n'
    text = further(CLASSIFICATION, start="plain", more=adapter)
    train_text(root, "new", text)
    base = root / "new" / "base.json"
    base.write_text(base.read_text().replace(', "rows": "by name"', ""))
    (root / "plain" / "labels.json").write_text('["c", "b", "a"]')
    (root / "plain" / "digests.json").unlink()
    (root / "new.toml").write_text(text)
    recipe = read_recipe(root / "new.toml", {"data.root": f'"{root}"', "train.steps": "3"})
    console = quiet()
    run = train_run(recipe, root / "new", resume=True, console=console)
    assert "rows taken over in their order, not by name" in said(console)
    opened = Run.open(root / "new")
    assert all(torch.equal(w, run.weights[name]) for name, w in opened.weights.items())
