"""How parts say that they are split."""

from typing import ClassVar

from torch import Tensor, nn

from addnorm.checking.axes import AXES, MIXERS
from addnorm.checking.case import build
from addnorm.checking.matrix import AROUND_MIXERS, USUAL, Cell
from addnorm.nn.attention import SDPACore
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.norms import RMSNorm
from addnorm.nn.splits import OUTPUT, WHOLE_INPUT, Split, Splits, declared_splits

WHOLE = {"Convolution", "GatedConvolution", "GatedDelta", "Mamba2", "Recurrent", "MixtureOfExperts"}
"""What has linear maps and declares no split: every process has them whole, or whole experts."""


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


def test_every_split_names_what_its_part_has() -> None:
    """A wrong name would show in a training over processes alone."""
    cells = [
        Cell(family="encoder_decoder", parts=tuple({**USUAL, axis: name}.items()))
        for axis in AXES
        for name in AXES[axis]
    ]
    around = tuple((axis, USUAL[axis]) for axis in AROUND_MIXERS)
    cells += [Cell(family="decoder", parts=around, mixer=mixer) for mixer in MIXERS]
    declared, present = set[tuple[str, str]](), set[tuple[str, str]]()
    undeclared = set[str]()
    for cell in cells:
        if cell.refusal():
            continue
        for module in build(cell.config()).modules():
            if declared_splits(module) is None and any(
                isinstance(child, nn.Linear) for child in module.children()
            ):
                undeclared.add(type(module).__name__)
            for name, split in (declared_splits(module) or {}).items():
                declared.add((type(module).__name__, name))
                assert split.units is None or getattr(module, split.units) > 0
                if isinstance(getattr(module, name, None), nn.Module | Tensor):
                    present.add((type(module).__name__, name))
    projected = {("DisentangledScores", name) for name in ("q_proj", "k_proj")}
    optional = {("TokenHead", "bias"), *projected}
    missing = {part for part in declared - present if part[1] not in (OUTPUT, WHOLE_INPUT)}
    assert missing <= optional
    assert len(present) > 30
    assert undeclared == WHOLE
