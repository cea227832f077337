"""Our stacks against torch's Transformer layers, with the same weights."""

import dataclasses

import pytest
import torch
from tests.contracts import started
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.models.encoder_decoder import EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.blocks import Stack
from addnorm.nn.context import Context
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.masks import Causal, Full
from addnorm.nn.positions import NoPosition
from addnorm.nn.residuals import Depth, PostNormConfig, PreNormConfig

pytestmark = pytest.mark.parity
D, HEADS, LAYERS = 16, 4, 2
SETTINGS = {
    "d_model": D,
    "nhead": HEADS,
    "dim_feedforward": 40,
    "dropout": 0.0,
    "batch_first": True,
}
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
VALID = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False, True, True, True, True, True]])
MEMORY_VALID = torch.tensor(
    [[True] * 5, [True, True, False, False, False], [False] * 3 + [True] * 2]
)
NAMES = {
    "self_attn": "attention",
    "multihead_attn": "cross_attention",
    "linear1": "feedforward.up_proj",
    "linear2": "feedforward.down_proj",
}

everything = pytest.mark.parametrize(
    ("pre", "activation", "dtype"),
    [(p, a, d) for p in (False, True) for a in ("relu", "gelu") for d in TOLERANCE],
)


def translated(theirs: nn.Module, *, cross: bool) -> dict[str, Tensor]:
    """Their state dict under our names."""
    weights = {f"norm.{k}": v for k, v in theirs.norm.state_dict().items()} if theirs.norm else {}
    for i, layer in enumerate(theirs.layers):
        own = renamed(unpacked(layer.state_dict()), cross=cross)
        weights |= {f"blocks.{i}.{name}": value for name, value in own.items()}
    return weights


def unpacked(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their `in_proj`, which holds all three projections, cut into three."""
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        if "in_proj_" in name:
            for part, piece in zip("qkv", value.chunk(3), strict=True):
                out[name.replace("in_proj_", f"{part}_proj.")] = piece
        else:
            out[name] = value
    return out


def renamed(state: dict[str, Tensor], *, cross: bool) -> dict[str, Tensor]:
    """One layer's weights, each module under our name."""
    second = "cross_attention" if cross else "feedforward"
    names = {**NAMES, "norm1": "attention_residual.norm", "norm2": f"{second}_residual.norm"}
    names["norm3"] = "feedforward_residual.norm"
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        module, _, rest = name.partition(".")
        out[f"{names[module]}.{rest}"] = value
    return out


def ours(theirs: nn.Module, *, pre: bool, activation: str, cross: bool) -> Stack:
    config = EncoderDecoderConfig(
        d_model=D,
        n_layers=LAYERS,
        attention=AttentionConfig(n_heads=HEADS),
        feedforward=FeedForwardConfig(d_ff=40, activation=activation),  # type: ignore[arg-type]
        residual=PreNormConfig() if pre else PostNormConfig(),
        dropout=0.0,
    )
    stack = (
        config.build_cross_stack(NoPosition(), Depth(decoder=LAYERS, causal=True))
        if cross
        else config.build_stack(NoPosition(), Depth(encoder=LAYERS))
    )
    stack.load_state_dict(translated(theirs, cross=cross), strict=True)
    return stack


def agree(pairs: list[tuple[Tensor, Tensor]], dtype: torch.dtype) -> None:
    for got, expected in pairs:
        assert got.dtype == dtype
        assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def tempered(theirs: nn.Module) -> nn.Module:
    """Random gains and biases, and matrices small enough that float32 keeps six places."""
    with torch.no_grad():
        for parameter in started(theirs).parameters():
            parameter.mul_(0.25 if parameter.ndim == 2 else 0.5)
    return theirs


@everything
@pytest.mark.parametrize("causal", [False, True])
def test_encoder(pre: bool, activation: str, dtype: torch.dtype, causal: bool) -> None:
    layer = nn.TransformerEncoderLayer(**SETTINGS, norm_first=pre, activation=activation)
    norm = nn.LayerNorm(D) if pre else None
    theirs = tempered(nn.TransformerEncoder(layer, LAYERS, norm, enable_nested_tensor=False))
    stack = ours(theirs, pre=pre, activation=activation, cross=False).to(dtype)
    theirs = theirs.to(dtype).train()  # never torch's fast path of evaluation
    x = torch.randn(3, 6, D, dtype=dtype)
    mask = ~torch.ones(6, 6).tril().bool() if causal else None
    valid = VALID[:2] if causal else VALID  # torch gives NaN where nothing may be seen
    x = x[: len(valid)]
    expected = theirs(x, mask=mask, src_key_padding_mask=~valid)
    tokens = torch.zeros(len(x), 6, dtype=torch.long)
    ctx = Context.over(tokens, Causal() if causal else Full(), valid=valid)
    agree([(stack(x, ctx)[valid], expected[valid])], dtype)
    agree([(stack.eval()(x, ctx)[valid], expected[valid])], dtype)


@everything
def test_decoder(pre: bool, activation: str, dtype: torch.dtype) -> None:
    layer = nn.TransformerDecoderLayer(**SETTINGS, norm_first=pre, activation=activation)
    theirs = tempered(nn.TransformerDecoder(layer, LAYERS, nn.LayerNorm(D) if pre else None))
    stack = ours(theirs, pre=pre, activation=activation, cross=True).to(dtype)
    theirs = theirs.to(dtype).train()
    x, memory = torch.randn(3, 6, D, dtype=dtype), torch.randn(3, 5, D, dtype=dtype)
    valid = VALID.clone()
    valid[2, 0] = True
    ahead = ~torch.ones(6, 6).tril().bool()
    expected = theirs(
        x,
        memory,
        tgt_mask=ahead,
        tgt_key_padding_mask=~valid,
        memory_key_padding_mask=~MEMORY_VALID,
    )
    ctx = Context.over(torch.zeros(3, 6, dtype=torch.long), Causal(), valid=valid)
    got = stack(x, ctx.attending(memory, MEMORY_VALID))
    agree([(got[valid], expected[valid])], dtype)


@pytest.mark.parametrize("pre", [False, True])
def test_gradients(pre: bool) -> None:
    layer = nn.TransformerEncoderLayer(**SETTINGS, norm_first=pre)
    theirs = tempered(
        nn.TransformerEncoder(
            layer, LAYERS, nn.LayerNorm(D) if pre else None, enable_nested_tensor=False
        )
    )
    stack = ours(theirs, pre=pre, activation="relu", cross=False).double()
    theirs = theirs.double()
    x = torch.randn(2, 6, D, dtype=torch.float64)
    ctx = Context.over(torch.zeros(2, 6, dtype=torch.long), Full())
    theirs(x).square().sum().backward()
    stack(x, ctx).square().sum().backward()
    holder = dataclasses.make_dataclass("Holder", ["layers", "norm"])

    class Gradients:
        def __init__(self, module: nn.Module) -> None:
            self.module = module

        def state_dict(self) -> dict[str, Tensor]:
            return {
                name: p.grad for name, p in self.module.named_parameters() if p.grad is not None
            }

    grads = holder(
        [Gradients(m) for m in theirs.layers], Gradients(theirs.norm) if theirs.norm else None
    )
    expected = translated(grads, cross=False)
    own = {name: p.grad for name, p in stack.named_parameters()}
    assert own.keys() == expected.keys()
    agree([(own[name], expected[name]) for name in own], torch.float64)
