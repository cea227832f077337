"""State dicts of torch's Transformer layers: round trips."""

import copy

import pytest
import torch
from tests.contracts import started
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.convert.families.torch_transformer import (
    stack_from_torch,
    stacks_from_torch,
    torch_state,
    torch_states,
)
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig, DotConfig, WindowPatternConfig
from addnorm.nn.blocks import Stack
from addnorm.nn.context import Context
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.masks import Causal, Full
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import DeepNormConfig, ParallelConfig

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:.*enable_nested_tensor is True:UserWarning"),
]

D, HEADS = 12, 3
VALID = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
MEMORY_VALID = torch.tensor([[True, True, False, False], [True] * 4])
CASES = {
    "post": {},
    "pre-gelu": {"norm_first": True, "activation": "gelu"},
    "no-bias": {"bias": False, "layer_norm_eps": 1e-3},
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def layer_settings(case: dict[str, object]) -> dict[str, object]:
    return {"dim_feedforward": 17, "dropout": 0.0, "batch_first": True, **case}


def options(case: dict[str, object]) -> dict[str, object]:
    """What of a case no tensor says."""
    said = {"norm_first": "norm_first", "activation": "activation", "layer_norm_eps": "eps"}
    return {ours: case[theirs] for theirs, ours in said.items() if theirs in case}


def tempered(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for weight in started(module).parameters():
            weight.mul_(0.5)
    return module.double().train()  # never torch's fast path of evaluation


def norm(case: dict[str, object]) -> nn.LayerNorm:
    eps, bias = case.get("layer_norm_eps", 1e-5), case.get("bias", True)
    return nn.LayerNorm(D, eps=eps, bias=bias)  # type: ignore[arg-type]


def encoder(case: dict[str, object], *, final: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(D, HEADS, **layer_settings(case))  # type: ignore[arg-type]
    return tempered(nn.TransformerEncoder(layer, 2, norm(case) if final else None))


def decoder(case: dict[str, object], *, final: bool) -> nn.Module:
    layer = nn.TransformerDecoderLayer(D, HEADS, **layer_settings(case))  # type: ignore[arg-type]
    return tempered(nn.TransformerDecoder(layer, 2, norm(case) if final else None))


def check_state(found: dict[str, Tensor], theirs: nn.Module) -> None:
    """Bit for bit theirs."""
    expected = theirs.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    copy.deepcopy(theirs).load_state_dict(found, strict=True)


def decoded(stack: Stack, x: Tensor, memory: Tensor) -> Tensor:
    ctx = Context.over(torch.zeros(2, 5, dtype=torch.long), Causal(), valid=VALID)
    return stack(x, ctx.attending(memory, MEMORY_VALID))


@cases
@pytest.mark.parametrize("final", [False, True])
def test_encoder(case: dict[str, object], final: bool) -> None:
    theirs = encoder(case, final=final)
    stack = stack_from_torch(theirs.state_dict(), n_heads=HEADS, **options(case))  # type: ignore[arg-type]
    x = torch.randn(2, 5, D, dtype=torch.float64)
    ctx = Context.over(torch.zeros(2, 5, dtype=torch.long), Full(), valid=VALID)
    expected = theirs(x, src_key_padding_mask=~VALID)
    assert_close(stack(x, ctx)[VALID], expected[VALID], rtol=0, atol=1e-12)
    check_state(torch_state(stack), theirs)


@cases
@pytest.mark.parametrize("final", [False, True])
def test_decoder(case: dict[str, object], final: bool) -> None:
    theirs = decoder(case, final=final)
    stack = stack_from_torch(theirs.state_dict(), n_heads=HEADS, **options(case))  # type: ignore[arg-type]
    x = torch.randn(2, 5, D, dtype=torch.float64)
    memory = torch.randn(2, 4, D, dtype=torch.float64)
    expected = theirs(
        x,
        memory,
        tgt_mask=~torch.ones(5, 5).tril().bool(),
        tgt_key_padding_mask=~VALID,
        memory_key_padding_mask=~MEMORY_VALID,
    )
    assert_close(decoded(stack, x, memory)[VALID], expected[VALID], rtol=0, atol=1e-12)
    check_state(torch_state(stack), theirs)


@cases
def test_both(case: dict[str, object]) -> None:
    """`nn.Transformer` has a final norm in each half, wherever the others stand."""
    depth = {"num_encoder_layers": 3, "num_decoder_layers": 2}
    theirs = tempered(nn.Transformer(D, HEADS, **depth, **layer_settings(case)))  # type: ignore[arg-type]
    encoder, decoder = stacks_from_torch(
        theirs.state_dict(),
        n_heads=HEADS,
        **options(case),  # type: ignore[arg-type]
    )
    x = torch.randn(2, 5, D, dtype=torch.float64)
    source = torch.randn(2, 4, D, dtype=torch.float64)
    expected = theirs(
        source,
        x,
        tgt_mask=~torch.ones(5, 5).tril().bool(),
        src_key_padding_mask=~MEMORY_VALID,
        tgt_key_padding_mask=~VALID,
        memory_key_padding_mask=~MEMORY_VALID,
    )
    ctx = Context.over(torch.zeros(2, 4, dtype=torch.long), Full(), valid=MEMORY_VALID)
    got = decoded(decoder, x, encoder(source, ctx))
    assert_close(got[VALID], expected[VALID], rtol=0, atol=1e-12)
    check_state(torch_states(encoder, decoder), theirs)


def test_tensors_of_its_own() -> None:
    theirs = encoder({}, final=False)
    stack = stack_from_torch(theirs.state_dict(), n_heads=HEADS)
    before = {name: w.clone() for name, w in theirs.state_dict().items()}
    with torch.no_grad():
        for weight in stack.parameters():
            assert weight.requires_grad
            weight.add_(1.0)
    assert all(torch.equal(w, before[name]) for name, w in theirs.state_dict().items())


def test_tensors_of_other_modules_are_named() -> None:
    state = encoder({}, final=True).state_dict()
    with pytest.raises(InputError, match=r"unexpected layers\.0\.extra"):
        stack_from_torch({**state, "layers.0.extra": torch.ones(1)}, n_heads=HEADS)
    del state["layers.1.norm2.bias"]
    with pytest.raises(InputError, match=r"missing layers\.1\.norm2\.bias"):
        stack_from_torch(state, n_heads=HEADS)
    with pytest.raises(InputError, match=r"layers\.0\.linear1\.weight is missing"):
        stack_from_torch({}, n_heads=HEADS)
    with pytest.raises(InputError, match="use stacks_from_torch"):
        stack_from_torch(nn.Transformer(D, HEADS, 1, 1, 8).state_dict(), n_heads=HEADS)
    with pytest.raises(ValueError, match="does not divide into n_heads = 5"):
        stack_from_torch(encoder({}, final=False).state_dict(), n_heads=5)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"position": RotaryConfig()}, "no Rotary"),
        ({"feedforward": FeedForwardConfig(bias=False)}, "biases everywhere or nowhere"),
        ({"norm": RMSNormConfig()}, "no RMSNorm"),
        ({"feedforward": GatedFeedForwardConfig()}, "no GatedFeedForward"),
        ({"residual": DeepNormConfig()}, "no DeepNorm"),
        ({"residual": ParallelConfig()}, "no ParallelBlock"),
        ({"attention": AttentionConfig(n_heads=2, n_kv_heads=1)}, "as many key/value heads"),
        ({"attention": AttentionConfig(n_heads=2, score=DotConfig())}, "and no others"),
        ({"attention": AttentionConfig(n_heads=2, pattern=WindowPatternConfig(size=2))}, "Window"),
        ({"attention": AttentionConfig(n_heads=2, qk_norm=RMSNormConfig())}, "no RMSNorm"),
    ],
)
def test_parts_that_torch_lacks_are_refused(changes: dict[str, object], match: str) -> None:
    own = {"attention": AttentionConfig(n_heads=2), "feedforward": FeedForwardConfig(), **changes}
    stack = DecoderConfig(d_model=8, n_layers=1, **own).build(5).stack  # type: ignore[arg-type]
    with pytest.raises(InputError, match=match):
        torch_state(stack)
