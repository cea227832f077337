"""FLOP of a forward pass, by hand; the same for every kernel, and the model is left as it is."""

import pytest
import torch

from addnorm.data.batches.batch import Batch
from addnorm.inspect.flops import forward_flops
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.hyper_connections import HyperConnectionsConfig
from addnorm.nn.residuals import PreNormConfig


def batch_of(**inputs: torch.Tensor) -> Batch:
    return Batch.of(inputs, torch.zeros(3, 16, dtype=torch.long), [])


@pytest.mark.parametrize("product", ["torch", "onednn"])
def test_flops_of_a_decoder_equal_a_count_by_hand(product) -> None:
    model = DecoderConfig(d_model=64, n_layers=2).build(100).train()
    with use_choices(KernelChoices(product=product)):
        flops = forward_flops(model, batch_of(tokens=torch.randint(0, 100, (3, 16))))
    layer = 2 * (4 * 64 * 64 + 2 * 64 * 256) + 4 * 16 * 64
    assert flops == 3 * 16 * (2 * layer + 2 * 64 * 100)
    assert model.training


def test_an_encoder_decoder_reads_its_source_once() -> None:
    model = EncoderDecoderConfig(d_model=32, n_layers=1).build(50, 50)
    source, target = torch.randint(4, 50, (3, 8)), torch.randint(4, 50, (3, 16))
    flops = forward_flops(model, batch_of(source=source, target=target))
    ff, own = 2 * 2 * 32 * 128, 2 * 4 * 32 * 32
    encoder = 8 * (own + ff + 4 * 8 * 32)
    cross = 16 * (2 * 2 * 32 * 32 + 4 * 8 * 32) + 8 * (2 * 2 * 32 * 32)
    decoder = 16 * (own + ff + 4 * 16 * 32) + cross
    assert flops == 3 * (encoder + decoder + 16 * 2 * 32 * 50)


def test_streams_whose_weights_are_those_of_every_token_are_counted() -> None:
    """A module returns its parameters there."""
    plain = DecoderConfig(d_model=16, n_layers=2, residual=PreNormConfig()).build(50)
    static = HyperConnectionsConfig(streams=2, dynamic=False)
    model = DecoderConfig(d_model=16, n_layers=2, residual=static).build(50)
    model.head.requires_grad_(False)
    learned = [p.requires_grad for p in model.parameters()]
    batch = batch_of(tokens=torch.randint(0, 50, (3, 16)))
    assert forward_flops(model, batch) == forward_flops(plain, batch)
    assert [p.requires_grad for p in model.parameters()] == learned
