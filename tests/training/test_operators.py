"""A run by our operators pauses and resumes, and recomputes activations, equal to the bit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from addnorm.bench.ours import Repeated, translator_config
from addnorm.bench.training import TranslatorSizes
from addnorm.compiler import has_compiler
from addnorm.data.batches.batch import Batch
from addnorm.nn import add_norm
from addnorm.nn.choices import use_choices
from addnorm.training.activation_checkpointing import Checkpointed
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer
from addnorm.tuning.calibration import EVERY_OPERATOR, load_operators

SIZES = TranslatorSizes(
    n_layers=1, d_model=64, n_heads=2, d_ff=64, vocab_size=99, batch=8, length=32, dropout=0.1
)


def trained(
    folder: Path, pause: int | None = None, checkpointing: Checkpointed = "none"
) -> list[Tensor]:
    """The weights after four steps, with a pause for a new model after some of them."""
    batches = [Batch.of({"source": x, "target": y}, z, []) for x, y, z in SIZES.batches()[:4]]
    config = TrainConfig(steps=4, device="cpu", activation_checkpointing=checkpointing)
    for seed, until in ((1, pause), (2, None)):
        torch.manual_seed(seed)
        model = translator_config(SIZES).build(SIZES.vocab_size)
        trainer = Trainer(model, Repeated(batches), config, folder)
        trainer.resume()
        trainer.fit(until)
        if until is None:
            break
    return [p.detach() for p in model.parameters()]


@pytest.mark.long
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_a_run_with_dropout_resumes_to_the_bit(tmp_path: Path) -> None:
    load_operators(EVERY_OPERATOR)
    assert SIZES.tokens * SIZES.d_model >= add_norm.MANY
    with use_choices(EVERY_OPERATOR):
        whole = trained(tmp_path / "whole")
        paused = trained(tmp_path / "paused", pause=2)
        again = trained(tmp_path / "again", checkpointing="block")
    for a, b, c in zip(whole, paused, again, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
