"""Audio embeddings: plain loops in float64, half the frames, and clips of unequal length."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import check_config, check_gradients, check_module
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models.inputs import InputConfig
from addnorm.nn.audio import LogMelEmbedding, LogMelEmbeddingConfig
from addnorm.nn.positions import NoPosition, Sinusoidal, sinusoidal_encoding

CONFIG = LogMelEmbeddingConfig(n_mels=3)
VALID = torch.arange(7) < torch.tensor([[7], [4]])


def build(d_model: int = 4) -> LogMelEmbedding:
    return CONFIG.build(d_model, NoPosition(), 0.0)


@pytest.mark.parametrize("valid", [None, VALID], ids=["whole", "padded"])
def test_contract(valid: Tensor | None) -> None:
    check_config(CONFIG, InputConfig)
    frames = torch.randn(2, 3, 7)
    check_module(build, lambda m, _: m(frames, valid)[0])


@pytest.mark.parametrize("valid", [None, VALID], ids=["whole", "padded"])
def test_gradients(valid: Tensor | None) -> None:
    frames = torch.randn(2, 3, 7)
    check_gradients(build(), lambda m, x: m(x, valid)[0], frames, twice=True)


def convolved(x: list[list[float]], conv: torch.nn.Conv1d, stride: int) -> list[list[float]]:
    """Width 3, a zero before and after, GELU as `x Φ(x)` (Hendrycks & Gimpel 2016), by loops."""
    weight, bias = conv.weight.tolist(), conv.bias.tolist()
    out = []
    for o in range(len(weight)):
        row = []
        for t in range(0, len(x[0]), stride):
            total = bias[o]
            for c in range(len(x)):
                for k in range(3):
                    if 0 <= t + k - 1 < len(x[0]):
                        total += weight[o][c][k] * x[c][t + k - 1]
            row.append(total * 0.5 * (1 + math.erf(total / math.sqrt(2))))
        out.append(row)
    return out


def test_equals_plain_loops() -> None:
    module, frames = build().double(), torch.randn(1, 3, 7).double()
    first = convolved(frames[0].tolist(), module.conv1, 1)
    second = convolved(first, module.conv2, 2)
    got, ctx = module(frames)
    assert_close(got[0].T, torch.tensor(second, dtype=torch.float64), rtol=0, atol=1e-12)
    assert ctx.valid is None
    assert ctx.positions.tolist() == [[0, 1, 2, 3]]


def test_the_models_positions_are_added() -> None:
    module, frames = CONFIG.build(4, Sinusoidal(), 0.0), torch.randn(2, 3, 6)
    x = F.gelu(module.conv2(F.gelu(module.conv1(frames)))).transpose(1, 2)
    assert_close(module(frames)[0], x + sinusoidal_encoding(torch.arange(3), 4))


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    garbage=st.sampled_from([0.0, math.nan, math.inf, 1e30]),
)
def test_a_clip_is_embedded_as_if_alone(lengths: list[int], garbage: float) -> None:
    module = build().double()
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    frames = torch.where(valid[:, None], torch.randn(len(lengths), 3, max(lengths)), garbage)
    x, ctx = module(frames.double(), valid)
    assert ctx.valid is not None
    assert torch.equal(ctx.valid, module.valid_positions(valid))
    assert ctx.valid.sum(-1).tolist() == [(n + 1) // 2 for n in lengths]
    assert (x[~ctx.valid] == 0).all()
    for i, n in enumerate(lengths):
        if n:
            alone, _ = module(frames[i : i + 1, :, :n].double())
            assert_close(x[i, ctx.valid[i]], alone[0], rtol=0, atol=1e-12)
    x.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_impossible_frames() -> None:
    with pytest.raises(InputError, match=r"\(batch, 3, time\), got torch.float32 of shape"):
        build()(torch.randn(1, 80, 5))
    with pytest.raises(InputError, match="on the right"):
        build()(torch.randn(1, 3, 2), torch.tensor([[False, True]]))
