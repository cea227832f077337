"""The leading process asks for whole weights by name, and the others take part until it ends."""

import copy

import pytest
import torch
from tests.training.parallel.threads import together
from torch import nn

from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig
from addnorm.models.weights import weights_of
from addnorm.nn.deferred_init import without_memory
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.routers import SigmoidRouter, SigmoidRouterConfig
from addnorm.training.parallel.pieces import Group, Piece
from addnorm.training.parallel.tensors import name_pieces
from addnorm.training.parallel.whole_weights import WholeWeights, computing_with


def test_weights_are_gathered_in_any_order_and_again() -> None:
    whole = nn.Linear(3, 4)

    def compute(group: Group) -> list[torch.Tensor] | None:
        part = copy.deepcopy(whole)
        piece = Piece(group, 0, 4, 4)
        part.weight.data = piece.of(part.weight.data).clone()
        name_pieces(part, {"weight": piece})
        weights = WholeWeights(part, group)
        return weights.led(lambda w: [w[name] for name in ("bias", "weight", "weight")], None)

    asked, others = together(2, compute)
    assert others is None
    assert asked is not None
    assert all(map(torch.equal, asked, [whole.bias, whole.weight, whole.weight]))


@pytest.mark.parametrize(("room", "times"), [(0, 6), (3 * 4, 4), (12 * 4, 4), (15 * 4, 2)])
def test_weights_that_fit_into_the_room_are_gathered_once(room: int, times: int) -> None:
    """A matrix of 12 numbers and a bias of 3, each asked for three times."""
    whole = nn.Linear(4, 3)

    def compute(group: Group) -> int:
        part = copy.deepcopy(whole)
        name_pieces(part, {})
        weights, asked = WholeWeights(part, group, room), []
        gathered = weights._gathered
        weights._gathered = lambda name: (asked.append(name), gathered(name))[1]
        weights.led(lambda w: [w[name] for name in 3 * ["weight", "bias"]], None)
        return len(asked)

    assert together(2, compute) == [times, times]


def test_the_others_continue_where_the_leading_process_fails() -> None:
    def compute(group: Group) -> str:
        def fail(_: WholeWeights) -> str:
            raise InputError("a mistake")

        try:
            return WholeWeights(nn.Linear(2, 2), group).led(fail, "goes on")
        except InputError as error:
            return str(error)

    assert together(2, compute) == ["a mistake", "goes on"]


def test_a_model_without_memory_computes_with_weights_that_are_lent() -> None:
    """With the corrections of routers too, which training moves."""
    torch.manual_seed(0)
    experts = MixtureOfExpertsConfig(n_experts=3, router=SigmoidRouterConfig())
    model = EncoderDecoderConfig(d_model=16, n_layers=2, feedforward=experts).build(20, 20).eval()
    corrections = [m.correction for m in model.modules() if isinstance(m, SigmoidRouter)]
    for correction in corrections:
        correction += torch.randn(3)
    source, target = torch.arange(4, 12)[None], torch.arange(5, 9)[None]

    @torch.no_grad()
    def computed() -> list[torch.Tensor]:
        memory = model.encode(source)
        pairs = [x for pair in model.cross_keys_values(memory) for x in pair]
        return [model(source, target), *pairs]

    before, weights = computed(), {n: w.clone() for n, w in weights_of(model).items()}
    for parameter in model.parameters():
        parameter.data = without_memory(parameter.data)
    for correction in corrections:
        correction.zero_()
    with computing_with(model, weights):
        assert all(map(torch.equal, computed(), before))
        block = model.decoder.blocks[0]
        assert all(p.isnan().all() for p in block.parameters())
    assert all(p.isnan().all() for p in model.parameters())
    with pytest.raises(KeyError), computing_with(model, {}):
        pass
