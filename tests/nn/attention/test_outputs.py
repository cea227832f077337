"""Operations on attention's output: the paper's gate, and an open gate as the identity."""

import pytest
import torch
from tests.contracts import check_module, check_records, context, started
from torch.testing import assert_close

from addnorm.nn.attention import AttentionConfig, GatedOutputConfig, HeadShape, OutputConfig
from addnorm.nn.positions import NoPosition

RECORDS = [GatedOutputConfig(), GatedOutputConfig(per="head")]
HEADS = HeadShape(2, 2, 3)


def test_every_output_has_a_record() -> None:
    check_records(OutputConfig, RECORDS)


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
