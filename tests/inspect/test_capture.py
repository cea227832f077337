"""Capturing attention: correct weights, and no effect on the model."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.inspect.capture import attention_weights, expert_gates
from addnorm.models import DecoderConfig, DecoderModel, EncoderDecoderConfig
from addnorm.nn.attention import (
    AdditiveConfig,
    AttentionConfig,
    BilinearConfig,
    DotConfig,
    EagerCoreConfig,
    ScaledDotConfig,
    SDPACoreConfig,
    WindowPatternConfig,
    tiles,
)
from addnorm.nn.attention.core import EagerCore, SDPACore
from addnorm.nn.attention.differential import DifferentialCoreConfig
from addnorm.nn.attention.flex import FlexCoreConfig
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.attention.outputs import GatedOutputConfig
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.masks import Full
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.positions import (
    ALiBiConfig,
    KERPLEConfig,
    LearnedConfig,
    NoPositionConfig,
    RotaryConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.types import HeadShape


@pytest.mark.parametrize("core", [SDPACoreConfig(), EagerCoreConfig()])
def test_weights_of_a_decoder_are_causal_and_sum_to_one(
    core: SDPACoreConfig | EagerCoreConfig,
) -> None:
    attention = AttentionConfig(n_heads=4, n_kv_heads=2, core=core)
    model = DecoderConfig(d_model=16, n_layers=2, attention=attention).build(11).eval()
    tokens = torch.randint(0, 11, (3, 6))
    plain = model(tokens)
    with attention_weights(model) as by_module:
        assert torch.equal(model(tokens), plain)
    assert list(by_module) == [f"stack.blocks.{i}.attention" for i in range(2)]
    for weights in by_module.values():
        assert weights.shape == (3, 4, 6, 6)
        assert torch.equal(weights.triu(1), torch.zeros_like(weights))
        assert torch.allclose(weights.sum(-1), torch.ones(3, 4, 6))


def test_cross_attention_never_looks_at_padding() -> None:
    model = EncoderDecoderConfig(d_model=16, n_layers=1).build(11).eval()
    valid = torch.tensor([[True, True, False], [True, True, True]])
    source = torch.randint(0, 11, (2, 3))
    with attention_weights(model) as by_module:
        model(source, torch.randint(0, 11, (2, 4)), source_valid=valid)
    weights = by_module["decoder.blocks.0.cross_attention"]
    assert weights.shape == (2, 8, 4, 3)
    assert (weights[0, :, :, 2] == 0).all()
    assert torch.allclose(weights.sum(-1), torch.ones(2, 8, 4))


def test_hooks_are_removed_even_after_an_error() -> None:
    model = DecoderConfig(d_model=16, n_layers=1).build(5).eval()
    with pytest.raises(RuntimeError, match="stop"), attention_weights(model):
        raise RuntimeError("stop")
    with attention_weights(model) as by_module:
        pass
    model(torch.tensor([[1, 2]]))
    assert by_module == {}


class Negated(nn.Module):
    """A custom score: the negative square of the distance."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return -(q[:, :, :, None] - k[:, :, None]).square().sum(-1)


@dataclass(frozen=True)
class NegatedConfig:
    def build(self, n_heads: int, d_head: int) -> nn.Module:
        return Negated()


SCORES: dict[str, Any] = {
    "scaled dot": ScaledDotConfig(),
    "factor": ScaledDotConfig(factor=0.9),
    "softcap": ScaledDotConfig(softcap=0.7),
    "dot": DotConfig(),
    "bilinear": BilinearConfig(),
    "additive": AdditiveConfig(),
    "own": NegatedConfig(),
}
POSITIONS: dict[str, Any] = {
    "none": NoPositionConfig(),
    "rotary": RotaryConfig(),
    "learned": LearnedConfig(),
    "alibi": ALiBiConfig(),
    "kerple": KERPLEConfig(),
    "t5": T5BiasConfig(buckets=4, max_distance=9),
    "transformer_xl": TransformerXLConfig(),
}


def _values(attention: MultiHead, x: Tensor) -> Tensor:
    """The values of every query head, from what the layer read."""
    v = attention.keys_values(x)[1]
    return v.repeat_interleave(attention.q_proj.out_features // attention.k_proj.out_features, 1)


def _output_of(model: DecoderModel, tokens: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of every layer: the output by its shown weights, and the output that it had."""
    by_weights: dict[str, Tensor] = {}
    had: dict[str, Tensor] = {}

    def keep(name: str, attention: Any) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
            had[name] = out
            x = args[0]
            heads = shown[name] @ _values(attention, x)
            by_weights[name] = attention.merge(attention.output(heads, x))

        return attention.register_forward_hook(hook)

    with attention_weights(model) as shown:
        hooks = [keep(n, m) for n, m in model.named_modules() if isinstance(m, MultiHead)]
        model(tokens)
    for hook in hooks:
        hook.remove()
    return by_weights, had


def _check_reproduced(**attention: Any) -> None:
    position = attention.pop("position", NoPositionConfig())
    config = DecoderConfig(
        d_model=16,
        n_layers=2,
        max_len=16,
        position=position,
        attention=AttentionConfig(n_heads=4, n_kv_heads=2, **attention),
    )
    model = config.build(11).double().eval()
    for parameter in model.parameters():
        parameter.data += 0.5 * torch.randn_like(parameter)
    by_weights, had = _output_of(model, torch.randint(0, 11, (2, 9)))
    assert len(had) == 2
    for name, output in had.items():
        torch.testing.assert_close(by_weights[name], output, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("score", SCORES)
def test_weights_times_values_are_the_output_for_every_score(score: str) -> None:
    _check_reproduced(score=SCORES[score])


@pytest.mark.parametrize("position", POSITIONS)
def test_weights_times_values_are_the_output_for_every_position(position: str) -> None:
    _check_reproduced(position=POSITIONS[position])


@pytest.mark.parametrize(
    "parts",
    [
        {"core": FlexCoreConfig()},
        {"core": EagerCoreConfig()},
        {"core": SDPACoreConfig(), "score": BilinearConfig()},
        {"pattern": WindowPatternConfig(size=3)},
        {"output": GatedOutputConfig()},
        {"output": GatedOutputConfig(per="head"), "position": ALiBiConfig()},
    ],
)
def test_weights_times_values_are_the_output_for_every_core_and_gate(parts: Any) -> None:
    _check_reproduced(**parts)


@pytest.mark.parametrize("score", ["scaled dot", "bilinear", "additive", "softcap"])
def test_weights_equal_those_of_tiled_attention(
    score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "DENSE_LIMIT", 64)
    _check_reproduced(score=SCORES[score], position=ALiBiConfig())


def test_differential_attention_shows_both_maps_of_every_pair() -> None:
    attention = AttentionConfig(n_heads=4, core=DifferentialCoreConfig())
    config = DecoderConfig(d_model=16, n_layers=1, attention=attention)
    model = config.build(11).double().eval()
    [block] = model.stack.blocks
    recorded: list[Tensor] = []
    block.attention.core.register_forward_hook(lambda _, args, out: recorded.extend([args[2], out]))
    with attention_weights(model) as by_module:
        model(torch.randint(0, 11, (2, 5)))
    [weights] = by_module.values()
    assert torch.allclose(weights.sum(-1), weights.new_ones(2, 4, 5))
    v, out = recorded
    core = block.attention.core
    pairs = torch.cat([v[:, ::2], v[:, 1::2]], dim=-1)
    mixed = (weights[:, ::2] - core.strength.double() * weights[:, 1::2]) @ pairs
    mixed = core.norm(mixed) * (1 - core.lambda_init)
    first, second = mixed.chunk(2, dim=-1)
    expected = torch.stack([first, second], dim=2).flatten(1, 2)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)


def test_rows_that_share_a_memory_have_their_own_weights() -> None:
    model = EncoderDecoderConfig(d_model=16, n_layers=1).build(11).double().eval()
    source, target = torch.randint(0, 11, (2, 6)), torch.randint(0, 11, (6, 4))
    memory = model.encode(source)
    with attention_weights(model) as shared:
        model.decode(target, memory)
    with attention_weights(model) as apart:
        model.decode(target, memory.repeat_interleave(3, dim=0))
    name = "decoder.blocks.0.cross_attention"
    assert shared[name].shape == (6, 8, 4, 6)
    torch.testing.assert_close(shared[name], apart[name])


class Silent(nn.Module):
    """A custom core that does not show its weights."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any = None) -> Tensor:
        return v


@dataclass(frozen=True)
class SilentConfig:
    def build(self, heads: HeadShape, score: nn.Module, dropout: float, layer: int) -> nn.Module:
        return Silent()


def test_a_core_that_cannot_show_its_weights_is_rejected_by_name() -> None:
    attention = AttentionConfig(n_heads=2, core=SilentConfig())
    model = DecoderConfig(d_model=8, n_layers=1, attention=attention).build(5)
    with (
        pytest.raises(InputError, match=r"stack.blocks.0.attention.core \(Silent\) does not show"),
        attention_weights(model),
    ):
        pass


def test_recorded_gates_reproduce_the_output_of_the_experts() -> None:
    moe = MixtureOfExpertsConfig(n_experts=3, top_k=2)
    model = DecoderConfig(d_model=8, n_layers=1, feedforward=moe).build(5).double().eval()
    mixture = model.stack.blocks[0].feedforward
    recorded: list[Tensor] = []
    mixture.register_forward_hook(lambda _, args, out: recorded.extend([args[0], out]))
    with expert_gates(model) as by_module:
        model(torch.tensor([[1, 2, 3]]))
    gates, chosen = by_module["stack.blocks.0.feedforward"]
    assert gates.shape == chosen.shape == (1, 3, 2)
    x, out = recorded
    outputs = torch.stack([expert(x) for expert in mixture.experts], dim=2)
    taken = outputs.gather(2, chosen[..., None].expand(*chosen.shape, 8))
    torch.testing.assert_close(
        (gates.double()[..., None] * taken).sum(2), out, rtol=1e-6, atol=1e-7
    )


class DoubledCore(SDPACore):
    """A core with its own forward and inherited weights."""

    def forward(self, *inputs: Any) -> Tensor:
        return 2.0 * super().forward(*inputs)


def test_weights_that_may_differ_from_the_used_ones_are_rejected() -> None:
    config = DecoderConfig(d_model=8, n_layers=1, attention=AttentionConfig(n_heads=2, dropout=0.5))
    model, tokens = config.build(7), torch.tensor([[1, 2, 3]])
    with pytest.raises(InputError, match=r"model\.eval"), attention_weights(model.train()):
        pass
    core = model.eval().stack.blocks[0].attention.core
    with attention_weights(model) as by_module:
        model(tokens)
    assert len(by_module) == 1
    core.__class__ = DoubledCore
    with pytest.raises(InputError, match="DoubledCore"), attention_weights(model):
        pass


HOOKED: dict[str, tuple[Any, str]] = {
    "sdpa score": ({"score": BilinearConfig()}, "core.score"),
    "eager score": ({"score": AdditiveConfig()}, "core.score"),
    "eager dropout": ({"core": EagerCoreConfig()}, "core.weights_dropout"),
    "table of positions": ({}, "position.table"),
}


def _hooked(attention: Any) -> DecoderModel:
    config = DecoderConfig(
        d_model=8,
        n_layers=2,
        position=T5BiasConfig(),
        attention=AttentionConfig(n_heads=2, **attention),
    )
    return config.build(7).double().eval()


@pytest.mark.parametrize("before", [True, False], ids=["pre-hook", "hook"])
@pytest.mark.parametrize("name", HOOKED)
def test_a_hook_inside_a_core_or_its_positions_is_rejected(name: str, before: bool) -> None:
    attention, path = HOOKED[name]
    model = _hooked(attention)
    module = model.stack.blocks[1].attention.get_submodule(path)

    def put(*_: Any) -> None: ...

    refused = rf"stack\.blocks\.\d\.attention\.{path} \(\w+\) has a forward hook, .*put"
    with attention_weights(model):  # also where it comes later
        put_on = module.register_forward_pre_hook if before else module.register_forward_hook
        handle = put_on(put)
        with pytest.raises(InputError, match=refused):
            model(torch.tensor([[1, 2, 3]]))
    with pytest.raises(InputError, match=refused), attention_weights(model):
        pass
    handle.remove()
    with attention_weights(model) as by_module:
        model(torch.tensor([[1, 2, 3]]))
    assert len(by_module) == 2


def test_a_fused_core_skips_hooks_on_its_score_in_weights_and_forward() -> None:
    core = SDPACore(DotProduct(0.5)).double()
    assert core.score is not None
    q, k = torch.randn(2, 1, 2, 5, 4).double()
    expected = core.weights(q, k, Full())
    core.score.register_forward_hook(lambda _, args, out: -out)
    assert torch.equal(core.weights(q, k, Full()), expected)
    torch.testing.assert_close(core(q, k, k, Full()), expected @ k)


@pytest.mark.parametrize("place", ["q_proj", "k_norm", "core", "output", ""])
def test_weights_include_the_effect_of_hooks_around_the_core(place: str) -> None:
    model = _hooked({})
    attention = model.stack.blocks[0].attention
    core, recorded = attention.core, list[Tensor]()

    def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (0.3 * args[0], *args[1:])

    def after(_: nn.Module, _args: tuple[Any, ...], out: Tensor) -> Tensor:
        return 3 * out

    with attention_weights(model) as by_module:  # hooks that came later act too
        for path in {place, "core"} - {""}:
            attention.get_submodule(path).register_forward_pre_hook(before)
        attention.get_submodule(place).register_forward_hook(after)
        core.register_forward_hook(
            lambda _, args, out: recorded.extend([args[2], out]), prepend=True
        )
        model(torch.tensor([[1, 2, 3, 4]]))
    v, out = recorded
    torch.testing.assert_close(by_module["stack.blocks.0.attention"] @ v, out)


class ByName(MultiHead):
    """A custom attention that calls its core with keyword arguments."""

    def forward(self, x: Tensor, mask: Any, bias: Any) -> Tensor:
        k, v = self.keys_values(x)
        return self.merge(self.core(self.queries(x), k, v=v, mask=mask, bias=bias))


def test_attentions_that_share_a_core_have_their_own_weights_and_biases() -> None:
    core = EagerCore()
    first, second = (ByName(8, HeadShape(2, 2, 4), core=core).double() for _ in range(2))
    x, recorded = torch.randn(1, 5, 8).double(), list[Tensor]()
    core.register_forward_hook(
        lambda _, args, keywords, out: recorded.extend([keywords["v"], out]), with_kwargs=True
    )

    def bias(rows: slice, keys: slice) -> Tensor:
        return torch.arange(25.0, dtype=torch.float64).view(1, 1, 5, 5)[:, :, rows, keys]

    with attention_weights(nn.ModuleList([first, second])) as by_module:
        for attention in (first, second):
            attention(x, Full(), bias)
    for name, v, out in (("0", *recorded[:2]), ("1", *recorded[2:])):
        torch.testing.assert_close(by_module[name] @ v, out)


class Sharp(EagerCore):
    """A core that computes otherwise, in a method that `weights` does not ask."""

    def attend(self, *args: Any, **named: Any) -> Any:
        return super().attend(*args, **named) ** 2


def test_a_core_that_overrides_an_inherited_method_is_rejected() -> None:
    model = DecoderConfig(d_model=8, n_layers=1, attention=AttentionConfig(n_heads=2)).build(11)
    plain = model.eval().stack.blocks[0].attention.core
    model.stack.blocks[0].attention.core = Sharp(plain.score)
    with (
        pytest.raises(InputError, match=r"Sharp.*does not show its weights"),
        attention_weights(model),
    ):
        pass
    model.stack.blocks[0].attention.core = plain
    plain.forward = lambda q, *args: type(plain).forward(plain, 5 * q, *args)
    with pytest.raises(InputError, match="does not show its weights"), attention_weights(model):
        pass
