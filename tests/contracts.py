"""The contract of all parts, and the parts that must fulfil it.

Each `..._RECORDS` has every example of every member of a union, so a new part joins by itself.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import FrozenInstanceError, replace
from itertools import product
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from addnorm import parts
from addnorm.nn.attention import (
    CoreConfig,
    DifferentialCoreConfig,
    HeadShape,
    PatternConfig,
    ScoreConfig,
    SinkCoreConfig,
)
from addnorm.nn.context import Context
from addnorm.nn.heads import HeadConfig, TokenHeadConfig
from addnorm.nn.masks import Causal, Full, Mask
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.norms import NormConfig
from addnorm.nn.positions import PositionConfig
from addnorm.nn.positions.position import BuildContext
from addnorm.nn.residuals import ResidualConfig


def records(union: Any) -> list[Any]:
    """Every example of every one of our own configurations of a family, the usual one first."""
    found: dict[str, Any] = {}
    for member in parts.members(union):
        found |= parts.examples(member)
    return list(found.values())


NORM_RECORDS = records(NormConfig)
RESIDUAL_RECORDS = records(ResidualConfig)
SCORE_RECORDS = records(ScoreConfig)
PATTERN_RECORDS = records(PatternConfig)
FEEDFORWARD_RECORDS = records(AnyFeedForwardConfig)
POSITION_RECORDS = records(PositionConfig)
CORE_RECORDS = records(CoreConfig)
SOFTMAX_CORES = [
    core for core in CORE_RECORDS if not isinstance(core, DifferentialCoreConfig | SinkCoreConfig)
]
"""Those that compute one softmax over the keys for each head, and so agree with each other."""
HEAD_RECORDS = [
    replace(head, tied=False) if isinstance(head, TokenHeadConfig) and head.tied else head
    for head in records(HeadConfig)
]


def members(union: Any) -> set[type]:
    """Our own configurations of a family."""
    return set(parts.members(union))


def build_core(core: Any, dropout: float, score: nn.Module, heads: HeadShape | None = None) -> Any:
    """A core with its score, in the first layer."""
    return core.build(heads or HeadShape(2, 2, 4), score, dropout, 0)


def named(records: Sequence[Any]) -> list[Any]:
    """The records as test parameters that say what they are."""
    return [pytest.param(record, id=_name(record)) for record in records]


def combined(*axes: Collection[Any]) -> list[Any]:
    """All combinations of parameters with names; those that bring no new value are slow.

    The fast ones have every value of every axis in turn, as many as the longest axis has values.
    """
    fast = {tuple(i % len(axis) for axis in axes) for i in range(max(map(len, axes)))}
    params = [
        [pytest.param(one, id=one) if isinstance(one, str) else one for one in axis]
        for axis in axes
    ]
    return [
        pytest.param(
            *(value for one in chosen for value in one.values),
            id="-".join(str(one.id) for one in chosen),
            marks=() if places in fast else pytest.mark.slow,
        )
        for places in product(*(range(len(axis)) for axis in axes))
        for chosen in [[axis[i] for axis, i in zip(params, places, strict=True)]]
    ]


def _name(record: Any) -> str:
    extras = [
        str(getattr(record, f))
        for f in ("activation", "pooling", "bias", "norms", "softcap", "layout")
        if hasattr(record, f)
    ]
    return "-".join([record.kind, *extras])


def check_records(union: Any, records: Sequence[Any]) -> None:
    """Every member of the union has a record, and every record survives a round trip."""
    assert members(union) == {type(record) for record in records}
    for record in records:
        check_config(record, union)


def check_config(config: Any, kind: Any) -> None:
    """JSON and back gives an equal value, an unknown field is refused, and no field can be set."""
    adapter = TypeAdapter[Any](kind)
    written = json.loads(adapter.dump_json(config))
    assert adapter.validate_python(written) == config
    with pytest.raises(ValidationError, match="no_such_field"):
        adapter.validate_python({**written, "no_such_field": 1})
    with pytest.raises(FrozenInstanceError):
        setattr(config, next(iter(written)), None)


def check_module(
    build: Callable[[], nn.Module], call: Callable[[nn.Module, torch.dtype], Tensor]
) -> None:
    """A module keeps its type, sends a gradient to every parameter, and lives in its state dict."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        module = started(build()).to(dtype)
        out = call(module, dtype)
        assert out.dtype == dtype
        assert out.isfinite().all()
        (out.double() * torch.randn_like(out, dtype=torch.float64)).sum().backward()
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            # Softmax is blind to what all keys share, and xIELU's α_n to positive numbers.
            if not name.endswith(("k_proj.bias", "activation.alpha_n")):
                assert parameter.grad.abs().sum() > 0, name
    first, second = started(build()).eval(), started(build()).eval()
    second.load_state_dict(first.state_dict(), strict=True)
    torch.manual_seed(1)
    expected = call(first, torch.float32)
    torch.manual_seed(1)
    torch.testing.assert_close(call(second, torch.float32), expected, rtol=0, atol=0)


def started(module: nn.Module) -> nn.Module:
    """The module with every parameter drawn anew, so that no gain is one and no bias is zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
            if parameter.ndim == 1:
                parameter.add_(1.0)
    return module


def check_gradients(
    module: nn.Module, f: Callable[..., Tensor], *inputs: Tensor, twice: bool
) -> None:
    """`gradcheck` in float64, for inputs and parameters together, along a random direction."""
    module = started(module).double()
    shapes = {name: value.shape for name, value in module.named_parameters()}
    weights = torch.cat(
        [torch.zeros(0).double(), *(p.detach().flatten() for p in module.parameters())]
    )
    inputs = tuple(x.double().requires_grad_() for x in inputs)

    def run(weights: Tensor, *inputs: Tensor) -> Tensor:
        pieces = weights.split([shape.numel() for shape in shapes.values()])
        parameters = {
            f"module.{name}": piece.view(shape)
            for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
        }
        return torch.func.functional_call(_Call(module, f), parameters, inputs)

    tight: dict[str, Any] = {"atol": 1e-6, "rtol": 1e-4}
    everything = (weights.requires_grad_(weights.numel() > 0), *inputs)
    assert torch.autograd.gradcheck(run, everything, fast_mode=True, **tight)
    if twice:
        assert torch.autograd.gradgradcheck(run, everything, fast_mode=True, **tight)


class _Call(nn.Module):
    def __init__(self, module: nn.Module, f: Callable[..., Tensor]) -> None:
        super().__init__()
        self.module = module
        self.f = f

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.f(self.module, *inputs)


def build_context(
    d_model: int, n_heads: int, *, max_len: int = 8, causal: bool = True
) -> BuildContext:
    """A place for a position scheme in a model of this width."""
    d_head = d_model // n_heads
    return BuildContext(
        d_model=d_model,
        max_len=max_len,
        n_heads=n_heads,
        d_head=d_head,
        causal=causal,
        scale=d_head**-0.5,
    )


def context(batch: int, seq: int, mask: Mask | None = None, **kwargs: Any) -> Context:
    """The context of `seq` tokens, its mask evaluated as a stack would."""
    tokens = torch.zeros(batch, seq, dtype=torch.long)
    return Context.over(tokens, mask or Causal(), **kwargs).restrict(Full())
