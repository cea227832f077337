"""The matrix: every part is in it, every pair meets, and what is refused is a short list."""

from collections import Counter
from itertools import combinations, islice
from typing import Any, get_args

import pytest
from tests.contracts import members

from addnorm.check import matrix
from addnorm.check.matrix import AXES, FAMILIES, MIXERS, VARIANTS, Cell, cells, named, sample
from addnorm.errors import InputError
from addnorm.models import ModelConfig
from addnorm.nn.attention import CoreConfig, PatternConfig, ScoreConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.mixers import MixerConfig
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.norms import NormConfig
from addnorm.nn.positions import PositionConfig, RotaryConfig, ScalingConfig
from addnorm.nn.recurrent import Cell as RecurrentCell
from addnorm.nn.residuals import ResidualConfig

CELLS = list(cells())


@pytest.mark.parametrize(
    ("axis", "union"),
    [
        ("position", PositionConfig),
        ("norm", NormConfig),
        ("placement", ResidualConfig),
        ("score", ScoreConfig),
        ("pattern", PatternConfig),
        ("feedforward", AnyFeedForwardConfig),
    ],
)
def test_every_part_is_on_its_axis(axis: str, union: Any) -> None:
    assert {type(part) for part in AXES[axis].values()} == members(union)


def test_what_has_no_axis_is_in_the_matrix_too() -> None:
    mixers = {get_args(member)[0] for member in get_args(get_args(MixerConfig)[0])}
    assert {type(mixer) for mixer in MIXERS.values()} | {type(_attention())} == mixers
    recurrent = {mixer.cell for mixer in MIXERS.values() if hasattr(mixer, "cell")}
    assert recurrent == set(get_args(RecurrentCell))
    assert set(matrix.MODELS.values()) == members(ModelConfig)
    varied = [part for change in VARIANTS.values() for part in change.values()]
    scalings = {type(part.scaling) for part in varied if isinstance(part, RotaryConfig)}
    assert scalings - {type(None)} == members(ScalingConfig)
    assert {type(part) for part in varied} & members(CoreConfig)
    heads = [(h["n_heads"], h["n_kv_heads"]) for h in AXES["heads"].values()]
    assert [(n, k) for n, k in heads if 1 < k < n]
    assert [(n, k) for n, k in heads if k == 1 < n]
    assert [(n, k) for n, k in heads if k == n]
    activations = {
        (part.kind, part.activation)
        for part in AXES["feedforward"].values()
        if isinstance(part, FeedForwardConfig | GatedFeedForwardConfig)
    }
    ungated = ("relu", "squared_relu", "gelu", "gelu_tanh")
    assert activations == {("mlp", name) for name in ungated} | {
        ("gated", name) for name in ("sigmoid", "gelu", "silu")
    }


def _attention() -> Any:
    return CELLS[0].config().attention


def test_names_are_unique_and_always_the_same() -> None:
    names = [cell.id for cell in CELLS]
    assert len(set(names)) == len(names)
    assert [cell.id for cell in islice(cells(), 1000)] == names[:1000]
    assert names[0] == "decoder/none/layernorm/post/scaled_dot/mha/full/relu"
    assert "decoder/rotary/rmsnorm/pre/scaled_dot/gqa/window/swiglu" in names
    assert "encoder/none/layernorm/pre/gru/squared_relu" in names


def test_decoders_are_in_every_combination() -> None:
    decoders = [cell for cell in CELLS if cell.family == "decoder" and _plain(cell)]
    assert len(decoders) == 7 * 5 * 5 * 4 * 3 * 3 * 8
    assert len({cell.parts for cell in decoders}) == len(decoders)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_pair_of_parts_meets(family: str) -> None:
    met = Counter(
        pair
        for cell in CELLS
        if cell.family == family and _plain(cell)
        for pair in combinations(cell.parts, 2)
    )
    for (a, first), (b, second) in combinations(AXES.items(), 2):
        assert all(met[(a, x), (b, y)] for x in first for y in second)


def _plain(cell: Cell) -> bool:
    return not (cell.mixer or cell.variant)


def test_refusals_are_few_and_say_why() -> None:
    some = [cell for cell in CELLS if {("norm", "rmsnorm"), _GELU} <= set(cell.parts)]
    some += [cell for cell in CELLS if cell.variant]
    refused = Counter(cell.refusal() for cell in some)
    allowed = refused.pop(None)
    assert allowed > 0.8 * len(some)
    assert 0 < len(refused) <= 8
    assert all("use" in str(reason) for reason in refused)


_GELU = ("feedforward", "gelu")


def test_a_sample_is_fixed() -> None:
    drawn = sample(5, 0, CELLS)
    assert drawn == sample(5, 0, CELLS)
    assert drawn != sample(5, 1, CELLS)
    assert len(sample(9, 0, CELLS[:3])) == 3


def test_cells_by_name() -> None:
    found = named("decoder/rotary/*/gru")
    assert {cell.mixer for cell in found} == {"gru"}
    assert {cell.family for cell in found} == {"decoder"}  # and not encoder_decoder
    for cell in sample(50, 0, CELLS):
        assert Cell.of(cell.id) == cell
    with pytest.raises(InputError, match=r"'decoder/rotry'.* Did you mean 'rotary'\?"):
        named("decoder/rotry")
