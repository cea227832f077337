"""Attention: the scores of the papers, who shares keys, and who sees whom."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from addnorm.check.definition.attention import (
    cross_attention,
    scale,
    scored,
    self_attention,
    softmax,
)
from addnorm.check.definition.texts import Texts

NONE = SimpleNamespace(kind="none")
FULL = SimpleNamespace(kind="full")


def attention(n_heads: int, n_kv_heads: int | None = None, score: str = "scaled_dot") -> Any:
    return SimpleNamespace(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_head=None,
        qk_norm=None,
        score=SimpleNamespace(kind=score),
        pattern=FULL,
    )


def weights(d_model: int, width: int) -> dict[str, torch.Tensor]:
    widths = {"q": d_model, "k": width, "v": width, "out": d_model}
    return {f"{name}_proj.weight": torch.randn(n, d_model).double() for name, n in widths.items()}


def test_scores() -> None:
    q, k = torch.tensor([[1.0, 2, 3]]).double(), torch.tensor([[4.0, 5, 6]]).double()
    assert float(scored(SimpleNamespace(kind="dot"), {}, 0, q, k)) == 32
    scaled = SimpleNamespace(kind="scaled_dot")
    assert float(scored(scaled, {}, 0, q, k)) == pytest.approx(32 / math.sqrt(3))
    assert scale(scaled, q) == pytest.approx(3**-0.5)
    matrix = torch.zeros(2, 3, 3).double()
    matrix[1, 0, 2] = 1.0  # k_0 q_2
    assert float(scored(SimpleNamespace(kind="bilinear"), {"weight": matrix}, 1, q, k)) == 12
    additive = {
        "key": torch.eye(3).double()[None] / 10,
        "query": torch.zeros(1, 3, 3).double(),
        "vector": torch.ones(1, 3, 1).double(),
    }
    found = float(scored(SimpleNamespace(kind="additive"), additive, 0, q, k))
    assert found == pytest.approx(sum(math.tanh(x / 10) for x in (4, 5, 6)))


def test_softmax_over_what_is_seen() -> None:
    scores = torch.tensor([[0.0, math.log(3), 1e9]]).double()
    seen = torch.tensor([[True, True, False]])
    assert softmax(scores, seen).tolist() == [pytest.approx([0.25, 0.75, 0])]


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_it_is_that_of_torch(n_kv_heads: int) -> None:
    w, x = weights(8, 2 * n_kv_heads), torch.randn(5, 8).double()
    ours = self_attention(attention(4, n_kv_heads), w, x, Texts.of([5]), causal=True, position=NONE)
    q, k, v = (
        (x @ w[f"{name}_proj.weight"].T).view(5, -1, 2).transpose(0, 1)[None] for name in "qkv"
    )
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(ours, heads[0].transpose(0, 1).flatten(1) @ w["out_proj.weight"].T)


def test_texts_do_not_see_each_other() -> None:
    w, x = weights(4, 4), torch.randn(5, 4).double()

    def attended(x: torch.Tensor, *lengths: int) -> torch.Tensor:
        return self_attention(attention(2), w, x, Texts.of(lengths), causal=False, position=NONE)

    alone = torch.cat([attended(x[:3], 3), attended(x[3:], 2)])
    torch.testing.assert_close(attended(x, 3, 2), alone)


def test_cross_attention_sees_its_own_memory_alone() -> None:
    w, x, memory = weights(4, 4), torch.randn(3, 4).double(), torch.randn(2, 4).double()
    seen = Texts.of([2, 1]).same_text(Texts.of([1, 1]))
    found = cross_attention(attention(2), w, x, memory, seen)
    alone = memory @ w["v_proj.weight"].T @ w["out_proj.weight"].T  # one key: all weight is on it
    torch.testing.assert_close(found, alone[[0, 0, 1]])
