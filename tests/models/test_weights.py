"""The weights of a model: each once, running statistics included."""

import torch
from tests.training import tiny
from tests.training.test_average import with_statistics
from torch import nn

from addnorm.models.weights import copy_into, n_bytes, weights_of
from addnorm.nn.norms import BatchNorm


def test_the_bytes_of_tensors() -> None:
    assert n_bytes([torch.zeros(3), torch.zeros(2, dtype=torch.int64)]) == 28


def test_tied_weights_are_there_once_and_stay_tied() -> None:
    model, other = tiny.build(), tiny.build(seed=1)
    assert model.head.weight is model.source_embed.tokens.weight
    tables = [name for name, w in weights_of(model).items() if w.shape == (tiny.VOCAB, 16)]
    assert len(tables) == 1
    copy_into(model, weights_of(other))
    assert model.head.weight is model.source_embed.tokens.weight
    tiny.same(model.state_dict(), other.state_dict())


def test_running_statistics_are_weights() -> None:
    model = with_statistics()
    names = [*dict(model.named_parameters()), "1.running_mean", "1.running_var"]
    assert list(weights_of(model)) == names
    assert model[1].running_mean.abs().max() > 0
    other = with_statistics()
    copy_into(other, weights_of(model))
    tiny.same(weights_of(other), weights_of(model))
    inputs = torch.randn(2, 4, 3)
    assert torch.equal(other.eval()(inputs), model.eval()(inputs))


def test_a_tied_buffer_is_there_once() -> None:
    norm = BatchNorm(3)
    model = nn.ModuleList([norm, norm])
    assert list(weights_of(model)) == ["0.weight", "0.bias", "0.running_mean", "0.running_var"]
