"""Comparisons fail for any deliberate error in models or definitions."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from addnorm.checking import compare
from addnorm.checking.axes import AXES
from addnorm.checking.case import Case
from addnorm.checking.compare import compare_cell, shown_weights
from addnorm.checking.definition import positions as defined_positions
from addnorm.checking.matrix import USUAL, Cell
from addnorm.nn import context, norms
from addnorm.nn.attention import core, differential, kernels, outputs, tiles
from addnorm.nn.cache import KVCache, SegmentMemory, SelfCache
from addnorm.nn.feedforward import FeedForward
from addnorm.nn.masks import Blocks, Causal, Padding, Prefix, Segments, Window
from addnorm.nn.norms import LayerNorm
from addnorm.nn.positions import YaRNScaling, alibi, kerple, rotary
from addnorm.nn.recurrent import Recurrent
from addnorm.nn.residuals import PreNorm
from addnorm.nn.routers import Router

Patch = pytest.MonkeyPatch


def _rotary_backwards(patch: Patch) -> None:
    turn = rotary.turn_half
    patch.setitem(rotary.LAYOUTS, "half", lambda x, cos, sin: turn(x, cos, -sin))


def _causal_off_by_one(patch: Patch) -> None:
    patch.setattr(Causal, "allows", lambda self, batch, q, kv: kv <= q + 1)


def _causal_without_itself(patch: Patch) -> None:
    patch.setattr(Causal, "allows", lambda self, batch, q, kv: kv < q)


def _window_one_wider(patch: Patch) -> None:
    patch.setattr(Window, "allows", lambda self, batch, q, kv: (q - kv).abs() <= self.size)


def _blocks_at_slots(patch: Patch) -> None:
    patch.setattr(Blocks, "at", lambda self, positions: self)


def _heads_shared_in_turn(patch: Patch) -> None:
    from addnorm.nn.attention import core

    for module in (core, kernels):
        patch.setattr(module, "shared", lambda kv, n: kv.repeat(1, n // kv.shape[1], 1, 1))


def _padding_seen(patch: Patch) -> None:
    patch.setattr(Padding, "allows", lambda self, batch, q, kv: self.valid[batch, kv] | True)


def _positions_count_padding(patch: Patch) -> None:
    patch.setattr(context, "positions_of", lambda slots, valid=None, segments=None: slots[None])


def _documents_see_each_other(patch: Patch) -> None:
    patch.setattr(Segments, "allows", lambda self, batch, q, kv: (q - kv) == (q - kv))


def _prefix_one_longer(patch: Patch) -> None:
    patch.setattr(
        Prefix, "allows", lambda self, batch, q, kv: (kv <= q) | (kv <= self.lengths[batch])
    )


def _cache_forgets(patch: Patch) -> None:
    append = SelfCache.append

    def forgetful(self: SelfCache, k: Tensor, v: Tensor, within: int) -> tuple[Tensor, Tensor]:
        k, v = append(self, k, v, within)
        return k.clone().index_fill_(2, torch.tensor([0]), 0.0), v

    patch.setattr(SelfCache, "append", forgetful)


def _memory_with_a_gradient(patch: Patch) -> None:
    source = SegmentMemory.source

    def attached(self: SegmentMemory, x: Tensor, within: int) -> Tensor:
        whole = source(self, x, within)
        self._kept = whole[:, max(whole.shape[1] - self.size, 0) :]
        return whole

    patch.setattr(SegmentMemory, "source", attached)


def _unbiased_variance(patch: Patch) -> None:
    def forward(self: LayerNorm, x: Tensor, valid: Tensor | None = None) -> Tensor:
        y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + self.eps).sqrt()
        return y * self.weight + self.bias

    patch.setattr(LayerNorm, "forward", forward)


def _statistics_of_padding(patch: Patch) -> None:
    moments = norms.moments
    patch.setattr(norms, "moments", lambda x, valid=None: moments(x))


def _no_way_back(patch: Patch) -> None:
    forward = FeedForward.forward
    patch.setattr(FeedForward, "forward", lambda self, x: forward(self, x.detach()))


def _no_residual(patch: Patch) -> None:
    patch.setattr(PreNorm, "forward", lambda self, x, f, valid=None: f(self.norm(x, valid)))


def _gates_not_shared_out(patch: Patch) -> None:
    patch.setattr(Router, "route", lambda self, logits: self.scores(logits).topk(self.top_k))


def _state_crosses_texts(patch: Patch) -> None:
    forward = Recurrent.forward
    patch.setattr(
        Recurrent,
        "forward",
        lambda self, x, ctx, cache=None: forward(self, x, replace(ctx, several=False), cache),
    )


def _slopes_upside_down(patch: Patch) -> None:
    slopes = defined_positions.alibi_slopes
    patch.setattr(defined_positions, "alibi_slopes", lambda n: slopes(n)[::-1])


def _t5_offsets_turned(patch: Patch) -> None:
    bucket = defined_positions.t5_bucket
    patch.setattr(
        defined_positions,
        "t5_bucket",
        lambda ahead, n, distance, *, causal: bucket(-ahead, n, distance, causal=causal),
    )


def _powers_of_two_for_any_heads(patch: Patch) -> None:
    patch.setattr(
        alibi, "slopes", lambda n: 2 ** (-8 * torch.arange(1, n + 1, dtype=torch.float64) / n)
    )


def _no_temperature(patch: Patch) -> None:
    patch.setattr(YaRNScaling, "temperature", property(lambda self: 1.0))


def _rows_not_selected(patch: Patch) -> None:
    def grown(self: KVCache, rows: Tensor, memories: Tensor | None = None) -> None:
        for layer in self.layers:
            layer.self_cache.select(torch.arange(len(rows)) % 3)

    patch.setattr(KVCache, "select", grown)


def _memory_rows_not_selected(patch: Patch) -> None:
    def first(self: SegmentMemory, rows: Tensor) -> None:
        if self._kept is not None:
            self._kept = self._kept[:1].expand(len(rows), -1, -1)

    patch.setattr(SegmentMemory, "select", first)


def _memories_not_selected(patch: Patch) -> None:
    from addnorm.nn.cache import CrossCache

    def backwards(self: CrossCache, rows: Tensor) -> None:
        if self._kept is not None:
            self._kept = (self._kept[0][rows.flip(0)], self._kept[1][rows.flip(0)])

    patch.setattr(CrossCache, "select", backwards)


def _products_unscaled(patch: Patch) -> None:
    products = kernels.plain_products
    patch.setattr(
        kernels, "plain_products", lambda *given, **named: products(*given, **named | {"scale": 1})
    )


def _tiles_one_key_short(patch: Patch) -> None:
    places = tiles._places  # pyright: ignore[reportPrivateUsage]

    def short(*given: object):  # type: ignore[no-untyped-def]
        for rows, keys in places(*given):  # type: ignore[arg-type]
            yield rows, slice(min(keys.start + 1, keys.stop - 1), keys.stop)

    patch.setattr(tiles, "_places", short)


def _rate_left_out(patch: Patch) -> None:
    patch.setattr(kerple.F, "softplus", torch.nn.functional.relu)


def _lambda_of_the_first_layer(patch: Patch) -> None:
    patch.setattr(differential, "lambda_init", lambda layer: 0.2)


def _gate_of_the_wrong_sign(patch: Patch) -> None:
    forward = outputs.GatedOutput.forward
    patch.setattr(outputs.GatedOutput, "forward", lambda self, heads, x: forward(self, heads, -x))


def _usual(family: Any, variant: str | None = None, **parts: str) -> str:
    """The cell of usual parts but for these."""
    return Cell(family=family, parts=tuple((USUAL | parts).items()), variant=variant).id


MUTATIONS: list[tuple[Callable[[Patch], None], str, str]] = [
    (
        _rotary_backwards,
        "decoder/rotary/rmsnorm/pre/scaled_dot/gqa/full/default_core/plain_output/gated",
        "logits",
    ),
    (
        _causal_off_by_one,
        "decoder/none/layernorm/pre/scaled_dot/mha/full/default_core/plain_output/mlp",
        "logits",
    ),
    (
        _causal_without_itself,
        "decoder/none/layernorm/post/dot/mha/full/default_core/plain_output/mlp",
        "logits",
    ),
    (
        _window_one_wider,
        "encoder/none/layernorm/post/scaled_dot/mha/window/default_core/plain_output/mlp",
        "logits",
    ),
    (
        _blocks_at_slots,
        "decoder/rotary/rmsnorm/pre/scaled_dot/gqa/blocks/default_core/plain_output/gated",
        "left padding",
    ),
    (
        _heads_shared_in_turn,
        "decoder/learned/rmsnorm/pre/additive/gqa/full/default_core/plain_output/gated",
        "logits",
    ),
    (
        _padding_seen,
        "encoder/none/layernorm/post/scaled_dot/mha/full/default_core/plain_output/mlp",
        "logits",
    ),
    (
        _positions_count_padding,
        "decoder/learned/layernorm/post/scaled_dot/mha/full/default_core/plain_output/mlp",
        "left padding",
    ),
    (
        _documents_see_each_other,
        "decoder/none/layernorm/post/scaled_dot/mha/full/default_core/plain_output/mlp",
        "documents",
    ),
    (
        _prefix_one_longer,
        "decoder/none/layernorm/post/scaled_dot/mha/full/default_core/plain_output/mlp",
        "prefix",
    ),
    (
        _cache_forgets,
        "decoder/none/layernorm/post/scaled_dot/mha/full/default_core/plain_output/mlp",
        "cached",
    ),
    (
        _memory_with_a_gradient,
        "decoder/transformer_xl/layernorm/post/scaled_dot/mha/full/default_core/plain_output/mlp",
        "gradient with a memory",
    ),
    (
        _unbiased_variance,
        "decoder/none/layernorm/post/scaled_dot/mha/full/default_core/plain_output/mlp",
        "logits",
    ),
    (
        _statistics_of_padding,
        "decoder/none/batchnorm/pre/scaled_dot/mha/full/default_core/plain_output/mlp",
        "logits in training",
    ),
    (
        _no_way_back,
        "decoder/none/layernorm/post/scaled_dot/mha/full/default_core/plain_output/mlp",
        "gradient",
    ),
    (
        _no_residual,
        "encoder_decoder/t5/rmsnorm/pre/scaled_dot/mqa/full/default_core/plain_output/gated",
        "logits",
    ),
    (
        _gates_not_shared_out,
        "decoder/none/layernorm/post/scaled_dot/mha/full/default_core/plain_output/moe",
        "logits",
    ),
    (_state_crosses_texts, "decoder/none/layernorm/post/lstm/mlp", "documents"),
    (
        _slopes_upside_down,
        "encoder/alibi/layernorm/post/scaled_dot/mha/full/default_core/plain_output/gated",
        "logits",
    ),
    (
        _t5_offsets_turned,
        "encoder/t5/layernorm/post/scaled_dot/mha/full/default_core/plain_output/gated",
        "logits",
    ),
    (_powers_of_two_for_any_heads, _usual("decoder", "alibi_three_heads"), "logits"),
    (_no_temperature, _usual("decoder", "rotary_yarn"), "logits"),
    (_rows_not_selected, _usual("decoder"), "cache.select ("),
    (_rows_not_selected, "decoder/none/layernorm/post/lstm/mlp", "cache.select ("),
    (_memories_not_selected, _usual("encoder_decoder"), "cache.select ("),
    (_memory_rows_not_selected, _usual("decoder"), "memory, rows selected"),
    (_products_unscaled, _usual("decoder"), "float32 logits"),
    (_tiles_one_key_short, _usual("encoder", position="t5", pattern="blocks"), "long texts"),
    (_rate_left_out, _usual("encoder", position="kerple"), "logits"),
    (_lambda_of_the_first_layer, _usual("decoder", core="differential"), "logits"),
    (_gate_of_the_wrong_sign, _usual("encoder_decoder", output="gated"), "logits"),
]


@cache
def _is_right(name: str, long: bool) -> None:
    """Once for all faults of a cell."""
    assert compare_cell(Cell.of(name)).failed is None


@pytest.mark.sampled(2)
@pytest.mark.long
@pytest.mark.parametrize(
    ("mutate", "name", "noticed"), MUTATIONS, ids=[m.__name__.strip("_") for m, *_ in MUTATIONS]
)
def test_a_fault_is_noticed(
    mutate: Callable[[Patch], None], name: str, noticed: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(compare, "reads_long_texts", lambda _: "tiles" in mutate.__name__)
    _is_right(name, compare.reads_long_texts(Cell.of(name)))
    mutate(monkeypatch)
    result = compare_cell(Cell.of(name))
    assert result.failed is not None
    assert result.failed.startswith(noticed)
    assert result.error > 1e-6


def test_a_model_that_cannot_run_is_a_failure(monkeypatch: Patch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("sizes differ")

    monkeypatch.setattr(LayerNorm, "forward", fail)
    result = compare_cell(Cell.of(_usual("decoder")))
    assert result.failed == "RuntimeError: sizes differ"
    assert result.compared == 0


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
