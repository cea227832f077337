"""Slots: each is taken by one token of the rows at a time, and free when none refers to it."""

from dataclasses import replace

import pytest
import torch
from tests.serve.engine.tiny import TINY, MeansConfig, run_of

from addnorm.generate import Continuation
from addnorm.models import DecoderModel
from addnorm.models.layers import LayerConfig
from addnorm.serve.engine.slots import RowBuffers, layers_in_slots


class Held:
    """Rows that hold some slots."""

    def __init__(self, slots: torch.Tensor) -> None:
        self.slots = slots


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
