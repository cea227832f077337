"""Activation checkpointing: the same to the bit, in less memory, and gone afterwards."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import tiny
from tests.train.tiny import everything, journal, same
from torch import nn

from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import BatchNormConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig
from addnorm.train.activation_checkpointing import checkpointed_activations

pytestmark = pytest.mark.usefixtures("types_unchecked")

PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre": {"residual": PreNormConfig(), "feedforward": GatedFeedForwardConfig(d_ff=24)},
    "parallel": {"residual": ParallelConfig()},
    "experts": {
        "feedforward": MixtureOfExpertsConfig(
            n_experts=3, expert=GatedFeedForwardConfig(d_ff=8), balance=0.5
        )
    },
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("model", ["translator", "decoder"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_trains_the_same_to_the_bit(
    model: str, precision: str, parts: dict[str, Any], tmp_path: Path
) -> None:
    """With dropout, whose random numbers are drawn again; accumulation and a balance loss."""
    trainers = []
    for kind in ("none", "block"):
        trainer = tiny.trainer(
            tmp_path / kind,
            model,  # pyright: ignore[reportArgumentType]
            parts=parts,
            steps=5,
            accumulate=2,
            precision=precision,
            activation_checkpointing=kind,
        )
        trainer.fit()
        trainers.append(trainer)
    plain, checkpointed = trainers
    same(everything(plain), everything(checkpointed))
    assert journal(plain.folder) == journal(checkpointed.folder)
    assert not any("forward" in vars(module) for module in checkpointed.model.modules())


def test_less_is_kept_for_the_backward_pass() -> None:
    config = DecoderConfig(d_model=32, n_layers=6, attention=AttentionConfig(n_heads=4))
    model, tokens = config.build(20), torch.randint(20, (2, 40))
    sizes = {}
    for kind in ("none", "block"):
        held: dict[int, int] = {}

        def pack(tensor: torch.Tensor, held: dict[int, int] = held) -> torch.Tensor:
            held[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with (
            checkpointed_activations(model, kind),  # pyright: ignore[reportArgumentType]
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        ):
            x, _ = model.hidden(tokens)
            sizes[kind] = sum(held.values())
            x.sum().backward()
    assert sizes["block"] < 0.4 * sizes["none"]


def test_a_model_is_left_as_it_was_even_by_an_error() -> None:
    config = DecoderConfig(d_model=16, n_layers=2, attention=AttentionConfig(n_heads=2))
    model = config.build(9)
    with suppress(KeyError), checkpointed_activations(model, "block"):
        assert "forward" in vars(model.stack.blocks[0])
        raise KeyError
    assert not any("forward" in vars(module) for module in model.modules())


def test_without_gradients_a_block_is_just_run() -> None:
    config = DecoderConfig(d_model=16, n_layers=2, attention=AttentionConfig(n_heads=2))
    model, tokens = config.build(9).eval(), torch.arange(6)[None]
    with torch.inference_mode():
        want = model(tokens)
        with checkpointed_activations(model, "block"):
            assert torch.equal(model(tokens), want)


def test_batch_norm_would_count_twice(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path, parts={"norm": BatchNormConfig()}, activation_checkpointing="block"
    )
    with pytest.raises(InputError, match="would count every batch twice"):
        trainer.fit()
    assert not any("forward" in vars(module) for module in trainer.model.modules())
    assert isinstance(trainer.model, nn.Module)


def test_a_mistake_names_the_nearest() -> None:
    from addnorm.train.settings import TrainConfig

    with pytest.raises(InputError, match="compile decides itself what is computed again"):
        TrainConfig(steps=1, activation_checkpointing="block", compile=True)
    with pytest.raises(InputError, match="Did you mean 'block'"):
        TrainConfig(steps=1, activation_checkpointing="blocks")  # pyright: ignore[reportArgumentType]
