"""Evaluating a model by the metrics of its task, and the settings that make scores comparable."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from torch import Tensor

from addnorm.data import DataConfig, lowercases
from addnorm.data.batches.batch import Batch, Loader
from addnorm.data.batches.buckets import Buckets, Loaders, Masked, build_loaders
from addnorm.data.examples import (
    Corpus,
    Example,
)
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.forecast_windows import ForecastWindows
from addnorm.data.scaling import Scaling
from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError, check_choice, with_article
from addnorm.generate.early_exit import EarlyExit, check_exits_early
from addnorm.generate.rules import NO_RULES
from addnorm.long_work import long_work
from addnorm.models import DecoderModel, EncoderModel, Model
from addnorm.notebooks import html_table
from addnorm.runs.encoded_data import EncodedData, read_data
from addnorm.runs.files.folder import Saved
from addnorm.runs.inference.media import check_read_alike, normalised
from addnorm.runs.inference.results import corpus_of
from addnorm.runs.options import Split
from addnorm.runs.recipes.recipe import RECIPE, Recipe, task_of
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.contract import checked
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.forecasting import naive_scores
from addnorm.tasks.registry import check_corpus
from addnorm.tasks.task import Evaluation, Task
from addnorm.training.loggers import Journal
from addnorm.training.progress import tell


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models on one split of a corpus (see `tasks.task.EvaluationSplit`)."""

    task: Task
    examples: Sequence[Example]
    encoded: Sequence[Encoded]
    characters: Ids | None
    loader: Loader[Any]
    tokenizers: Tokenizers | None
    labels: Sequence[str]
    settings: EvalConfig
    early: EarlyExit | None = None
    """The early exits to leave at; by default every layer runs."""
    scaling: Scaling | None = None
    """The scaling of a series to forecast."""

    @classmethod
    def of(
        cls,
        split: Split,
        data: EncodedData,
        loaders: Loaders,
        settings: EvalConfig,
    ) -> "Evaluator | None":
        """Build the evaluator of a split; None if the data have no such split."""
        loader = loaders.valid if split == "valid" else loaders.test
        if loader is None:
            return None
        # These may have left out or shortened examples.
        own = isinstance(loader, Buckets | Masked)
        used = loader.examples if own else data.encoded.splits[split]
        examples = data.corpus.splits[split] if data.corpus else ()
        characters = data.encoded.characters.get(split)
        facts = (data.tokenizers, data.labels, settings)
        return cls(data.task, examples, used, characters, loader, *facts, scaling=data.scaling)

    def evaluate(self, model: Model, n_translated: int | None = None) -> Evaluation:
        """Evaluate the split; translate only the first `n_translated` examples if given."""
        model.eval()
        return self.task.evaluate(model, self, n_translated)

    def logits(self, model: Model, batch: Batch) -> Tensor:
        """Return the outputs of the model for a batch, at early exits if `early` is given."""
        if self.early is None:
            return model(**batch.inputs)
        assert isinstance(model, EncoderModel | DecoderModel)
        return self.early.logits(model, batch)


class Scores(dict[str, float]):
    """Scores by name, which notebooks show as a table."""

    def _repr_html_(self) -> str:
        return html_table("scores", self)


def evaluate_on(
    run: TrainedModel, data: Corpus | DataConfig | None = None, split: Split | None = None
) -> dict[str, float]:
    """Return the scores as `Run.evaluate` does, by default on the test split of the run's data.

    Raises `InputError` if the data have no such split, or are for another task.
    """
    if isinstance(data, str) and data in get_args(Split):
        raise InputError(f"`data = {data}`: that is a split: give `split = {data}`")
    if data is None and run.corpus is None and run.recipe.data is None:
        raise InputError(
            f"{run.name}: its data are in no file: give some, as `evaluate(addnorm.text([…]))` does"
        )
    other = None if data is None else corpus_of(data)
    if other is not None:
        check_corpus(run.task_value, other, learns=False)
    if other is not None and not (other.valid or other.test):
        other = replace(other, test=other.train, reports={})
    return Scores(evaluated(run, split, data_of(run, other)).scores)


def usual_split(data: EncodedData) -> Split:
    """Return the default split to evaluate on: test, or valid if there is no test split.

    Raises `InputError` if both are empty.
    """
    splits = data.encoded.splits
    if not (splits["valid"] or splits["test"]):
        raise InputError(
            "the data have no test and no validation split: give other data to evaluate on, or "
            "train with `data.valid_fraction`"
        )
    return "test" if splits["test"] else "valid"


def evaluate_run(
    run: TrainedModel, split: Split, console: Console | None = None, corpus: Corpus | None = None
) -> dict[str, float]:
    """Return the scores of a run on a split of its data or of `corpus` (see `evaluation_of`)."""
    return evaluation_of(run, split, console, corpus).scores


def evaluation_of(
    run: TrainedModel,
    split: Split | None,
    console: Console | None = None,
    corpus: Corpus | None = None,
    early: EarlyExit | None = None,
) -> Evaluation:
    """Return the scores and predictions of a run on a split of its data or of `corpus`.

    By default that is the test split, or else the validation split. The prediction of an example
    that was skipped as too long is empty; language models have no predictions. With `early`,
    examples leave at early exits. Skipped examples are reported on the `console`. Raises
    `InputError` if the data have no such split, or the model has no exits.
    """
    return evaluated(run, split, data_of(run, corpus, console), console, early)


def data_of(
    run: TrainedModel, corpus: Corpus | None = None, console: Console | None = None
) -> EncodedData:
    """Return the encoded data of a run, or `corpus` encoded in the same way."""
    check_read_alike(run, corpus)
    saved = Saved(run.recipe, run.text, run.labels)
    return read_data(run.recipe, saved, corpus or run.corpus, console, run.scaling)


def evaluated(
    run: TrainedModel,
    split: Split | None,
    data: EncodedData,
    console: Console | None = None,
    early: EarlyExit | None = None,
) -> Evaluation:
    """Evaluate a run on a split of encoded data (see `evaluation_of`)."""
    if early is not None:
        check_early(run)
    split = split or usual_split(data)
    check_choice("split", split, get_args(Split))
    run.task_value.check_metric(run.recipe.eval.metric)
    loaders = normalised(run, build_loaders(run.recipe.train.batching, data.encoded))
    evaluator = Evaluator.of(split, data, loaders, run.recipe.eval)
    if evaluator is None:
        other = "valid" if split == "test" else "test"
        there = f": use `split = {other}`" if data.encoded.splits[other] else ""
        raise InputError(f"the data have no {split} split: data.{split} is not given{there}")
    if console is not None:
        tell(console, f"{split}: {loaders.reports[split]}")
    with long_work(console or Console(quiet=True), "evaluating"):
        evaluation = replace(evaluator, early=early).evaluate(run.model)
    predictions = evaluation.predictions and {
        i: evaluation.predictions.get(i, "") for i in range(len(evaluator.examples))
    }
    scores = {"examples": len(evaluator.encoded), **evaluation.scores, **evaluation.details}
    if isinstance(evaluator.encoded, ForecastWindows):
        scores |= naive_scores(evaluator.encoded, evaluator.loader)
    if early is not None:
        scores["mean_depth"] = early.mean_depth
    lines = lines_of(run.recipe, scores, lowercase=run.text is not None and run.text.lowercase)
    if early is not None:
        lines = {name: f"{line}; early exits" for name, line in lines.items()}
    return replace(
        evaluation, scores=scores, predictions=predictions, measured_with=lines, split=split
    )


def check_early(run: TrainedModel) -> None:
    """Raise `InputError` unless the run's model has exits that predict classes or tokens."""
    check_exits_early(run.model)
    if not run.task_value.exits_early:
        raise InputError(
            "`exit`: early exit needs class or token probabilities: "
            f"{with_article(run.task)} model has none"
        )


@dataclass(frozen=True)
class EvaluationData:
    """The data of a run, to evaluate models on a split and to train them further."""

    loaders: Loaders
    evaluator: Evaluator | None
    valid_examples: int

    @classmethod
    def of(cls, run: TrainedModel, split: Split) -> "EvaluationData":
        """Read the data of a run; without the split, the evaluator is None."""
        recipe, data = run.recipe, data_of(run)
        loaders = build_loaders(recipe.train.batching, data.encoded, recipe.train.seed)
        evaluator = Evaluator.of(split, data, loaders, recipe.eval)
        return cls(loaders, evaluator, recipe.eval.valid_examples)

    @classmethod
    def if_any(
        cls, run: TrainedModel, split: Split, *, needed: bool
    ) -> tuple["EvaluationData | None", str | None]:
        """Return the data of a run, and the reason if no model can be scored on them.

        Raises `InputError` if data that are `needed` cannot be read.
        """
        try:
            data = cls.of(run, split)
        except InputError as error:
            if needed:
                raise
            return None, str(error)
        lacks = f"the data have no {split} split: data.{split} is not given"
        return data, lacks if data.evaluator is None else None

    def scores(self, model: Model) -> dict[str, float]:
        """Return the scores on the split, as in validation."""
        assert self.evaluator is not None
        return self.evaluator.evaluate(model, self.valid_examples).scores


def measured_with(
    recipe: Recipe, metric: str, *, validation: bool = False, lowercase: bool = False
) -> str:
    """Return the settings of a metric's scores as one line; empty if it has none.

    It names the package and its settings, the decoding by which texts were written, and in a
    `validation` during training how many of them. The same recipe gives the same line, so a figure
    that is kept with its line can be compared with another only where the lines are equal. Data
    given in Python are in no recipe: `lowercase` says then whether they are in lower case.
    """
    task = task_of(recipe)
    settings = task.measured_with(metric, recipe.eval)
    checked(task, "measured_with", settings, str, "return the settings as text, or an empty one")
    parts = [settings or _batches(recipe, metric)]
    if metric in task.written_metrics:
        parts.append(f"written by {_decoding(recipe)}")
        if validation:
            parts.append(f"first {recipe.eval.valid_examples:,} examples")
    if any(parts) and (lowercase or lowercases(recipe.data)):
        parts.append("texts in lower case")
    return "; ".join(part for part in parts if part)


def main_metric(recipe: Recipe) -> str:
    """The metric that picks the best weights."""
    return recipe.eval.metric or task_of(recipe).metrics[0]


def measure_of(recipe: Recipe, valid_data: str) -> str:
    """The main metric with everything that affects its value, such as the validation data's digest.

    Two validations during training compare only where it is the same.
    """
    metric = main_metric(recipe)
    with_what = measured_with(recipe, metric, validation=True)
    return f"{metric}{f' ({with_what})' if with_what else ''} of validation data {valid_data[:12]}"


def lines_of(
    recipe: Recipe, metrics: Iterable[str], *, validation: bool = False, lowercase: bool = False
) -> dict[str, str]:
    """Return the settings of each metric's scores, for the metrics that have settings."""
    lines = {
        name: measured_with(recipe, name, validation=validation, lowercase=lowercase)
        for name in metrics
    }
    return {name: line for name, line in lines.items() if line}


BY_BATCHES = ("loss", "perplexity", "bits_per_character", "accuracy")
"""The metrics of tokens, which in plain texts depend on batching: on context and on masks."""


def _batches(recipe: Recipe, metric: str) -> str:
    """Return the context of each token for plain texts, or the masking rule for hidden tokens."""
    if metric not in BY_BATCHES or not task_of(recipe).plain_texts:
        return ""
    return f"batches {_as_text(_tree(recipe)['train']['batching'])}"


def _decoding(recipe: Recipe) -> str:
    """Return the decoding with all its fields, and only those rules that have an effect."""
    tree = _tree(recipe)["eval"]["decoding"]
    plain = asdict(NO_RULES)
    rules = {k: v for k, v in tree.get("rules", {}).items() if v and v != plain.get(k)}
    return _as_text({**tree, "rules": rules} if rules else {**tree, "rules": "none"})


def _tree(recipe: Recipe) -> Any:
    return RECIPE.dump_python(recipe, mode="json")


def _as_text(part: Any) -> str:
    """A part of a recipe with all of its fields, such as `beam(beams=5, length_penalty=0.6)`."""
    if not isinstance(part, dict):
        return str(part)
    fields = [f"{name}={_as_text(value)}" for name, value in part.items() if name != "kind"]  # pyright: ignore[reportUnknownVariableType]
    return f"{part.get('kind', '')}({', '.join(fields)})"  # pyright: ignore[reportUnknownMemberType]


def write_validation(
    folder: Path, recipe: Recipe, scores: Mapping[str, float], step: int = 0
) -> None:
    """Write the scores on the validation split, where `info` and `compare` look for them."""
    figures = {f"valid_{name}": value for name, value in scores.items() if name != "examples"}
    if figures:
        Journal(folder).write(step, figures, lines_of(recipe, scores, validation=True))
