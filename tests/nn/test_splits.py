"""How parts say that they are split."""

from typing import ClassVar

from torch import nn

from addnorm.nn.attention import SDPACore
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.norms import RMSNorm
from addnorm.nn.splits import Split, Splits, declared_splits


def test_a_class_from_outside_does_not_inherit_the_splits_of_ours() -> None:
    class Changed(SDPACore):
        pass

    class Declared(SDPACore):
        splits: ClassVar[Splits] = {}

    class Further(Declared):
        pass

    assert declared_splits(SDPACore()) == {}
    assert declared_splits(Changed()) is None
    assert declared_splits(Declared()) == declared_splits(Further()) == {}


def test_what_declares_nothing_has_no_splits() -> None:
    assert declared_splits(nn.Linear(2, 3)) is None
    assert declared_splits(RMSNorm(4)) is None


def test_a_gated_layer_is_split_as_a_plain_one_with_its_gate() -> None:
    plain, gated = (declared_splits(kind(4, 8)) for kind in (FeedForward, GatedFeedForward))
    assert plain is not None
    assert gated == {"gate_proj": Split(0), **plain}
