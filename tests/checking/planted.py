"""Parts with one planted fault each, and what a definition says of the right part.

`FAULTS` names what each check has to find: with a definition, and without one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from tests.checking import my_parts
from torch import Tensor, nn

from addnorm.nn.attention.kernels import EVERYTHING, allowed_of, shared
from addnorm.nn.masks import Mask
from addnorm.nn.positions.position import Position

Forward = Callable[..., Tensor]


class Fault(NamedTuple):
    """A faulty part, its family, the definition of the right one, and who has to see it."""

    part: type
    family: str
    definition: Any
    without: bool
    """Whether it shows without a definition too."""


FAULTS: dict[str, Fault] = {}


def plant(
    family: str, definition: Any, build: Callable[..., Any], *, without: bool = True
) -> Callable[[type], type]:
    """Register a module (or mask) as a fault; `build` makes it from the arguments of its family."""

    def add(module: type) -> type:
        name = f"{module.__name__}Config"
        methods = {"__module__": __name__, "__doc__": module.__doc__}
        made = {"build": lambda self, *given, **named: build(module, *given, **named)}
        finals = {"build_final": lambda self, d_model, norm: norm.build(d_model)}
        finals = finals if family == "placement" else {}
        task = {"task": "tagging"} if family == "head" else {}
        config = dataclass(frozen=True)(type(name, (), methods | made | finals | task))
        globals()[name] = config
        FAULTS[module.__name__] = Fault(config, family, definition, without)
        return module

    return add


def seen_by_definition(family: str, definition: Any, build: Callable[..., Any]) -> Any:
    """A fault that keeps every property that holds without a definition."""
    return plant(family, definition, build, without=False)


# Norms: `γ tanh(α x) + β`.


def dyt(module: type, d_model: int) -> nn.Module:
    return module(d_model, 0.5)


a_norm = ("norm", my_parts.dyt_float64, dyt)


@plant(*a_norm)
class Ahead(my_parts.DyT):
    """Sees the next token."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return super().forward(x) + 0.1 * x.roll(-1, -2)


@plant(*a_norm)
class AheadFromForty(my_parts.DyT):
    """Sees the last token in texts of more than 40."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        y = super().forward(x)
        return y + 0.1 * x[..., -1:, :] if x.ndim == 3 and x.shape[1] > 40 else y


@plant(*a_norm)
class AheadFromHundred(my_parts.DyT):
    """Sees the last token in texts of more than 100."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        y = super().forward(x)
        return y + 0.1 * x[..., -1:, :] if x.ndim == 3 and x.shape[1] > 100 else y


@seen_by_definition(*a_norm)
class WithoutBias(my_parts.DyT):
    """Its bias is added with the wrong sign."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return self.gain * torch.tanh(self.alpha * x) - self.bias


@plant(*a_norm)
class OfTheBatch(my_parts.DyT):
    """Batch-mates move it."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return super().forward(x) + 0.01 * (len(x) - 1)


@plant(*a_norm)
class HalfAGradient(my_parts.DyT):
    """A gradient that is half of the right one."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        y = super().forward(x)
        return 0.5 * y + 0.5 * y.detach()


@plant(*a_norm)
class Rounding(my_parts.DyT):
    """Computes in bfloat16 whatever comes in."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return super().forward(x.bfloat16().to(x.dtype))


@plant(*a_norm)
class Overflowing(my_parts.DyT):
    """Infinite in bfloat16."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        y = super().forward(x)
        return y * (math.inf if torch.is_autocast_enabled("cpu") else 1.0)


@plant(*a_norm)
class Remembering(my_parts.DyT):
    """Adds what it saw before."""

    seen: Any = 0.0

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        y = super().forward(x) + self.seen
        self.seen = 0.01 * x.detach().mean()
        return y


class Partial(nn.Module):
    """`γ x / √(mean(x₁², x₂²) + ε)`: right, and ill-conditioned, for two features may be small."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        y = wide * torch.rsqrt(wide[..., :2].square().mean(-1, keepdim=True) + 1e-6)
        return (self.gain * y).to(x.dtype)


@dataclass(frozen=True)
class PartialConfig:
    """RMSNorm by the first two features alone (after Zhang & Sennrich 2019, §4)."""

    def build(self, d_model: int) -> nn.Module:
        return Partial(d_model)


def partial_float64(config: Any, weights: Any, x: Tensor) -> Tensor:
    """The equation."""
    return weights["gain"] * x / ((x[:, :2] ** 2).mean(1, keepdim=True) + 1e-6).sqrt()


# Scores: `s q·k / (‖q‖ ‖k‖)`.


def cosine(module: type, n_heads: int, d_head: int) -> nn.Module:
    return module(n_heads)


a_score = ("score", my_parts.cosine_float64, cosine)


@seen_by_definition(*a_score)
class HeadsTurned(my_parts.Cosine):
    """The scale of another head."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = (x / (x.norm(dim=-1, keepdim=True) + 1e-3) for x in (q, k))
        return self.scale.flip(0)[:, None, None] * (q @ k.mT)


@plant(*a_score)
class OfAllKeys(my_parts.Cosine):
    """The keys' number moves it."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return super().forward(q, k) * (1 + 0.05 * k.shape[2])


@plant(*a_score)
class NoWayBack(my_parts.Cosine):
    """No gradient reaches the keys."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return super().forward(q, k.detach())


# Patterns: `|i - j| < 2`.


@dataclass(frozen=True)
class OneWider(Mask):
    """One place too many."""

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (q - kv).abs() <= 2


@dataclass(frozen=True)
class EvenSlots(Mask):
    """Counts slots instead of places, which padding moves."""

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return ((q - kv).abs() < 2) & ((kv % 2 == 0) | (q == kv))

    def at(self, positions: Tensor) -> Mask:
        return self


@dataclass(frozen=True)
class WiderFromForty(Mask):
    """Sees everything from slot 40 on."""

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return ((q - kv).abs() < 2) | (q >= 40)


def near(config: Any, i: int, j: int) -> bool:
    """Whether two places are near."""
    return abs(i - j) < 2


def mask(module: type) -> Any:
    return module()


seen_by_definition("pattern", near, mask)(OneWider)
for one in (EvenSlots, WiderFromForty):
    plant("pattern", near, mask)(one)


# Feed-forward layers: `sin(W x + b)`.


def sine_float64(config: Any, weights: Any, x: Tensor) -> Tensor:
    """The equation."""
    return torch.sin(x @ weights["proj.weight"].T + weights["proj.bias"])


def sine(module: type, d_model: int) -> nn.Module:
    return module(d_model)


a_layer = ("feedforward", sine_float64, sine)


@seen_by_definition(*a_layer)
class CosineLayer(my_parts.Sine):
    """Another function."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(self.proj(x))


@plant(*a_layer)
class SumOfTheRow(my_parts.Sine):
    """Every token sees the sum of all."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.proj(x) + 0.01 * x.sum(-2, keepdim=True))


# Cores: `softmax(s) v`.


class Core(nn.Module):
    """The right one."""

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score = score

    def scores(self, q: Tensor, k: Tensor, bias: Any) -> Tensor:
        scores = self.score(q, shared(k, q.shape[1]))
        return scores if bias is None else scores + bias(EVERYTHING, EVERYTHING).to(scores.dtype)

    def weights(self, q: Tensor, k: Tensor, mask: Any, bias: Any = None) -> Tensor:
        scores, allowed = self.scores(q, k, bias), allowed_of(mask, q, k)
        if allowed is None:
            return scores.softmax(-1)
        lowest = torch.finfo(scores.dtype).min
        return scores.masked_fill(~allowed, lowest).softmax(-1).masked_fill(~allowed, 0.0)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any = None) -> Tensor:
        return self.weights(q, k, mask, bias) @ shared(v, q.shape[1])


def core_float64(config: Any, weights: Any, heads: Any) -> list[Tensor]:
    """The equation."""
    outputs: list[Tensor] = []
    for h in range(len(heads.q)):
        s = heads.shared(h)
        shares = heads.score(h, s).masked_fill(~heads.seen, -math.inf).softmax(-1)
        outputs.append(shares @ heads.v[s])
    return outputs


def core(module: type, heads: Any, score: nn.Module, dropout: float, layer: int) -> nn.Module:
    return module(score)


a_core = ("core", core_float64, core)


@plant(*a_core)
class OtherWeights(Core):
    """Shows weights without the bias of the positions, at twice the scores."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any = None) -> Tensor:
        return super().weights(q, k, mask, bias) @ shared(v, q.shape[1])

    def weights(self, q: Tensor, k: Tensor, mask: Any, bias: Any = None) -> Tensor:
        return super().weights(2 * q, k, mask, None)


@plant(*a_core)
class Unmasked(Core):
    """Sees everything."""

    def weights(self, q: Tensor, k: Tensor, mask: Any, bias: Any = None) -> Tensor:
        return self.scores(q, k, bias).softmax(-1)


@seen_by_definition(*a_core)
class SharedInTurn(Core):
    """Heads take the shared keys in turn."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any = None) -> Tensor:
        return self.weights(q, k, mask, bias) @ v.repeat(1, q.shape[1] // v.shape[1], 1, 1)

    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v.repeat(1, weights.shape[1] // v.shape[1], 1, 1)


# Outputs: `g_h head_h`.


class Gain(nn.Module):
    """The right one."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(n_heads))

    def forward(self, heads: Tensor, x: Tensor) -> Tensor:
        return heads * self.gain.to(heads.dtype)[:, None, None]


def gain_float64(config: Any, weights: Any, heads: list[Tensor], x: Tensor) -> list[Tensor]:
    """The equation."""
    return [weights["gain"][h] * head for h, head in enumerate(heads)]


def gain(module: type, d_model: int, heads: Any, layer: int) -> nn.Module:
    return module(heads.n_heads)


an_output = ("output", gain_float64, gain)


@plant(*an_output)
class OfTheTokenBefore(Gain):
    """Adds the heads of the token before, which a cache does not have."""

    def forward(self, heads: Tensor, x: Tensor) -> Tensor:
        before = heads.roll(1, 2)
        before = before * (torch.arange(heads.shape[2]) > 0)[:, None].to(heads.dtype)
        return super().forward(heads, x) + 0.5 * before


@seen_by_definition(*an_output)
class GainsTurned(Gain):
    """The gain of another head."""

    def forward(self, heads: Tensor, x: Tensor) -> Tensor:
        return heads * self.gain.flip(0).to(heads.dtype)[:, None, None]


# Mixers: the identity, `W x`.


class Mixer(nn.Module):
    """The right one, which keeps nothing."""

    pattern: Any = my_parts.Window(1)
    output_weights = ("out_proj",)

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, ctx: Any, cache: Any = None) -> Tensor:
        return self.out_proj(x)

    def new_cache(self) -> Any:
        return Nothing()


class Nothing:
    """A cache that keeps nothing."""

    def select(self, rows: Tensor) -> None:
        pass


def mixer_float64(config: Any, weights: Any, x: Tensor, place: Any) -> Tensor:
    """The equation."""
    return x @ weights["out_proj.weight"].T + weights["out_proj.bias"]


def mixer(module: type, d_model: int, position: Any, causal: bool, layer: int) -> nn.Module:
    return module(d_model)


a_mixer = ("mixer", mixer_float64, mixer)


@plant(*a_mixer)
class Backwards(Mixer):
    """The text from its end."""

    def forward(self, x: Tensor, ctx: Any, cache: Any = None) -> Tensor:
        return self.out_proj(x.flip(1))


@plant(*a_mixer)
class BeforeInTheBatch(Mixer):
    """A recurrence over slots, padding included, that no cache keeps."""

    def forward(self, x: Tensor, ctx: Any, cache: Any = None) -> Tensor:
        return self.out_proj(x.cumsum(1))


# Placements: `x + 0.5 f(norm(x))`.


class Half(nn.Module):
    """The right one."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, f: Forward, valid: Tensor | None = None) -> Tensor:
        return x + 0.5 * f(self.norm(x, valid))


def half_float64(config: Any, norm: Any, x: Tensor, f: Forward, depth: Any) -> Tensor:
    """The equation."""
    return x + 0.5 * f(norm("norm", x))


def placement(module: type, d_model: int, norm: Any, dropout: float, depth: Any) -> nn.Module:
    return module(norm.build(d_model))


@seen_by_definition("placement", {"sublayer": half_float64, "final": True}, placement)
class WithoutResidual(Half):
    """Forgets the stream."""

    def forward(self, x: Tensor, f: Forward, valid: Tensor | None = None) -> Tensor:
        return 0.5 * f(self.norm(x, valid))


@plant("placement", {"sublayer": half_float64, "final": True}, placement)
class StreamOfTheRow(Half):
    """Adds the mean of the row to the stream."""

    def forward(self, x: Tensor, f: Forward, valid: Tensor | None = None) -> Tensor:
        return x + 0.5 * f(self.norm(x, valid)) + 0.1 * x.mean(1, keepdim=True)


# Positions: `-log(1 + |i - j|)`, added to the scores.


class Falling(Position):
    """The right one."""

    def score_bias(self, q: Tensor, ctx: Any) -> Any:
        wide = torch.promote_types(q.dtype, torch.float32)

        def tile(rows: slice, keys: slice) -> Tensor:
            offsets = self.offsets(ctx.positions[:, rows, None], ctx.kv_positions[:, None, keys])
            return -torch.log1p(offsets.abs().to(wide))[:, None].expand(-1, q.shape[1], -1, -1)

        return tile

    def offsets(self, i: Tensor, j: Tensor) -> Tensor:
        return i - j


def falling_float64(config: Any, weights: Any, q: Tensor, head: Any) -> Tensor:
    """The equation."""
    place = torch.tensor(head.texts.place, dtype=torch.float64)
    return -torch.log(1 + (place[:, None] - place).abs())


def position(module: type, context: Any) -> nn.Module:
    return module()


a_position = ("position", falling_float64, position)


@seen_by_definition(*a_position)
class ShortFromForty(Falling):
    """Offsets stop at 40."""

    def offsets(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).clamp(-40, 40)


@plant(*a_position)
class OfSlots(Falling):
    """Falls faster at later slots, which padding moves."""

    def score_bias(self, q: Tensor, ctx: Any) -> Any:
        bias = super().score_bias(q, ctx)
        return lambda rows, keys: bias(rows, keys) * (1 + 0.01 * ctx.kv_slots[keys])


@plant(*a_position)
class FromTheEnd(Falling):
    """Counts from the last position so far, which differs when a cache is used."""

    def offsets(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j) * (1 + 0.01 * i.amax(dim=(1, 2), keepdim=True))


# Heads: `W x`, a row for each token.


class Linear(nn.Module):
    """The right one."""

    def __init__(self, d_model: int, n_outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, n_outputs)

    def forward(self, x: Tensor, ctx: Any) -> Tensor:
        return self.proj(x)


def linear_float64(config: Any, weights: Any, x: Tensor, texts: Any) -> Tensor:
    """The equation."""
    return x @ weights["proj.weight"].T + weights["proj.bias"]


def head(module: type, d_model: int, n_outputs: int) -> nn.Module:
    return module(d_model, n_outputs)


@plant("head", linear_float64, head)
class OfTheNextToken(Linear):
    """Reads the token after."""

    def forward(self, x: Tensor, ctx: Any) -> Tensor:
        return self.proj(x.roll(-1, 1))


@seen_by_definition("head", linear_float64, head)
class BiasTwice(Linear):
    """Adds its bias twice."""

    def forward(self, x: Tensor, ctx: Any) -> Tensor:
        return self.proj(x) + self.proj.bias
