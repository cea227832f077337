"""Loss curves of three models with and without our operators, and with other seeds.

    python benchmarks/operators.py TEXT

TEXT is a file of a megabyte or so, such as Shakespeare's plays. A decoder of characters in float32
and a larger one in bfloat16 learn it; a translator learns to turn sequences around. Prints how far
the curves are apart, and writes them to benchmarks/results/operators.json. With operators, the
first model also pauses and resumes, and must end equal to the bit.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch
from timing import write_results
from torch import Tensor, nn

from addnorm.bench.ours import Repeated, decoder_config, translator_config
from addnorm.bench.training import (
    CHARACTERS,
    DECODER,
    TINY,
    DecoderSizes,
    TrainingPrecision,
    TranslatorSizes,
)
from addnorm.data.batches.batch import Batch
from addnorm.nn.choices import KernelChoices, choices, use_choices
from addnorm.training.callbacks import StepEvent
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer
from addnorm.tuning.calibration import EVERY_OPERATOR, OPERATORS, load_operators

SEEDS = (0, 1, 2, 3)
LAST = 10
"""The number of last steps whose mean loss is compared."""


def of_text(text: str, sizes: DecoderSizes, steps: int) -> list[Batch]:
    """Draw batches of a text's characters."""
    places = {sign: i for i, sign in enumerate(sorted({*text}))}
    ids = torch.tensor([places[sign] for sign in text])
    starts = torch.randint(len(ids) - sizes.length, (steps, sizes.batch, 1))
    rows = ids[starts + torch.arange(sizes.length + 1)]
    return [Batch.of({"tokens": r[:, :-1]}, r[:, 1:].contiguous(), []) for r in rows]


def turned_around(sizes: TranslatorSizes, steps: int) -> list[Batch]:
    """Draw batches of random sequences whose translation is the sequence from its end."""

    def batch() -> Batch:
        source = torch.randint(4, sizes.vocab_size, (sizes.batch, sizes.length))
        target = torch.cat([torch.full((sizes.batch, 1), 2), source.flip(1)], dim=1)
        return Batch.of(
            {"source": source, "target": target[:, :-1]}, target[:, 1:].contiguous(), []
        )

    return [batch() for _ in range(steps)]


class Losses:
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.seen = list[float]()

    def on_step(self, event: StepEvent, /) -> None:
        self.seen.append(event.loss)


class Recipe:
    """A model, its batches, and how it is trained."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        batches: Callable[[], list[Batch]],
        precision: TrainingPrecision = "float32",
    ) -> None:
        self.build = build
        self.batches = batches
        self.precision: TrainingPrecision = precision

    def trainer(self, seed: int, folder: Path, losses: Losses) -> Trainer:
        """Return a trainer, the same for a seed."""
        torch.manual_seed(seed)
        model, batches = self.build(), self.batches()
        config = TrainConfig(steps=len(batches), precision=self.precision, device="cpu")
        return Trainer(model, Repeated(batches), config, folder, callbacks=[losses])

    def curve(self, seed: int) -> list[float]:
        """Return the loss of every step."""
        losses = Losses()
        with tempfile.TemporaryDirectory() as folder:
            self.trainer(seed, Path(folder), losses).fit()
        return losses.seen

    def resumes_exactly(self, pause: int) -> bool:
        """Whether weights are equal to the bit with and without a pause."""
        ends = list[dict[str, Tensor]]()
        for pauses in ([], [pause]):
            with tempfile.TemporaryDirectory() as folder:
                for until in pauses:
                    self.trainer(0, Path(folder), Losses()).fit(until)
                trainer = self.trainer(0, Path(folder), Losses())
                if pauses:
                    trainer.resume()
                trainer.fit()
                ends.append(trainer.model.state_dict())
        return all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def compared(recipe: Recipe, sides: Mapping[str, KernelChoices]) -> dict[str, object]:
    """Return the last losses of both sides and seeds, and how far the curves are apart."""
    curves = dict[tuple[str, int], list[float]]()
    for name, chosen in sides.items():
        with use_choices(chosen):
            curves |= {(name, seed): recipe.curve(seed) for seed in SEEDS}
    ends = {key: mean(curve[-LAST:]) for key, curve in curves.items()}
    of_torch = [ends["torch", seed] for seed in SEEDS]
    return {
        "steps": len(curves["torch", SEEDS[0]]),
        "first_loss": round(curves["torch", SEEDS[0]][0], 4),
        "last_losses": {name: [round(ends[name, s], 5) for s in SEEDS] for name in sides},
        "apart_by_operators": round(
            max(abs(ends["torch", s] - ends["operators", s]) for s in SEEDS), 6
        ),
        "apart_by_seed": round(max(of_torch) - min(of_torch), 6),
    }


def main(file: str) -> None:
    """Train everything and keep the figures."""
    text = Path(file).read_text("utf-8")
    small = replace(CHARACTERS, vocab_size=80, batch=6, length=128)
    large = replace(DECODER, vocab_size=80, batch=2, n_layers=2)
    pairs = replace(TINY, vocab_size=50, batch=32, n_layers=2)
    recipes = {
        "characters 4 × 128, float32": Recipe(
            lambda: decoder_config(small).build(small.vocab_size), lambda: of_text(text, small, 100)
        ),
        "decoder 2 × 384, bfloat16": Recipe(
            lambda: decoder_config(large).build(large.vocab_size),
            lambda: of_text(text, large, 50),
            "bfloat16",
        ),
        "translator 2 + 2 × 128, float32": Recipe(
            lambda: translator_config(pairs).build(pairs.vocab_size),
            lambda: turned_around(pairs, 50),
        ),
    }
    load_operators(EVERY_OPERATOR)
    own = choices()
    names = dict.fromkeys(OPERATORS)
    sides = {
        "torch": replace(own, **dict.fromkeys(names, "torch")),
        "operators": replace(own, **dict.fromkeys(names, "operator")),
    }
    figures: dict[str, object] = {n: compared(recipe, sides) for n, recipe in recipes.items()}
    with use_choices(sides["operators"]):
        characters = next(iter(recipes.values()))
        figures["resumed_with_operators_equal_to_the_bit"] = characters.resumes_exactly(50)
    write_results("operators", figures)


if __name__ == "__main__":
    main(sys.argv[1])
