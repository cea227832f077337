"""Axes: every part is on one, and a part or field that is not varied is an error."""

from typing import Any

import pytest

from addnorm.checking import axes
from addnorm.checking.axes import (
    AXES,
    MIXERS,
    MODELS,
    NOT_VARIED,
    PARTS,
    VARIANTS,
    WITH_FIELDS,
    check_definitions,
    check_fields,
)
from addnorm.checking.definition import DEFINITIONS, MissingDefinition
from addnorm.config import config
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DualEncoderConfig, ModelConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.blocks import MixerConfig
from addnorm.nn.crf import CRFHeadConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.no_sublayer import NoFeedForwardConfig, NoMixerConfig
from addnorm.nn.positions import (
    AxialRotaryConfig,
    RotaryConfig,
    RoundedALiBiConfig,
    ScalingConfig,
)
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.parts import members


@pytest.mark.parametrize("axis", [name for name, axis in PARTS.items() if axis.crossed])
def test_every_part_is_on_its_axis(axis: str) -> None:
    field, union = PARTS[axis].field, PARTS[axis].union
    parts = [change[field] for change in AXES[axis].values()]
    # Of pictures, of decoders, and of layers beside others: variants and tests of their own.
    apart = {AxialRotaryConfig, RoundedALiBiConfig, NoFeedForwardConfig}
    assert {type(part) for part in parts if part is not None} == {*members(union)} - apart
    assert (None in parts) == (PARTS[axis].unset is not None)


def test_what_has_no_axis_is_in_the_matrix_too() -> None:
    mixers = {type(change["attention"]) for change in MIXERS.values()}
    assert mixers | {AttentionConfig, NoMixerConfig} == {*members(MixerConfig)}
    of_two = {DualEncoderConfig}  # two encoders: tests/models/test_dual_encoder.py has it
    assert {*MODELS.values()} == {*members(ModelConfig)} - of_two
    varied = [part for variant in VARIANTS.values() for part in variant.changes.values()]
    scalings = {type(part.scaling) for part in varied if isinstance(part, RotaryConfig)}
    assert scalings - {type(None)} == {*members(ScalingConfig)}
    for field in ("embedding", "head"):
        axis = next(axis for axis in PARTS.values() if axis.field == field)
        found = {type(v.changes[field]) for v in VARIANTS.values() if field in v.changes}
        # A forecast stands behind a series alone, similarity behind pairs, a CRF before a loss of
        # its own: tests/nn has all three.
        apart = {ForecastHeadConfig, SimilarityHeadConfig, CRFHeadConfig}
        assert found == {*members(axis.union)} - apart


def test_heads_are_shared_by_none_some_and_all() -> None:
    sharing = [
        (change["attention.n_heads"], change["attention.n_kv_heads"])
        for change in AXES["heads"].values()
    ]
    assert [n == k for n, k in sharing].count(True) == 1
    assert [k == 1 < n for n, k in sharing].count(True) == 1
    assert [1 < k < n for n, k in sharing].count(True) == 1


def test_every_field_and_every_part_is_accounted_for() -> None:
    check_fields()
    check_definitions()


@config
class GatedDecoderConfig(DecoderConfig):
    """A model with a field that nobody has thought of."""

    highway_gate: bool = False


@config
class WiderAttentionConfig(AttentionConfig):
    """Attention with one."""

    talking_heads: bool = False


@config
class OlderLayerConfig(LayerConfig):
    """A layer with one."""

    skip: bool = False


@pytest.mark.parametrize(
    ("start", "added", "field"),
    [
        ("", GatedDecoderConfig, "highway_gate"),
        ("attention.", WiderAttentionConfig, "talking_heads"),
        ("layer.", OlderLayerConfig, "skip"),
    ],
)
def test_a_new_field_must_be_varied_or_excused(start: str, added: type, field: str) -> None:
    configs = {**WITH_FIELDS, start: (*WITH_FIELDS[start], added)}
    with pytest.raises(InputError, match=rf"{added.__name__}.{field} is varied by no axis"):
        check_fields(configs)


def test_an_axis_that_is_taken_away_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = {name: axis for name, axis in AXES.items() if name != "output"}
    without = {
        name: variant
        for name, variant in VARIANTS.items()
        if "attention.output" not in variant.changes
    }
    monkeypatch.setattr(axes, "AXES", rest)
    monkeypatch.setattr(axes, "VARIANTS", without)
    with pytest.raises(InputError, match=r"AttentionConfig\.output is varied by no axis"):
        check_fields()


def test_check_fields_rejects_a_stale_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "NOT_VARIED", {**NOT_VARIED, "width": "it is gone"})
    with pytest.raises(InputError, match=r"no model has: \['width'\]"):
        check_fields()


@pytest.mark.parametrize("family", ["norm", "core", "output", "scaling", "head"])
def test_a_part_without_a_definition_is_an_error(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[type, Any] = DEFINITIONS[family]._known  # pyright: ignore[reportPrivateUsage]
    part, *rest = known
    monkeypatch.setattr(DEFINITIONS[family], "_known", {one: known[one] for one in rest})
    with pytest.raises(MissingDefinition, match=f"{family} '.*' has no definition: add it to"):
        check_definitions()
    assert part
