"""Kernel selection: every kernel gives the numbers of the definition."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from addnorm.nn.attention import kernels
from addnorm.nn.attention.kernels import dot_product_attention
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.masks import Causal, Dense, Full


def definition(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, scale: float) -> Tensor:
    """Vaswani et al. 2017, eq. 1, in float64; a query that sees nothing gives zeros."""
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = scale * q.double() @ k.mT
    if allowed is None:
        return scores.softmax(-1) @ v
    weights = scores.masked_fill(~allowed, -math.inf).softmax(-1).nan_to_num(0.0)
    return weights @ v


@pytest.mark.parametrize("n_q", [1, 8, 9, 30])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("mask", ["full", "causal", "dense"])
def test_every_number_of_queries_has_the_scale_and_the_mask(
    n_q: int, scale: float | None, mask: str
) -> None:
    """On both sides of `few_queries`, where another kernel takes over."""
    q, k, v = torch.randn(2, 4, n_q, 6), torch.randn(2, 2, 30, 6), torch.randn(2, 2, 30, 7)
    if mask == "causal":
        k, v = k[:, :, :n_q], v[:, :, :n_q]
    allowed = torch.rand(2, 1, n_q, 30) > 0.3
    allowed[0, 0, 0] = False
    form: Any = {"full": Full(), "causal": Causal(), "dense": Dense(allowed)}[mask]
    seen = {"full": None, "causal": torch.ones(n_q, n_q).tril().bool(), "dense": allowed}[mask]
    got = dot_product_attention(q, k, v, form, scale=scale)
    expected = definition(q, k, v, seen, scale or 6**-0.5)
    assert_close(got.double(), expected, rtol=0, atol=2e-6)


def test_wider_values_go_through_the_blocked_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 under autocast, where a few heads at a time are computed."""
    monkeypatch.setattr(kernels, "use_blocked_attention", lambda q, k: True)
    q, k, v = (torch.randn(1, 2, 16, n).bfloat16() for n in (8, 8, 12))
    with torch.autocast("cpu", torch.bfloat16):
        got = dot_product_attention(q, k, v, Full())
    assert got.shape == (1, 2, 16, 12)
    assert_close(got.double(), definition(q, k, v, None, 8**-0.5), rtol=0, atol=0.03)


@pytest.mark.parametrize("short_keys", [0, 1024])
@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("products", [False, True])
def test_a_compiled_step_multiplies_short_texts_plainly(
    short_keys: int, compiling: bool, products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever eager attention was measured to be, where the processor has products of bfloat16."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    monkeypatch.setattr(kernels, "multiplies_bfloat16", products)
    chosen = KernelChoices(short_keys=short_keys)
    with use_choices(chosen), torch.autocast("cpu", torch.bfloat16):
        for length in (256, 257):
            q = torch.randn(1, 1, length, 4).bfloat16()
            expected = short_keys > 0 or (compiling and products and length == 256)
            assert kernels.prefers_products(q, q) == expected
