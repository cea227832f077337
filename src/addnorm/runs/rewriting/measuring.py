"""Measuring a model and its rewritten ones: their scores, and how fast they write."""

from collections.abc import Callable, Collection, Mapping
from statistics import median
from time import perf_counter

import torch
from rich.console import Console

from addnorm.data.example import has_signals
from addnorm.generate import GreedyConfig, generate, translate
from addnorm.long_work import long_work
from addnorm.models import DecoderModel, EncoderDecoderModel, Model
from addnorm.runs.evaluation import EvaluationData
from addnorm.runs.options import Split
from addnorm.runs.trained_model import TrainedModel

SILENT = Console(quiet=True)


def data_to_measure(
    run: TrainedModel, split: Split, given: Collection[str], *, needed: bool
) -> tuple[EvaluationData | None, str | None]:
    """The data of a run, or the reason why models cannot be scored on them.

    Raises `InputError` if data cannot be read that are `needed`, or that a field of the recipe
    among those `given` names.
    """
    named = any(name.startswith("data.") for name in given)
    return EvaluationData.if_any(run, split, needed=needed or named)


def measured(
    data: EvaluationData | None, models: Mapping[str, Model], console: Console
) -> dict[str, Mapping[str, float]]:
    """Return the scores of each model, printing each at once; empty without data."""
    if data is None or data.evaluator is None:
        return {}
    figures: dict[str, Mapping[str, float]] = {}
    for name, model in models.items():
        with long_work(console, f"measuring: {name}"):
            figures[name] = data.scores(model)
        line = " · ".join(f"{key} {value:.4g}" for key, value in figures[name].items())
        console.out(f"{name}: {line}", highlight=False)
    return figures


TEXTS = (1, 16)
"""The numbers of texts in a batch."""
LENGTH = 32
"""How many tokens are written, or read by an encoder."""

ROUNDS = 5


def writing_speeds(run: TrainedModel, models: Mapping[str, Model]) -> dict[str, dict[int, float]]:
    """Return tokens per second of each model by batch size: medians over alternating rounds.

    Language models continue one token greedily, translators translate a source of random tokens,
    encoders read texts of random tokens. A model that reads no text has no speed here.
    """
    speeds: dict[str, dict[int, float]] = {name: {} for name in models}
    if run.text is None or has_signals(run.medium):
        return speeds
    for n in TEXTS:
        work = {name: _work(run, model, n) for name, model in models.items()}
        for do in work.values():
            do()
        times: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(ROUNDS):
            for name, do in work.items():
                start = perf_counter()
                do()
                times[name].append(perf_counter() - start)
        for name, seconds in times.items():
            speeds[name][n] = n * _length(run) / median(seconds)
    return speeds


def _length(run: TrainedModel) -> int:
    """The number of tokens to write or read, at most the model's positions."""
    return max(min(LENGTH, run.recipe.model.max_len - 2), 1)


def _work(run: TrainedModel, model: Model, n: int) -> Callable[[], object]:
    length = _length(run)
    assert run.text is not None
    size = run.text.source.vocab_size
    ids = torch.randint(size, (n, length), generator=torch.Generator().manual_seed(0))
    match model:
        case DecoderModel():
            begun = ids[:, :1].tolist()
            return lambda: generate(
                model, begun, GreedyConfig(), max_new_tokens=length, eos_id=None
            )
        case EncoderDecoderModel():
            return lambda: translate(
                model, ids.tolist(), GreedyConfig(), max_new_tokens=length, eos_id=None
            )
        case _:
            ids = ids.to(run.device)
            return lambda: _forward(model, ids)


@torch.inference_mode()
def _forward(model: Model, x: torch.Tensor) -> object:
    return model(x)  # pyright: ignore[reportArgumentType]
