"""How fast models write, side by side: tokens a second for one text and for sixteen at once."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

import torch

from addnorm.generate import GreedyConfig, generate, translate
from addnorm.models import DecoderModel, EncoderDecoderModel, Model
from addnorm.runs.trained_model import TrainedModel

TEXTS = (1, 16)
"""How many texts at once."""
LENGTH = 32
"""How many tokens are written, or read by an encoder."""
ROUNDS = 5


def writing_speeds(run: TrainedModel, models: Mapping[str, Model]) -> dict[str, dict[int, float]]:
    """Tokens a second of each model by the number of texts at once; medians of rounds in turn.

    Language models continue one token greedily, translators translate a source of random tokens,
    encoders read texts of random tokens. What reads no text has no speed here.
    """
    found: dict[str, dict[int, float]] = {name: {} for name in models}
    if run.text is None or run.medium in ("images", "audio", "series"):
        return found
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
            found[name][n] = n * _length(run) / median(seconds)
    return found


def _length(run: TrainedModel) -> int:
    """The tokens that are written or read; no more than the model has positions."""
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
