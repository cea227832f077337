"""Tensors that a file stores joined for each layer: queries, keys and values, or gate and up.

A rule takes a model and gives the maps of all its layers. `theirs` is the name of a module, with
`*` for the number of a layer.
"""

from collections.abc import Callable, Iterator

from addnorm.convert.core.family import ModelSpec, attention_of
from addnorm.convert.core.maps import QKV, Concatenated, InterleavedHeads, TensorMap
from addnorm.errors import InputError
from addnorm.models.layers import LayerParts
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.parts import kind_of

Rule = Callable[[ModelSpec], Iterator[TensorMap]]
"""The maps of a model's tensors that differ from ours in more than the name."""

KINDS = ("weight", "bias")


def fused(*rules: Rule) -> Rule:
    """Combine the maps of all these rules."""

    def maps(spec: ModelSpec) -> Iterator[TensorMap]:
        for rule in rules:
            yield from rule(spec)

    return maps


def concatenated_qkv(theirs: str) -> Rule:
    """The maps of a tensor with all queries, then all keys, then all values."""

    def maps(spec: ModelSpec) -> Iterator[TensorMap]:
        for i, layer in _layers(spec):
            heads = attention_of(layer).heads(spec.model.d_model)
            n_rows = [n * heads.d_head for n in (heads.n_heads, heads.n_kv_heads, heads.n_kv_heads)]
            for kind in KINDS:
                names = tuple(f"stack.blocks.{i}.attention.{part}.{kind}" for part in QKV)
                yield Concatenated(names, _named(theirs, i, kind), tuple(n_rows))

    return maps


def interleaved_qkv(theirs: str) -> Rule:
    """The maps of a tensor with queries, keys and values grouped by key/value head."""

    def maps(spec: ModelSpec) -> Iterator[TensorMap]:
        for i, layer in _layers(spec):
            heads = attention_of(layer).heads(spec.model.d_model)
            for kind in KINDS:
                q, k, v = (f"stack.blocks.{i}.attention.{part}.{kind}" for part in QKV)
                yield InterleavedHeads(
                    (q, k, v), _named(theirs, i, kind), heads.n_heads, heads.n_kv_heads
                )

    return maps


def concatenated_gate_up(theirs: str) -> Rule:
    """The maps of a tensor with the gate, which has the activation, then the other half."""

    def maps(spec: ModelSpec) -> Iterator[TensorMap]:
        for i, layer in _layers(spec):
            gated = layer.feedforward
            if not isinstance(gated, GatedFeedForwardConfig):
                raise InputError(f"this family has no {kind_of(gated)} feed-forward")
            d_ff = gated.d_ff or 8 * spec.model.d_model // 3
            for kind in KINDS:
                names = (
                    f"stack.blocks.{i}.feedforward.{part}_proj.{kind}" for part in ("gate", "up")
                )
                yield Concatenated(tuple(names), _named(theirs, i, kind), (d_ff, d_ff))

    return maps


def _layers(spec: ModelSpec) -> Iterator[tuple[int, LayerParts]]:
    return enumerate(spec.model.layers(spec.model.n_layers))


def _named(theirs: str, i: int, kind: str) -> str:
    return f"{theirs.replace('*', str(i))}.{kind}"
