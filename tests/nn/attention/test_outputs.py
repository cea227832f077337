"""Operations on attention's output: gates, and the difference of heads that share keys."""

from typing import Any

import pytest
import torch
from tests.contracts import check_module, check_records, context, started
from torch.testing import assert_close

from addnorm.nn.attention import (
    AttentionConfig,
    DifferentialOutputConfig,
    GatedOutputConfig,
    HeadShape,
    OutputConfig,
)
from addnorm.nn.masks import Full
from addnorm.nn.positions import NoPosition

RECORDS = [GatedOutputConfig(), GatedOutputConfig(per="head")]
HEADS = HeadShape(2, 2, 3)


def test_every_output_has_a_record() -> None:
    check_records(OutputConfig, [*RECORDS, DifferentialOutputConfig()])


@pytest.mark.parametrize("config", RECORDS, ids=lambda c: c.per)
def test_contract(config: GatedOutputConfig) -> None:
    heads, x = torch.randn(2, 2, 4, 3), torch.randn(2, 4, 6)
    check_module(
        lambda: config.build(6, HEADS, 0), lambda m, dtype: m(heads.to(dtype), x.to(dtype))
    )


@pytest.mark.parametrize("config", RECORDS, ids=lambda c: c.per)
def test_equals_the_paper(config: GatedOutputConfig) -> None:
    """`heads ⊙ σ(x W_g)` (Qiu et al. 2025), one head of one token at a time."""
    gate = started(config.build(6, HEADS, 0)).double()
    heads, x = torch.randn(2, 2, 4, 3).double(), torch.randn(2, 4, 6).double()
    got, weight = gate(heads, x), gate.proj.weight
    width = 3 if config.per == "feature" else 1
    for b, h, t in torch.cartesian_prod(torch.arange(2), torch.arange(2), torch.arange(4)).tolist():
        opened = 1 / (1 + torch.exp(-(weight[h * width : (h + 1) * width] @ x[b, t])))
        assert_close(got[b, h, t], heads[b, h, t] * opened)


@pytest.mark.parametrize("cross", [False, True])
def test_the_gate_stands_between_the_values_and_the_output_map(cross: bool) -> None:
    """An open gate is attention without one; a shut gate leaves the bias of the output map."""
    config = AttentionConfig(n_heads=2, output=GatedOutputConfig())
    attention = config.build_cross(6) if cross else config.build(6, NoPosition(), True)
    attention = started(attention).double()
    x = torch.randn(2, 4, 6).double()
    ctx = context(2, 4).attending(x) if cross else context(2, 4)
    attention.output.proj.weight.data.zero_()
    half = attention(x, ctx)  # σ(0) is one half
    bias = attention.out_proj.bias
    gate, attention.output = attention.output, torch.nn.Module()
    attention.output.forward = lambda heads, x: heads
    assert_close(half - bias, (attention(x, ctx) - bias) / 2)
    attention.output = gate
    assert sum(name.startswith("output.") for name, _ in attention.named_parameters()) == 1


def test_beams_that_share_a_memory_have_gates_of_their_own() -> None:
    attention = started(AttentionConfig(n_heads=2, output="gated").build_cross(6)).double()
    memory, x = torch.randn(2, 5, 6).double(), torch.randn(6, 3, 6).double()
    shared = attention(x, context(6, 3).attending(memory))
    repeated = attention(x, context(6, 3).attending(memory.repeat_interleave(3, 0)))
    assert_close(shared, repeated)


PAIRS = AttentionConfig(n_heads=4, n_kv_heads=2, d_head=3, output=DifferentialOutputConfig())


def test_contract_of_pairs() -> None:
    heads, x = torch.randn(2, 4, 5, 3), torch.randn(2, 5, 6)
    check_module(
        lambda: DifferentialOutputConfig().build(6, HeadShape(4, 2, 3), 0),
        lambda m, dtype: m(heads.to(dtype), x.to(dtype)),
    )


def test_pairs_are_neighbours_that_share_keys_and_values() -> None:
    """`softmax(q₁ kᵀ) v - σ(x W_λ) softmax(q₂ kᵀ) v`: heads 0 and 1 with the first keys."""
    attention: Any = started(PAIRS.build(6, NoPosition(), False)).double()
    assert attention.out_proj.in_features == 2 * 3
    x = torch.randn(1, 5, 6).double()
    q, (k, v) = attention.queries(x), attention.keys_values(x)
    strength = (x[0] @ attention.output.proj.weight.T).sigmoid()
    outputs: list[torch.Tensor] = []
    for pair in (0, 1):
        maps = [(q[0, 2 * pair + i] @ k[0, pair].T * 3**-0.5).softmax(-1) for i in (0, 1)]
        weights = maps[0] - strength[:, pair, None] * maps[1]
        outputs.append(weights @ v[0, pair])
    expected = attention.out_proj(torch.cat(outputs, -1))
    assert_close(attention(x, context(1, 5, Full()))[0], expected)


def test_without_the_second_map_it_is_attention_of_half_the_heads() -> None:
    attention: Any = started(PAIRS.build(6, NoPosition(), True)).double()
    plain = AttentionConfig(n_heads=2, d_head=3).build(6, NoPosition(), True).double()
    state = attention.state_dict()
    state["q_proj.weight"] = state["q_proj.weight"].view(2, 2, 3, 6)[:, 0].flatten(0, 1)
    state["q_proj.bias"] = state["q_proj.bias"].view(2, 2, 3)[:, 0].flatten()
    plain.load_state_dict({k: v for k, v in state.items() if not k.startswith("output.")})
    x = torch.rand(2, 4, 6).double()
    attention.output.proj.weight.data.fill_(-1e4)  # σ of a large negative number, of positive x
    assert_close(attention(x, context(2, 4)), plain(x, context(2, 4)))


@pytest.mark.parametrize("n_kv_heads", [None, 4])
def test_rejects_pairs_with_different_keys(n_kv_heads: int | None) -> None:
    config = AttentionConfig(n_heads=4, n_kv_heads=n_kv_heads, output=DifferentialOutputConfig())
    with pytest.raises(ValueError, match="even multiple of n_kv_heads = 4"):
        config.heads(8)
