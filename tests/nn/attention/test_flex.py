"""FlexAttention against the eager core: all masks, ALiBi and T5, shared key/value heads."""

from dataclasses import replace

import pytest
import torch
from tests.contracts import build_core, combined
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.nn import masks
from addnorm.nn.attention import EagerCore, FlexCore, FlexCoreConfig, SDPACore, flex
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.context import Context
from addnorm.nn.masks import Causal, Full, Mask, Segments, Window
from addnorm.nn.positions import ALiBi, NoPosition, Position, T5Bias, TransformerXL
from addnorm.nn.positions.position import BuildContext, PairBias

pytestmark = [
    pytest.mark.usefixtures("types_unchecked"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]

SEQ = 21
VALID = torch.ones(2, SEQ, dtype=torch.bool)
VALID[0, :4] = VALID[1, 18:] = False
IDS = (torch.arange(SEQ) // 7).expand(2, -1)
MASKS: dict[str, Mask] = {
    "full": Full(),
    "causal": Causal(),
    "window": Causal() & Window(3),
    "segments": Causal() & Segments(IDS),
}
POSITIONS = {
    "none": NoPosition,
    "alibi": lambda: ALiBi(4),
    "t5": lambda: T5Bias(4, buckets=8, max_distance=16, causal=False),
}


def context(mask: Mask, valid: Tensor | None, past: int) -> Context:
    ctx = Context.over(torch.zeros(2, SEQ - past), mask, valid=valid, past=past)
    return ctx.restrict(Full())


def heads(n: int, seq: int) -> Tensor:
    return torch.randn(2, n, seq, 16)


@torch.no_grad()
@pytest.mark.parametrize(
    ("position", "name", "kv_heads", "read"),
    combined(POSITIONS, MASKS, ["4", "2"], ["all", "padded", "one", "cached", "padded and cached"]),
)
def test_equals_the_eager_core(position: str, name: str, kv_heads: str, read: str) -> None:
    torch.manual_seed(0)
    padded, past = "padded" in read, {"one": 20, "cached": 9, "padded and cached": 9}.get(read, 0)
    ctx = context(MASKS[name], VALID if padded else None, past)
    q, k, v = heads(4, SEQ - past), heads(int(kv_heads), SEQ), heads(int(kv_heads), SEQ)
    scheme: Position = POSITIONS[position]()
    bias = scheme.score_bias(q, ctx)
    assert isinstance(bias, PairBias | None)
    score = DotProduct(0.4)
    got = FlexCore(score).fused(q, k, v, ctx.mask, bias)
    assert_close(got, EagerCore(score)(q, k, v, ctx.mask, bias), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_weights_that_it_shows_have_the_bias() -> None:
    ctx, q, score = context(Causal(), None, 0), heads(4, SEQ), DotProduct(0.4)
    bias = ALiBi(4).score_bias(q, ctx)
    expected = EagerCore(score).weights(q, q, ctx.mask, bias)
    assert_close(FlexCore(score).weights(q, q, ctx.mask, bias), expected)


def test_blocks_made_in_validation_serve_training() -> None:
    with torch.inference_mode():
        q = heads(4, 11)
        FlexCore().fused(q, q, q, Causal())
    kept = flex._blocks(Causal(), 2, 11, 11, q.device)
    assert flex._blocks.cache_info().hits
    assert not kept.kv_indices.is_inference()


@torch.no_grad()
@pytest.mark.parametrize("name", MASKS)
def test_masks_in_tiles_are_asked_pair_by_pair(name: str) -> None:
    expected = context(MASKS[name], VALID, 0).mask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "DENSE_LIMIT", 1)
        tiled = context(MASKS[name], VALID, 0).mask
    assert isinstance(tiled, masks.Tiled)
    q, k, v = heads(4, SEQ), heads(4, SEQ), heads(4, SEQ)
    got = FlexCore().fused(q, k, v, tiled)
    assert_close(got, EagerCore()(q, k, v, expected), rtol=1e-5, atol=1e-5)


def test_a_cpu_and_dropout_and_other_biases_take_the_plain_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flex, "fused_flex_attention", None)
    q = heads(4, SEQ).requires_grad_()
    core = build_core(FlexCoreConfig(), 0.0, DotProduct(0.25))
    got = core(q, q, q, Causal())
    assert_close(got, SDPACore(DotProduct(0.25))(q, q, q, Causal()))
    got.sum().backward()
    there = q.detach().to("meta")
    build_context = BuildContext(
        d_model=64, max_len=SEQ, n_heads=4, d_head=16, causal=True, scale=0.25
    )
    scheme = TransformerXL(build_context).in_layer(0).to("meta")
    ctx = context(Causal(), None, 0)
    bias = scheme.score_bias(there, replace(ctx, kv_positions=ctx.kv_positions.to("meta")))
    assert not isinstance(bias, PairBias)
    assert core(there, there, there, Causal(), bias).shape == q.shape
    dropping = build_core(FlexCoreConfig(), 0.5, DotProduct(0.25))
    assert dropping(there, there, there, Causal()).shape == q.shape
    with pytest.raises(TypeError):  # the kernel, which is gone
        dropping.eval()(there, there, there, Causal())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", ["full", "causal", "window"])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_gpu_trains_as_the_eager_core_does(position: str, name: str, kv_heads: int) -> None:
    torch.manual_seed(0)
    scheme: Position = POSITIONS[position]()
    inputs = [heads(4, SEQ), heads(kv_heads, SEQ), heads(kv_heads, SEQ)]

    def run(core: nn.Module, device: str) -> list[Tensor]:
        there = Context.over(
            torch.zeros(2, SEQ, device=device), MASKS[name], valid=VALID.to(device)
        ).restrict(Full())
        leaves = [x.to(device, copy=True).requires_grad_() for x in inputs]
        learned = list(scheme.to(device).parameters())
        out = core(*leaves, there.mask, scheme.score_bias(leaves[0], there))
        return [out, *torch.autograd.grad(out.square().sum(), [*leaves, *learned])]

    wanted = run(EagerCore(), "cpu")
    for a, b in zip(run(FlexCore(), "cuda"), wanted, strict=True):
        assert (a.cpu() - b).norm() <= 1e-2 * b.norm()
