"""Weight transfer of whole models: layers, unused weights, and correct reports."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.convert.swapping import KINDS, PARTS, built, difference, random, swap

from addnorm.convert.transfer.model import (
    config_with_folding,
    evenly_spaced_layers,
    layer_counts,
    transfer_weights,
)
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.heads import CTCHeadConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import RotaryConfig

DECODER = DecoderConfig(**PARTS | {"n_layers": 4})


def test_layers_are_chosen_evenly() -> None:
    assert evenly_spaced_layers(12, 6) == (0, 2, 4, 6, 8, 10), "those of DistilBERT"
    assert evenly_spaced_layers(4, 8) == (0, 0, 1, 1, 2, 2, 3, 3)
    assert evenly_spaced_layers(6, 4) == (0, 1, 3, 4)
    assert evenly_spaced_layers(3, 3) == (0, 1, 2)


@given(old=st.integers(1, 40), new=st.integers(1, 40))
def test_layers_are_in_order_and_no_gap_is_much_wider_than_another(old: int, new: int) -> None:
    chosen = evenly_spaced_layers(old, new)
    assert len(chosen) == new
    assert set(chosen) <= set(range(old))
    steps = [b - a for a, b in pairwise(chosen)]
    assert not steps or (min(steps) >= 0 and max(steps) - min(steps) <= 1)


@pytest.mark.parametrize("layers", [(0, 2), (3, 2, 1, 0), (0, 1, 1, 2, 3), (2,)])
def test_layers_stand_where_they_are_put(layers: tuple[int, ...]) -> None:
    """As the blocks themselves do, put in that order."""
    chosen = {"stack": layers}
    swapped = swap(DECODER, n_layers=len(layers), layers=chosen)
    by_hand = random(DECODER)
    blocks = [by_hand.stack.blocks[i] for i in layers]
    by_hand.stack.blocks = torch.nn.ModuleList(blocks)
    assert difference(swapped.new, by_hand) == 0
    [reason] = swapped.report.changed
    assert f"layers {' '.join(map(str, layers))} of 4" in reason
    assert swapped.report.unused == ()
    assert {one.kind for one in swapped.report.origins.values()} == {"exact"}


def test_both_stacks_of_a_translator() -> None:
    config = EncoderDecoderConfig(**PARTS | {"n_layers": 4}, n_decoder_layers=2)
    swapped = swap(config, n_layers=2, n_decoder_layers=3)
    assert swapped.report.changed == (
        "n_layers: layers 0 2 of 4",
        "n_decoder_layers: layers 0 0 1 of 2",
    )
    old, new = swapped.old.state_dict(), swapped.new.state_dict()
    for ours, theirs in (
        ("encoder.blocks.1", "encoder.blocks.2"),
        ("decoder.blocks.2", "decoder.blocks.1"),
    ):
        name = "feedforward.up_proj.weight"
        assert new[f"{ours}.{name}"].equal(old[f"{theirs}.{name}"])
    assert layer_counts(config) == {"encoder": 4, "decoder": 2}
    assert layer_counts(KINDS["encoder_decoder"]) == {"encoder": 2, "decoder": 2}


def test_exits_go_with_their_layers() -> None:
    swapped = swap(replace(DECODER, exits=(1, 3)), n_layers=2, exits=(1,), layers={"stack": (2, 3)})
    old, new = swapped.old.state_dict(), swapped.new.state_dict()
    assert new["exits.1.norm.weight"].equal(old["exits.3.norm.weight"])


def test_fewer_layers_and_a_norm_without_a_mean() -> None:
    """What folding does is done to the layers that are left."""
    fewer = swap(DECODER, n_layers=2)
    both = swap(DECODER, n_layers=2, norm=RMSNormConfig(eps=1e-5))
    assert difference(fewer.new, both.new) < 1e-10
    assert both.report.changed == ("n_layers: layers 0 2 of 4",)


def test_a_transfer_leaves_the_old_model_unchanged() -> None:
    old = random(DECODER)
    before = {name: one.clone() for name, one in old.state_dict().items()}
    swap(
        DECODER,
        old=old,
        norm=RMSNormConfig(eps=1e-5),
        attention=AttentionConfig(n_heads=4, n_kv_heads=1),
    )
    for name, one in old.state_dict().items():
        assert one.equal(before[name]), name


def test_an_unchanged_configuration_is_exact() -> None:
    for config in KINDS.values():
        old = random(config)
        new = built(config)
        report = transfer_weights(old, config, new, config)
        assert config_with_folding(old, config, config) is config
        assert report.changed == report.unused == ()
        assert {one.kind for one in report.origins.values()} == {"exact"}
        assert set(report.origins) == {name for name, _ in new.named_parameters()}
        assert difference(old, new) == 0


def test_every_reported_origin_is_true() -> None:
    swapped = swap(
        DECODER,
        norm=RMSNormConfig(eps=1e-5),
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=2, n_kv_heads=1),
    )
    old, new = swapped.old.state_dict(), swapped.new.state_dict()
    for name, origin in swapped.report.origins.items():
        if origin.kind == "exact" and not origin.how:
            assert new[name].equal(old[name]), name
        if origin.kind == "folded" and name in old:
            assert not new[name].equal(old[name]), name
    assert swapped.report.unused[0] == "embed.position.table.weight"
    assert swapped.report.changed == (
        "position: learned → rotary",
        "attention.n_heads: 4 → 2",
        "attention.n_kv_heads: 4 → 1: the heads of a group share their mean",
    )


def test_sixteen_bits_stay_sixteen_bits() -> None:
    old = random(DECODER).to(torch.bfloat16)
    config = replace(DECODER, attention=AttentionConfig(n_heads=4, n_kv_heads=2))
    new = built(config).to(torch.bfloat16)
    transfer_weights(old, DECODER, new, config)
    assert {one.dtype for one in new.parameters()} == {torch.bfloat16}


def test_the_outputs_of_a_ctc_head_stay() -> None:
    """A model of sounds has no table of tokens: the head tells how many there are."""
    config = EncoderConfig(
        d_model=16, n_layers=2, input=LogMelEmbeddingConfig(n_mels=8), head=CTCHeadConfig()
    )
    torch.manual_seed(0)
    old = config.build(6).eval()
    shallow = replace(config, n_layers=1)
    new = shallow.build(6).eval()
    report = transfer_weights(old, config, new, shallow, {"stack": (1,)})
    assert {origin.kind for origin in report.origins.values()} == {"exact"}
    assert new.head.state_dict()["proj.weight"].equal(old.head.state_dict()["proj.weight"])
    assert report.changed == ("n_layers: layers 1 of 2",)
