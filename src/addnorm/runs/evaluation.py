"""Evaluating a model by the metrics of its task, during and after training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, Literal, cast, get_args

import torch
from rich.console import Console
from torch import Tensor

from addnorm.data import DataConfig
from addnorm.data.batches.batch import Batch, Loader
from addnorm.data.batches.buckets import Buckets, Denoising, Loaders, Masked, build_loaders
from addnorm.data.examples import (
    MEDIA,
    Captioned,
    Chat,
    Clip,
    Corpus,
    Example,
    Image,
    Labelled,
    LabelledSeries,
    MultiLabelled,
    Pair,
    Scored,
    ScoredSeries,
    Series,
    Tagged,
    Text,
    Transcribed,
    labels_of,
    words_of,
)
from addnorm.data.ids.compact import Compact, Encoded
from addnorm.data.ids.forecast_windows import ForecastWindows
from addnorm.data.scaling import Scaling
from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.generate import TextDecoder, Transcription, Translation, transcribe, translate
from addnorm.models import EncoderDecoderModel, Model
from addnorm.models.early_exit import EarlyExit, check_exits_early
from addnorm.runs import metrics
from addnorm.runs.encoded_data import EncodedData, read_data
from addnorm.runs.folder import Saved
from addnorm.runs.forecast_scores import forecast_errors, naive_scores
from addnorm.runs.measured_with import lines_of
from addnorm.runs.media import check_read_alike
from addnorm.runs.predictions import FEW, answers, filled, numbers_line
from addnorm.runs.settings import EvalConfig
from addnorm.runs.trained_model import TrainedModel
from addnorm.runs.types import check_choice, corpus_of
from addnorm.runs.written import written_scores
from addnorm.training.loss import labels_loss_sum

Split = Literal["valid", "test"]


HIDING = (Masked, Denoising)
"""The loaders of texts of which parts are hidden, whose tokens are scored one by one."""


@dataclass(frozen=True)
class Evaluation:
    """The scores by name, and the predictions by the index of the example in the split.

    `batches` has the summed loss of each batch, and its number of targets.
    """

    scores: dict[str, float]
    predictions: dict[int, str]
    batches: tuple[tuple[float, int], ...] = ()
    gold: Mapping[int, str] = field(default_factory=dict[int, str])
    """The right classes of what was classified."""
    details: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scores that are of interest after training alone."""
    values: Mapping[str, Mapping[int, float]] = field(
        default_factory=dict[str, Mapping[int, float]]
    )
    """Of a score that is a mean over examples, the value of each by its index."""
    measured_with: Mapping[str, str] = field(default_factory=dict[str, str])
    """What a score was measured with, by its name (see `runs.measured_with`)."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models on one split of a corpus: on those examples that its loader has.

    Of the texts of a language model only the numbers of their `characters` are needed.
    """

    examples: Sequence[Example]
    encoded: Sequence[Encoded]
    characters: Ids | None
    loader: Loader[Any]
    tokenizers: Tokenizers | None
    labels: Sequence[str]
    settings: EvalConfig
    early: EarlyExit | None = None
    """How to leave at early exits; by default every layer runs."""
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
        """The evaluator of a split; None if the data have no such split."""
        loader = loaders.valid if split == "valid" else loaders.test
        if loader is None:
            return None
        # These may have left out or shortened examples.
        own = isinstance(loader, Buckets | Masked)
        used = loader.examples if own else data.encoded.splits[split]
        examples = data.corpus.splits[split] if data.corpus else ()
        characters = data.encoded.characters.get(split)
        facts = (data.tokenizers, data.labels, settings)
        return cls(examples, used, characters, loader, *facts, scaling=data.scaling)

    def evaluate(self, model: Model, n_translated: int | None = None) -> Evaluation:
        """Evaluate the split; translate only the first `n_translated` examples if given."""
        model.eval()
        if self.scaling is not None:
            return self._forecasting(model)
        with torch.inference_mode():
            batches, outputs, right = self._run(model)
        loss = sum(summed for summed, _ in batches)
        scores = {"loss": loss / max(sum(n for _, n in batches), 1)}
        if isinstance(self.loader, HIDING):
            n = sum(n for _, n in batches)
            scores |= metrics.token_scores(loss, right, n)
            return Evaluation(scores, {}, tuple(batches))
        found = self._scored(model, scores, loss, outputs, n_translated)
        return replace(found, batches=tuple(batches))

    def _forecasting(self, model: Model) -> Evaluation:
        assert self.scaling is not None
        assert isinstance(self.encoded, ForecastWindows)
        errors, batches = forecast_errors(model, self.loader)
        scores = {"loss": errors.scores["mse"], **errors.scores}
        units = errors.in_units(self.labels, self.scaling)
        return Evaluation(scores, {}, tuple(batches), details=units, values=errors.of_windows())

    def _scored(
        self,
        model: Model,
        scores: dict[str, float],
        loss: float,
        outputs: dict[int, list[Any]],
        n_translated: int | None,
    ) -> Evaluation:
        if self.characters is not None:
            return Evaluation(scores | self._language(loss, scores["loss"], self.characters), {})
        match self.examples[0]:
            case Pair() | Captioned() | Transcribed():
                assert isinstance(model, EncoderDecoderModel)
                scores["perplexity"] = metrics.perplexity(scores["loss"])
                predictions = self._translations(model, n_translated)
                found = written_scores(predictions, self.examples, self.settings)
                return Evaluation(scores | found, predictions)
            case Labelled() | Image() | Clip() | LabelledSeries():
                return self._classification(scores, outputs)
            case MultiLabelled():
                return self._labelling(scores, outputs)
            case Scored() | ScoredSeries():
                return self._regression(scores, outputs)
            case Tagged():
                return self._tagging(scores, outputs)
            case Chat() | Text() | Series():  # of chats: others are counted elsewhere
                return Evaluation(scores | {"perplexity": metrics.perplexity(scores["loss"])}, {})

    def _run(self, model: Model) -> tuple[list[tuple[float, int]], dict[int, list[Any]], int]:
        """The summed loss and number of targets of each batch, and the predictions by example.

        A prediction is the best labels, whether each label is present, or a number. Last, how many
        hidden tokens have the highest probability, where tokens are hidden.
        """
        device = next(model.parameters()).device
        batches: list[tuple[float, int]] = []
        outputs: dict[int, list[Any]] = {}
        right = 0
        for batch in self.loader.batches():
            batch = batch.to(device)
            logits = model(**batch.inputs) if self.early is None else self._early(model, batch)
            batches.append(
                (labels_loss_sum(model.head, logits, batch.targets).item(), batch.n_tokens)
            )
            if self.labels:
                outputs.update(answers(model.head, logits, batch))
            if isinstance(self.loader, HIDING):
                right += int((logits.argmax(-1) == batch.targets).sum())
        return batches, dict(sorted(outputs.items())), right

    def _early(self, model: Model, batch: Batch) -> Tensor:
        assert self.early is not None
        assert not isinstance(model, EncoderDecoderModel)
        return self.early.logits(model, batch)

    def _language(self, total: float, loss: float, characters: Ids) -> dict[str, float]:
        if isinstance(self.loader, Buckets):
            n_characters = sum(self._n_characters(one, characters) for one in self.encoded)
        else:
            places = self.encoded.places if isinstance(self.encoded, Compact) else None
            n_characters = int((characters if places is None else characters[places]).sum())
        return {
            "perplexity": metrics.perplexity(loss),
            "bits_per_character": metrics.bits_per_character(total, n_characters),
        }

    def _n_characters(self, one: Encoded, characters: Ids) -> int:
        assert self.tokenizers is not None
        tokenizer = self.tokenizers.source
        shortened = one.targets[-1] != tokenizer.end_id
        return len(tokenizer.decode(one.targets)) if shortened else int(characters[one.index])

    def _translations(self, model: EncoderDecoderModel, n: int | None) -> dict[int, str]:
        assert self.tokenizers is not None
        chosen, decoding, target = self.encoded[:n], self.settings.decoding, self.tokenizers.target
        options: Any = {
            "eos_id": target.eos_ids,
            "text_decoder": TextDecoder(target),
            "batch_size": self.settings.batch_size,
        }
        if signals := [one.signal for one in chosen if one.signal is not None]:
            writer = Translation(model, target.bos_id, never=target.never_ids)
            medium = MEDIA[type(self.examples[0])]
            found = transcribe(Transcription(writer, signals, medium), decoding, **options)
        else:
            sources = [one.tokens for one in chosen]
            found = translate(model, sources, decoding, bos_id=target.bos_id, **options)
        return {one.index: best[0].text for one, best in zip(chosen, found, strict=True)}

    def _classification(
        self, scores: dict[str, float], outputs: dict[int, list[int]]
    ) -> Evaluation:
        predictions = {i: self.labels[best] for i, [best, *_] in outputs.items()}
        gold = {i: label for i in predictions for label in labels_of(self.examples[i])}
        both = list(predictions.values()), list(gold.values())
        scores |= {"accuracy": metrics.accuracy(*both), "f1": metrics.macro_f1(*both)}
        if len(self.labels) > FEW:
            near = [gold[i] in {self.labels[one] for one in some} for i, some in outputs.items()]
            scores["top_5"] = 100 * sum(near) / max(len(near), 1)
        right = {i: 100.0 * (gold[i] == label) for i, label in predictions.items()}
        return Evaluation(scores, predictions, gold=gold, values={"accuracy": right})

    def _labelling(self, scores: dict[str, float], outputs: dict[int, list[bool]]) -> Evaluation:
        found = {i: list(compress(self.labels, row)) for i, row in outputs.items()}
        gold = {i: labels_of(self.examples[i]) for i in found}
        scores |= metrics.label_scores(list(found.values()), list(gold.values()), self.labels)
        right = {i: 100.0 * ({*some} == {*gold[i]}) for i, some in found.items()}
        predictions = {i: ",".join(some) for i, some in found.items()}
        return Evaluation(scores, predictions, values={"exact": right})

    def _regression(self, scores: dict[str, float], outputs: dict[int, list[float]]) -> Evaluation:
        examples = (self.examples[i] for i in outputs)
        gold = [one.values for one in examples if isinstance(one, Scored | ScoredSeries)]
        numbers = list(outputs.values())
        scores |= metrics.number_scores(numbers, gold)
        errors = dict(zip(outputs, metrics.squared_errors(numbers, gold), strict=True))
        predictions = {i: numbers_line(row) for i, row in outputs.items()}
        return Evaluation(scores, predictions, values={"mse": errors})

    def _tagging(self, scores: dict[str, float], outputs: dict[int, list[int]]) -> Evaluation:
        gold = {i: labels_of(self.examples[i]) for i in outputs}
        tags = {
            i: filled([self.labels[label] for label in best], len(gold[i]))
            for i, best in outputs.items()
        }
        sides = list(tags.values()), list(gold.values())
        scores |= metrics.entity_scores(*sides)
        scores |= metrics.surface_scores(*sides, [words_of(self.examples[i]) for i in tags])
        scores["accuracy"] = metrics.accuracy(*([t for one in side for t in one] for side in sides))
        return Evaluation(scores, {i: " ".join(one) for i, one in tags.items()})


def evaluate_on(
    run: TrainedModel, data: Corpus | DataConfig | None = None, split: str | None = None
) -> dict[str, float]:
    """The scores for `Run.evaluate`: by default on the test split of the run's own data.

    Raises `InputError` if the data have no such split, or are for another task.
    """
    if split is not None:
        check_choice("split", split, get_args(Split))
    other = None if data is None else corpus_of(data)
    if other is not None and not (other.valid or other.test):
        other = replace(other, test=other.train, reports={})
    found = data_of(run, other)
    chosen = usual_split(found)
    return evaluated(run, chosen if split is None else cast(Split, split), found).scores


def usual_split(data: EncodedData) -> Split:
    """The split to evaluate on: test, or else valid. Raises `InputError` if there is neither."""
    splits = data.encoded.splits
    if not (splits["valid"] or splits["test"]):
        raise InputError("the data have no test and no validation split: name some to evaluate")
    return "test" if splits["test"] else "valid"


def evaluate_run(
    run: TrainedModel, split: Split, console: Console | None = None, corpus: Corpus | None = None
) -> dict[str, float]:
    """The scores of a run on a split of its data or of `corpus` (see `evaluation_of`)."""
    return evaluation_of(run, split, console, corpus).scores


def evaluation_of(
    run: TrainedModel,
    split: Split,
    console: Console | None = None,
    corpus: Corpus | None = None,
    early: EarlyExit | None = None,
) -> Evaluation:
    """The scores and predictions of a run on a split of its data or of `corpus`.

    The prediction of an example that was skipped as too long is empty; language models have no
    predictions. With `early`, examples leave at early exits. Skipped examples are reported on the
    `console`. Raises `InputError` if the data have no such split, or the model no exits.
    """
    return evaluated(run, split, data_of(run, corpus, console), console, early)


def data_of(
    run: TrainedModel, corpus: Corpus | None = None, console: Console | None = None
) -> EncodedData:
    """The encoded data of a run, or `corpus` encoded as they are."""
    check_read_alike(run, corpus)
    saved = Saved(run.recipe, run.text, run.labels)
    return read_data(run.recipe, saved, corpus or run.corpus, console, run.scaling)


def evaluated(
    run: TrainedModel,
    split: Split,
    data: EncodedData,
    console: Console | None = None,
    early: EarlyExit | None = None,
) -> Evaluation:
    """Evaluate a run on a split of encoded data (see `evaluation_of`)."""
    if early is not None:
        check_early(run)
    loaders = build_loaders(run.recipe.train.batching, data.encoded)
    evaluator = Evaluator.of(split, data, loaders, run.recipe.eval)
    if evaluator is None:
        other = "valid" if split == "test" else "test"
        there = f": use `split = {other}`" if data.encoded.splits[other] else ""
        raise InputError(f"the data have no {split} split: data.{split} is not given{there}")
    if console is not None:
        console.out(f"{split}: {loaders.reports[split]}", highlight=False)
    found = replace(evaluator, early=early).evaluate(run.model)
    predictions = found.predictions and {
        i: found.predictions.get(i, "") for i in range(len(evaluator.examples))
    }
    scores = {"examples": len(evaluator.encoded), **found.scores, **found.details}
    if isinstance(evaluator.encoded, ForecastWindows):
        scores |= naive_scores(evaluator.encoded, evaluator.loader)
    if early is not None:
        scores["mean_depth"] = early.mean_depth
    lines = lines_of(run.recipe, scores, lowercase=run.text is not None and run.text.lowercase)
    if early is not None:
        lines = {name: f"{line}; early exits" for name, line in lines.items()}
    return replace(found, scores=scores, predictions=predictions, measured_with=lines)


def check_early(run: TrainedModel) -> None:
    """Raise `InputError` unless the run's model has exits whose answers are classes or tokens."""
    check_exits_early(run.model)
    if run.task not in ("classification", "tagging", "language"):
        raise InputError(
            f"`exit`: early exit needs class or token probabilities: a {run.task} model has none"
        )


@dataclass(frozen=True)
class EvaluationData:
    """The data of a run, to measure models on a split and to train them further."""

    loaders: Loaders
    evaluator: Evaluator | None
    valid_examples: int

    @classmethod
    def of(cls, run: TrainedModel, split: Split) -> "EvaluationData":
        """Read the data of a run; there is no evaluator where they lack the split."""
        recipe, data = run.recipe, data_of(run)
        loaders = build_loaders(recipe.train.batching, data.encoded, recipe.train.seed)
        evaluator = Evaluator.of(split, data, loaders, recipe.eval)
        return cls(loaders, evaluator, recipe.eval.valid_examples)

    @classmethod
    def if_any(
        cls, run: TrainedModel, split: Split, *, needed: bool
    ) -> tuple["EvaluationData | None", str | None]:
        """The data of a run, and why a model cannot be scored on them, if it cannot.

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
        """The scores on the split, as in validation."""
        assert self.evaluator is not None
        return self.evaluator.evaluate(model, self.valid_examples).scores
