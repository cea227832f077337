"""Mixers against torch's recurrent and convolutional layers, text by text."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from addnorm.checking.definition.mixers import MIXERS, convolution, latent, recurrent
from addnorm.checking.definition.texts import MixerContext, Texts
from addnorm.nn.attention import LatentAttentionConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.recurrent import RecurrentConfig

LENGTHS = [4, 1, 2]


def place(*lengths: int, causal: bool) -> MixerContext:
    return MixerContext(texts=Texts.of(lengths), causal=causal, position=None)


OUT = {"out_proj.weight": torch.eye(6).double()}


@pytest.mark.parametrize(("cell", "torchs"), [("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)])
@pytest.mark.parametrize("causal", [True, False])
def test_recurrent(cell: Any, torchs: type[nn.RNNBase], causal: bool) -> None:
    layer = torchs(5, 6 if causal else 3, bidirectional=not causal, batch_first=True).double()
    directions = {"": "ahead.", "_reverse": "back."}
    weights = OUT | {
        directions["_reverse" if name.endswith("_reverse") else ""]
        + name.removesuffix("_reverse"): weight.detach()
        for name, weight in layer.named_parameters()
    }
    x = torch.randn(sum(LENGTHS), 5).double()
    ours = recurrent(RecurrentConfig(cell=cell), weights, x, place(*LENGTHS, causal=causal))
    texts = torch.cat([layer(text[None])[0][0] for text in x.split(LENGTHS)])
    torch.testing.assert_close(ours, texts.detach())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_convolution(size: int, causal: bool) -> None:
    weights = OUT | {
        "conv.0.weight": torch.randn(6, 5, size).double(),
        "conv.0.bias": torch.randn(6).double(),
    }
    left = size - 1 if causal else size // 2
    x = torch.randn(sum(LENGTHS), 5).double()
    config = ConvolutionConfig(kernel_size=size)
    ours = convolution(config, weights, x, place(*LENGTHS, causal=causal))
    texts = [
        F.conv1d(
            F.pad(text.T, (left, size - 1 - left)), weights["conv.0.weight"], weights["conv.0.bias"]
        ).T
        for text in x.split(LENGTHS)
    ]
    torch.testing.assert_close(ours, torch.cat(texts).relu())


def test_several_kernels_side_by_side() -> None:
    weights = {"out_proj.weight": torch.eye(4).double()} | {
        f"conv.{i}.weight": torch.randn(2, 3, size).double() for i, size in enumerate((1, 2))
    }
    x = torch.randn(3, 3).double()
    config = ConvolutionConfig(kernel_size=(1, 2))
    both = convolution(config, weights, x, place(3, causal=True))
    first = (x @ weights["conv.0.weight"][:, :, 0].T).relu()
    torch.testing.assert_close(both[:, :2], first)
    assert both.shape == (3, 4)


def test_every_mixer_has_its_definition() -> None:
    assert MIXERS.of(RecurrentConfig()) is recurrent
    assert MIXERS.of(ConvolutionConfig()) is convolution


def test_latent_attention_of_two_tokens() -> None:
    """Latents of one feature are ±1 by their norm; the shared key is the input itself.

    The second query is 2 · −3 in both features, and the keys are (1, 1) and (−1, −3).
    """
    config = LatentAttentionConfig(n_heads=1, rank=1, d_content=1, d_position=1, d_value=1)
    ones = torch.ones(1, 1).double()
    weights = {
        "q_up_proj.weight": 2 * torch.ones(2, 1).double(),
        "kv_down_proj.weight": torch.ones(2, 1).double(),
        "kv_norm.weight": torch.ones(1).double(),
        "k_up_proj.weight": ones,
        "v_up_proj.weight": 5 * ones,
        "out_proj.weight": ones,
    }
    context = MixerContext(texts=Texts.of([2]), causal=True, position=NoPositionConfig())
    x = torch.tensor([[1.0], [-3.0]]).double()
    first, second = (math.exp(-6 * (c + k) / math.sqrt(2)) for c, k in ((1, 1), (-1, -3)))
    expected = [5.0, 5 * (first - second) / (first + second)]
    assert latent(config, weights, x, context).flatten().tolist() == pytest.approx(expected, 1e-5)
