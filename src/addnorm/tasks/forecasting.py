"""Forecasting: the next steps of a series, scored on scaled data and in units."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.data import Corpus
from addnorm.data.batches.batch import Loader
from addnorm.data.examples import Series
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.ids.forecast_windows import ForecastWindows, encode_series, naive_forecasts
from addnorm.data.ids.layout import SeriesWindows
from addnorm.data.scaling import Scaling
from addnorm.data.tokenizing.pieces import Advance
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.models import EncoderConfig, Model, ModelConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.patches import SeriesEmbeddingConfig
from addnorm.tasks.task import Evaluation, EvaluationSplit, Task


@dataclass(frozen=True)
class Forecasting(Task):
    """The next steps after a window, by the least squared error on scaled data."""

    name = "forecasting"
    model = "model.kind = 'encoder' with model.head.kind = 'forecast'"
    metrics = ("mse", "mae", "loss")
    call = "run.forecast(history)"
    page = "forecast"
    target_unit = "values"
    examples = (Series,)
    layout = SeriesWindows()
    labels = True
    predicts_lines = False

    look_back: int = 0
    """The steps that a model reads."""
    horizon: int = 0
    """The steps that it forecasts at once."""
    scaling: Scaling | None = None
    """The scaling of the series that it learnt from; by default that of the data."""

    def for_model(self, model: ModelConfig) -> Task:
        """The look-back and the horizon of a model."""
        look_back, horizon = window_of(model)
        return replace(self, look_back=look_back, horizon=horizon)

    def check_data(self, model: ModelConfig, corpus: Corpus, labels: Sequence[str]) -> None:
        """Raise `InputError` if a model is for other variables, or another number of them."""
        names = corpus.labels
        if tuple(labels) != names:
            raise InputError(
                f"the run forecasts {', '.join(labels)}, and the data have {', '.join(names)}: "
                "name the same columns in data.columns"
            )
        channels = getattr(getattr(model, "input", None), "channels", None)
        if channels != len(names):
            raise InputError(
                f"the data have {len(names)} variables, {', '.join(names)}: give "
                f"model.input.channels = {len(names)}, not {channels}"
            )

    def encode_corpus(
        self,
        corpus: Corpus,
        tokenizers: Tokenizers | None,
        numbers: Mapping[str, int],
        advance: Advance,
    ) -> EncodedCorpus:
        """The windows of each part of the series."""
        return encode_series(corpus, self.look_back, self.horizon, self.scaling)

    def evaluate(self, model: Model, split: EvaluationSplit, n_written: int | None) -> Evaluation:
        """The errors over all windows, and as details those of each variable in its units."""
        assert split.scaling is not None
        errors, batches = forecast_errors(model, split.loader)
        scores = {"loss": errors.scores["mse"], **errors.scores}
        units = errors.in_units(split.labels, split.scaling)
        values = errors.of_windows()
        return Evaluation(scores, batches=tuple(batches), details=units, values=values)


def window_of(model: ModelConfig) -> tuple[int, int]:
    """The look-back and the horizon of a forecaster's configuration."""
    assert isinstance(model, EncoderConfig)
    assert isinstance(model.input, SeriesEmbeddingConfig)
    assert isinstance(model.head, ForecastHeadConfig)
    assert model.input.look_back is not None
    return model.input.look_back, model.head.horizon


@dataclass
class ForecastErrors:
    """Squared and absolute errors on scaled data, summed in float64 for each variable."""

    squared: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    absolute: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    count: int = 0
    windows: list[Float[Tensor, "windows 2"]] = field(default_factory=list[Tensor])
    """The mean squared and the mean absolute error of each window, by batch."""

    def add(
        self,
        forecasts: Float[Tensor, "batch variables horizon"],
        truth: Float[Tensor, "batch variables horizon"],
    ) -> float:
        """Add the errors of a batch; return the sum of its squared errors."""
        wrong = (forecasts.double() - truth.double()).cpu()
        squared = wrong.square().sum((0, 2))
        self.windows.append(torch.stack([wrong.square().mean((1, 2)), wrong.abs().mean((1, 2))], 1))
        self.squared = self.squared + squared
        self.absolute = self.absolute + wrong.abs().sum((0, 2))
        self.count += wrong.shape[0] * wrong.shape[2]
        return float(squared.sum())

    @property
    def scores(self) -> dict[str, float]:
        """The mean squared and the mean absolute error over all variables, on scaled data."""
        return {
            "mse": float(self.squared.mean()) / self.count,
            "mae": float(self.absolute.mean()) / self.count,
        }

    def of_windows(self) -> dict[str, dict[int, float]]:
        """Return both errors of each window, in the order in which they were added."""
        errors = torch.cat(self.windows).T.tolist() if self.windows else ([], [])
        return {
            name: dict(enumerate(row)) for name, row in zip(("mse", "mae"), errors, strict=True)
        }

    def in_units(self, names: Sequence[str], scaling: Scaling) -> dict[str, float]:
        """Return both errors of each variable in its units; squared errors in squared units."""
        errors: dict[str, float] = {}
        for i, (name, deviation) in enumerate(zip(names, scaling.deviation, strict=True)):
            errors[f"mse of {name}"] = float(self.squared[i]) / self.count * deviation**2
            errors[f"mae of {name}"] = float(self.absolute[i]) / self.count * deviation
        return errors


def forecast_errors(
    model: nn.Module, loader: Loader[int]
) -> tuple[ForecastErrors, list[tuple[float, int]]]:
    """Return a model's errors on all windows, and the error sum and number of each batch."""
    device = next(model.parameters()).device
    errors, batches = ForecastErrors(), list[tuple[float, int]]()
    with torch.inference_mode():
        for batch in loader.batches():
            forecasts = model(**batch.to(device).inputs).cpu()
            batches.append((errors.add(forecasts, batch.targets), batch.n_tokens))
    return errors, batches


def naive_scores(windows: ForecastWindows, loader: Loader[int]) -> dict[str, float]:
    """Return the errors of repeating the last value or the last season, on scaled data."""
    errors: dict[str, ForecastErrors] = {}
    for batch in loader.batches():
        naive = naive_forecasts(batch.inputs["inputs"], windows.horizon, windows.season)
        for name, forecasts in naive.items():
            errors.setdefault(name, ForecastErrors()).add(forecasts, batch.targets)
    return {
        f"{metric} of {name.replace('_', ' ')}": value
        for name, naive_errors in errors.items()
        for metric, value in naive_errors.scores.items()
    }
