"""Slots: each is taken by one token of the rows at a time, and free when none refers to it."""

from dataclasses import replace

import pytest
import torch
from tests.serve.engine.tiny import TINY, MeansConfig, run_of

from addnorm.generate import Continuation, Translation
from addnorm.models import DecoderConfig, DecoderModel, EncoderDecoderConfig, EncoderDecoderModel
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig, LatentAttentionConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.serve.engine.slots import RowBuffers, bytes_of_slot, layers_in_slots


class Held:
    """Rows that hold some slots."""

    def __init__(self, slots: torch.Tensor) -> None:
        self.slots = slots

    @property
    def tables(self) -> list[torch.Tensor]:
        return [self.slots]


def buffers(n_slots: int) -> RowBuffers:
    model = run_of().model
    assert isinstance(model, DecoderModel)
    return RowBuffers(Continuation(model), n_slots, in_place=False)


def test_slots_are_taken_once_and_again_when_nobody_holds_them() -> None:
    store = buffers(10)
    first, second = Held(store.take(4)[None]), Held(store.take(4)[None])
    for each in (first, second):
        store.rows.add(each)
    assert not {*first.slots.flatten().tolist()} & {*second.slots.flatten().tolist()}
    first.slots = first.slots[:, :2]
    rest = Held(store.take(4)[None])
    store.rows.add(rest)
    held = [first, second, rest]
    taken = [int(i) for each in held for i in each.slots.flatten()]
    assert sorted(taken) == list(range(10))
    with pytest.raises(AssertionError, match="more tokens than there is room for"):
        store.take(1)
    del second, held, each
    assert len(store.take(4)) == 4


def test_padding_is_never_taken_and_zero() -> None:
    store = buffers(3)
    assert store.padding == 3
    assert sorted(store.take(3).tolist()) == [0, 1, 2]
    for layer in store.layers:
        assert layer is not None
        assert all(bool((part[3] == 0.0).all()) for part in layer)


def test_only_attention_with_the_usual_cache_is_in_slots() -> None:
    pattern = (LayerConfig(), LayerConfig(attention=MeansConfig()))
    model = run_of(replace(TINY, layer_pattern=pattern)).model
    assert isinstance(model, DecoderModel)
    assert layers_in_slots(model) == [True, False]
    store = RowBuffers(Continuation(model), 2, in_place=False)
    assert [layer is not None for layer in store.layers] == [True, False]


def test_a_slot_has_a_token_of_the_text_or_of_a_source() -> None:
    heads = AttentionConfig(n_heads=2)
    same = EncoderDecoderConfig(d_model=8, n_layers=3, attention=heads)
    assert bytes_of_slot(same.build(9), 8) == 3 * 2 * 8 * 4
    grouped = replace(same, cross_attention=AttentionConfig(n_heads=2, n_kv_heads=1))
    model = grouped.build(9)
    assert isinstance(model, EncoderDecoderModel)
    assert bytes_of_slot(model, 8) == 3 * 2 * (8 + 4) * 4
    store = RowBuffers(Translation(model, 2), 5, in_place=False)
    shapes = [pair and pair[0].shape for pair in (store.layers[0], store.memories[0])]
    assert shapes == [(6, 2, 4), (6, 1, 4)]


def test_a_slot_has_what_a_layer_keeps_or_a_hidden_state() -> None:
    assert bytes_of_slot(TINY.build(9), 16) == 2 * 2 * 16 * 4
    recurrent = DecoderConfig(d_model=8, n_layers=1, attention=RecurrentConfig())
    assert bytes_of_slot(recurrent.build(9), 8) == 8 * 4
    latent = replace(TINY, n_layers=9, attention=LatentAttentionConfig(n_heads=4))
    model = latent.build(9)
    store = RowBuffers(Continuation(model), 1, in_place=False)
    numbers = sum(part[0].numel() for pair in store.layers if pair for part in pair)
    assert bytes_of_slot(model, 16) == 4 * numbers > 16 * 4
