"""The place of a sublayer in a model."""

from addnorm.nn.depth import Depth


def test_layers_are_those_of_the_stack_being_built() -> None:
    assert Depth(encoder=3, decoder=5).n_layers == 3
    assert Depth(encoder=3, decoder=5, causal=True).n_layers == 5
