"""Decoding agrees with its definition, and wrong bounds or widths are detected."""

import pytest
import torch
from tests.contracts import combined
from torch import Tensor

from addnorm.checking.decoding import MODELS, compare_decoding, decoding_cells, ways
from addnorm.generate import beam
from addnorm.generate.beam import BeamConfig, Beams


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize(("model", "way"), combined(MODELS, ways()))
def test_it_is_as_defined(model: str, way: str) -> None:
    result = compare_decoding(f"decoding/{model}/{way}")
    assert result.failed is None
    assert result.compared == 2 * 12 * 3


def _bound_of_the_present_length(patch: pytest.MonkeyPatch) -> None:
    def is_closed(beams: Beams, decoding: BeamConfig, limit: Tensor) -> Tensor:
        present = torch.tensor(beams.live.shape[-1])
        bound = beams.live_scores.amax(-1) / decoding.divisor(present)
        return (bound <= beams.done_scores[:, -1]) | (limit <= present)

    patch.setattr(beam, "is_closed", is_closed)


def _one_more_token_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BeamConfig, "divisor", lambda self, n: ((6 + n) / 6.0) ** self.length_penalty)


def _always_constant(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BeamConfig, "candidates", property(lambda self: 2 * self.beams))


@pytest.mark.long
@pytest.mark.parametrize(
    "mutate", [_bound_of_the_present_length, _one_more_token_counts, _always_constant]
)
def test_a_fault_is_seen(mutate: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(mutate)
    mutate(monkeypatch)
    assert any(compare_decoding(name).failed for name in decoding_cells())
    assert not compare_decoding("decoding/decoder/greedy").failed
