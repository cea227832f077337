"""Operations on attention's output against explicit gates."""

import torch

from addnorm.checking.definition.outputs import after_heads
from addnorm.nn.attention import GatedOutputConfig

HEADS = [torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[3.0, 4.0]]).double()]
X = torch.tensor([[1.0]]).double()


def test_a_gate_for_each_feature_or_each_head() -> None:
    logits = torch.tensor([[0.0], [100.0], [-100.0], [0.0]]).double()
    found = after_heads(GatedOutputConfig(), {"proj.weight": logits}, HEADS, X)
    assert [head.round(decimals=6).tolist() for head in found] == [[[0.5, 2]], [[0, 2]]]
    found = after_heads(GatedOutputConfig(per="head"), {"proj.weight": logits[1:3]}, HEADS, X)
    assert [head.round(decimals=6).tolist() for head in found] == [[[1, 2]], [[0, 0]]]


def test_nothing_stands_there_by_default() -> None:
    assert after_heads(None, {}, HEADS, X) is HEADS
