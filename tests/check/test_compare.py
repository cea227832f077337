"""The comparison can fail: whatever is bent, in models or definitions, it notices."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from addnorm.check.compare import Case, compare_cell, distance
from addnorm.check.definition import positions as defined_positions
from addnorm.check.matrix import Cell
from addnorm.nn import context, norms, recurrent
from addnorm.nn.attention import core
from addnorm.nn.cache import SegmentMemory, SelfCache
from addnorm.nn.feedforward import FeedForward
from addnorm.nn.masks import Blocks, Causal, Padding, Prefix, Segments, Window
from addnorm.nn.moe import MixtureOfExperts
from addnorm.nn.norms import LayerNorm
from addnorm.nn.positions import rotary
from addnorm.nn.residuals import PreNorm

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
    patch.setattr(core, "_shared", lambda kv, n: kv.repeat(1, n // kv.shape[1], 1, 1))


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

    def forgetful(self: SelfCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = append(self, k, v)
        return k.clone().index_fill_(2, torch.tensor([0]), 0.0), v

    patch.setattr(SelfCache, "append", forgetful)


def _memory_with_a_gradient(patch: Patch) -> None:
    source = SegmentMemory.source

    def attached(self: SegmentMemory, x: Tensor) -> Tensor:
        whole = source(self, x)
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
    from addnorm.nn import moe

    patch.setattr(moe, "route", lambda logits, k: logits.softmax(-1).topk(k))
    assert MixtureOfExperts


def _state_crosses_texts(patch: Patch) -> None:
    patch.setattr(recurrent, "unbroken", lambda ctx: True)


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


MUTATIONS: list[tuple[Callable[[Patch], None], str, str]] = [
    (_rotary_backwards, "decoder/rotary/rmsnorm/pre/scaled_dot/gqa/full/swiglu", "logits"),
    (_causal_off_by_one, "decoder/none/layernorm/pre/scaled_dot/mha/full/gelu", "logits"),
    (_causal_without_itself, "decoder/none/layernorm/post/dot/mha/full/gelu", "logits"),
    (_window_one_wider, "encoder/none/layernorm/post/scaled_dot/mha/window/gelu", "logits"),
    (_blocks_at_slots, "decoder/rotary/rmsnorm/pre/scaled_dot/gqa/blocks/swiglu", "left padding"),
    (_heads_shared_in_turn, "decoder/learned/rmsnorm/pre/additive/gqa/full/swiglu", "logits"),
    (_padding_seen, "encoder/none/layernorm/post/scaled_dot/mha/full/relu", "logits"),
    (
        _positions_count_padding,
        "decoder/learned/layernorm/post/scaled_dot/mha/full/relu",
        "left padding",
    ),
    (
        _documents_see_each_other,
        "decoder/none/layernorm/post/scaled_dot/mha/full/relu",
        "documents",
    ),
    (_prefix_one_longer, "decoder/none/layernorm/post/scaled_dot/mha/full/relu", "prefix"),
    (_cache_forgets, "decoder/none/layernorm/post/scaled_dot/mha/full/relu", "cached"),
    (
        _memory_with_a_gradient,
        "decoder/transformer_xl/layernorm/post/scaled_dot/mha/full/relu",
        "gradient with a memory",
    ),
    (_unbiased_variance, "decoder/none/layernorm/post/scaled_dot/mha/full/relu", "logits"),
    (
        _statistics_of_padding,
        "decoder/none/batchnorm/pre/scaled_dot/mha/full/relu",
        "logits in training",
    ),
    (_no_way_back, "decoder/none/layernorm/post/scaled_dot/mha/full/relu", "gradient"),
    (_no_residual, "encoder_decoder/t5/rmsnorm/pre/scaled_dot/mqa/full/glu", "logits"),
    (_gates_not_shared_out, "decoder/none/layernorm/post/scaled_dot/mha/full/moe", "logits"),
    (_state_crosses_texts, "decoder/none/layernorm/post/lstm/relu", "left padding"),
    (_slopes_upside_down, "encoder/alibi/layernorm/post/scaled_dot/mha/full/geglu", "logits"),
    (_t5_offsets_turned, "encoder/t5/layernorm/post/scaled_dot/mha/full/swiglu", "logits"),
]


@pytest.mark.parametrize(
    ("mutate", "name", "noticed"), MUTATIONS, ids=[m.__name__.strip("_") for m, *_ in MUTATIONS]
)
def test_a_fault_is_noticed(
    mutate: Callable[[Patch], None], name: str, noticed: str, monkeypatch: Patch
) -> None:
    assert compare_cell(Cell.of(name)).failed is None
    mutate(monkeypatch)
    result = compare_cell(Cell.of(name))
    assert result.failed is not None
    assert result.failed.startswith(noticed)
    assert result.error > 1e-6


def test_a_model_that_cannot_run_is_a_failure(monkeypatch: Patch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("sizes differ")

    monkeypatch.setattr(LayerNorm, "forward", fail)
    result = compare_cell(Cell.of("decoder/none/layernorm/post/scaled_dot/mha/full/relu"))
    assert result.failed == "RuntimeError: sizes differ"
    assert result.compared == 0


def test_a_case_depends_on_the_name_alone() -> None:
    one = Cell.of("encoder/alibi/layernorm/post/scaled_dot/mha/full/geglu")
    torch.manual_seed(5)
    first = Case.of(one)
    torch.manual_seed(6)
    second, other = Case.of(one), Case.of(replace(one, variant="no_attention_bias"))
    assert torch.equal(first.run("left"), second.run("left"))
    assert first.texts == second.texts != other.texts
    for name, parameter in first.model.named_parameters():
        assert ((parameter - parameter.round()).abs() > 0).all(), name


def test_distance() -> None:
    ones = torch.ones(3)
    assert distance(ones, ones) == 0
    assert distance(100 * ones, 50 * ones) == 1
    assert distance(ones * 0.1, ones * 0.2) == pytest.approx(0.1)
    assert distance(ones, torch.ones(2)) == float("inf")
    assert not distance(ones * float("nan"), ones) <= 1
