"""Every core shows the weights that it uses; another core's are noticed."""

from collections.abc import Callable

import pytest
from torch import Tensor

from addnorm.checking.axes import AXES
from addnorm.checking.case import Case
from addnorm.checking.matrix import USUAL, Cell
from addnorm.checking.shown_weights import shown_weights
from addnorm.nn.attention import core, differential


def case_of(**parts: str) -> Case:
    return Case.of(Cell(family="encoder_decoder", parts=tuple((USUAL | parts).items())))


@pytest.mark.parametrize("name", AXES["core"])
@pytest.mark.parametrize("position", ["sinusoidal", "t5", "transformer_xl"])
def test_weights_are_those_of_the_forward_pass(name: str, position: str) -> None:
    found = list(shown_weights(case_of(core=name, position=position)))
    assert len(found) > 6  # two layers: the encoder's and the decoder's own, and across
    assert all(one.holds for one in found)


@pytest.mark.parametrize("score", AXES["score"])
def test_of_every_score(score: str) -> None:
    assert all(one.holds for one in shown_weights(case_of(score=score)))


@pytest.mark.parametrize("module", [core.SDPACore, core.EagerCore, differential.DifferentialCore])
def test_other_weights_are_noticed(module: type, monkeypatch: pytest.MonkeyPatch) -> None:
    weights: Callable[..., Tensor] = module.weights
    names = {"SDPACore": "sdpa", "EagerCore": "eager", "DifferentialCore": "differential"}
    case = case_of(core=names[module.__name__], position="alibi")

    def halved(self: object, q: Tensor, *given: object) -> Tensor:
        return weights(self, 0.5 * q, *given)

    monkeypatch.setattr(module, "weights", halved)
    assert not all(one.holds for one in shown_weights(case))


def test_mixers_have_none() -> None:
    assert list(shown_weights(Case.of(Cell.of("decoder/none/layernorm/post/lstm/mlp")))) == []
