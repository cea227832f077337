"""The definitions of position encodings, acting on embeddings, queries and keys, or scores."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.checking.definition.definitions import Definitions
from addnorm.checking.definition.frequencies import rotary_frequencies, rotary_temperature
from addnorm.checking.definition.layers import Tokens, Weights, linear, under
from addnorm.checking.definition.norms import normalised
from addnorm.checking.definition.texts import Texts
from addnorm.nn.positions import (
    ALiBiConfig,
    AxialRotaryConfig,
    DisentangledConfig,
    KERPLEConfig,
    LearnedConfig,
    LearnedT5Config,
    NoPositionConfig,
    RotaryConfig,
    RoundedALiBiConfig,
    SinusoidalConfig,
    T5BiasConfig,
    TransformerXLConfig,
)

Pairs = Float[Tensor, "seq seq"]


@dataclass(frozen=True, kw_only=True)
class Head:
    """A head of self-attention: its index, the number of heads, and the texts.

    `scale` is the factor that multiplies its products of queries and keys; `keys` are its keys,
    those of key/value head `kv_number`, and `attention` the weights of the layer's attention.
    """

    number: int
    n_heads: int
    texts: Texts
    causal: bool
    scale: float
    keys: Tokens = field(default_factory=lambda: torch.zeros(0, 0))
    kv_number: int = 0
    attention: Weights = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True)
class PositionDefinition:
    """The operations of a position encoding; None for those that it lacks.

    `bias(config, weights, q, head)` is added to the scores of a head with queries `q`;
    `embed(config, weights, x, texts)` changes the embeddings, `rotate` the queries and keys of a
    head, and `queries(config, weights, q, head)` the queries in the product with the keys.
    """

    bias: Callable[[Any, Weights, Tokens, Head], Pairs] | None = None
    embed: Callable[[Any, Weights, Tokens, Texts], Tokens] | None = None
    rotate: Callable[[Any, Weights, Tokens, Texts], Tokens] | None = None
    queries: Callable[[Any, Weights, Tokens, Head], Tokens] | None = None


@cache
def sinusoid(place: float, width: int, theta: float = 10000.0) -> tuple[float, ...]:
    """`PE(p, 2i) = sin(p θ^(-2i/D))`, `PE(p, 2i+1) = cos(…)` (Vaswani et al. 2017, §3.5)."""
    waves: list[float] = []
    for i in range(math.ceil(width / 2)):
        angle = place * theta ** (-2 * i / width)
        waves += [math.sin(angle), math.cos(angle)]
    return tuple(waves[:width])


def sinusoidal(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Tokens:
    """Sines and cosines; Marian has all sines first (Vaswani et al. 2017, §3.5)."""
    waves = _numbers([sinusoid(config.first + p, x.shape[1], config.theta) for p in texts.place])
    if config.layout == "halves":
        waves = torch.cat([waves[:, 0::2], waves[:, 1::2]], dim=1)
    return x + waves


def learned(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Tokens:
    """Gehring et al. 2017, §3.1."""
    return x + torch.stack([weights["table.weight"][p] for p in texts.place])


def learned_of_both(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Tokens:
    """The learned table, with T5's biases in each layer (Song et al. 2020, §2.3)."""
    return learned(config, under(weights, "learned"), x, texts)


def rotary(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Tokens:
    """Rotate the queries or keys of a head by their positions (Su et al. 2021, §3.2.2)."""
    width = round(config.fraction * x.shape[1])
    ends = {t: 1 + max(texts.place[m] for m in texts.tokens(t)) for t in set(texts.text)}
    frequencies = {t: rotary_frequencies(config, width, ends[t]) for t in ends}
    angles = _numbers(
        [
            [p * frequency for frequency in frequencies[t]]
            for p, t in zip(texts.place, texts.text, strict=True)
        ]
    )
    cos, sin = (rotary_temperature(config.scaling) * wave for wave in (angles.cos(), angles.sin()))
    features = list(x.T)
    for i in range(width // 2):
        a, b = (2 * i, 2 * i + 1) if config.layout == "interleaved" else (i, i + width // 2)
        features[a] = x[:, a] * cos[:, i] - x[:, b] * sin[:, i]
        features[b] = x[:, a] * sin[:, i] + x[:, b] * cos[:, i]
    return torch.stack(features, dim=1)


def axial_rotary(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Tokens:
    """Siméoni et al. 2025, §3.2: patch by patch, pair by pair."""
    assert texts.grid is not None
    rows, columns = texts.grid
    d_head = x.shape[1]
    turned = x.clone()
    for n in range(rows * columns):
        token = len(x) - rows * columns + n
        y = 2 * (n // columns + 0.5) / rows - 1
        across = 2 * (n % columns + 0.5) / columns - 1
        for i in range(d_head // 2):
            place, j = (y, i) if i < d_head // 4 else (across, i - d_head // 4)
            angle = 2 * math.pi * place / config.theta ** (4 * j / d_head)
            a, b = x[token, i], x[token, i + d_head // 2]
            turned[token, i] = a * math.cos(angle) - b * math.sin(angle)
            turned[token, i + d_head // 2] = a * math.sin(angle) + b * math.cos(angle)
    return turned


def alibi(config: Any, weights: Weights, q: Tokens, head: Head) -> Pairs:
    """Press et al. 2022, §3."""
    slope = alibi_slopes(head.n_heads)[head.number]
    return -slope * distances(head.texts).abs().double()


def rounded_alibi(config: Any, weights: Weights, q: Tokens, head: Head) -> Pairs:
    """Penedo et al. 2023 and their code: of keys alone, in bfloat16, scaled as products are."""
    places = torch.tensor(head.texts.place, dtype=torch.float64).to(torch.bfloat16)
    slope = torch.tensor(alibi_slopes(head.n_heads)[head.number]).to(torch.bfloat16)
    biases = (slope.double() * places.double()).to(torch.bfloat16)
    return (head.scale * biases.double()).expand(len(places), -1)


def alibi_slopes(n_heads: int) -> list[float]:
    """`2^(-8h/H)`; if H is not a power of two, further slopes come from the next power.

    Press et al. 2022, §3 and their code.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
    return slopes + between[: n_heads - power]


def kerple(config: Any, weights: Weights, q: Tokens, head: Head) -> Pairs:
    """Chi et al. 2022, the logarithmic kernel: `-r₁ log(1 + r₂ |i - j|)`, r = log(1 + exp(raw))."""
    amplitude, rate = (
        torch.log(1 + torch.exp(weights[f"raw_{name}"][head.number]))
        for name in ("amplitude", "rate")
    )
    return -amplitude * torch.log(1 + rate * distances(head.texts).abs())


def t5(config: Any, weights: Weights, q: Tokens, head: Head) -> Pairs:
    """Raffel et al. 2020, §2.1."""
    sizes = config.buckets, config.max_distance
    ahead = distances(head.texts).tolist()
    bucket = [[t5_bucket(d, *sizes, causal=head.causal) for d in row] for row in ahead]
    return weights["table.weight"][torch.tensor(bucket), head.number]


@cache
def t5_bucket(ahead: int, n_buckets: int, max_distance: int, *, causal: bool) -> int:
    """The bucket of a key `ahead` positions after the query (Raffel et al. 2020, §2.1)."""
    first = 0
    if not causal:  # half of the buckets for earlier keys, half for later ones
        n_buckets //= 2
        first = n_buckets if ahead > 0 else 0
    distance = max(-ahead, 0) if causal else abs(ahead)
    exact = n_buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(exact + int(share * (n_buckets - exact)), n_buckets - 1)


def transformer_xl_queries(config: Any, weights: Weights, q: Tokens, head: Head) -> Tokens:
    """`q + u`: the queries in the product with the keys (Dai et al. 2019, §3.3, terms a and c)."""
    return q + weights["u"][head.number]


def transformer_xl_bias(config: Any, weights: Weights, q: Tokens, head: Head) -> Pairs:
    """`(q_i + v)·W_R R_{i-j}`, scaled (Dai et al. 2019, §3.3, terms b and d)."""
    d_head, d_model = q.shape[1], weights["r_proj.weight"].shape[1]
    to_head = weights["r_proj.weight"][head.number * d_head : (head.number + 1) * d_head]
    behind = -distances(head.texts)
    least, most = int(behind.min()), int(behind.max())
    waves = _numbers([sinusoid(d, d_model) for d in range(least, most + 1)])
    r = waves[behind - least]
    return head.scale * torch.einsum("ic,cd,ijd->ij", q + weights["v"][head.number], to_head, r)


def disentangled_queries(config: Any, weights: Weights, q: Tokens, head: Head) -> Tokens:
    """The queries divided by the root of the number of products (He et al. 2021, §3.1)."""
    return q / math.sqrt(3 if config.terms == "both" else 2)


def disentangled(config: Any, weights: Weights, q: Tokens, head: Head) -> Pairs:
    """He et al. 2021, §3.1, eq. 4, pair by pair; both terms at δ(i, j), as in their code."""
    table = normalised(
        config.norm, under(weights, "relative.norm"), weights["relative.table.weight"]
    )
    projections = weights if config.projections == "own" else head.attention
    d_head = q.shape[1]

    @cache
    def projected(name: str, number: int) -> Tokens:
        return linear(projections, name, table).split(d_head, dim=1)[number]

    scores = torch.zeros(len(q), len(q), dtype=torch.float64)
    span = config.buckets or config.max_distance
    for i, offsets in enumerate((-distances(head.texts)).tolist()):
        for j, offset in enumerate(offsets):
            near = offset if config.buckets is None else disentangled_bucket(config, offset)
            row = min(max(near + span, 0), 2 * span - 1)
            if config.terms != "position_to_content":
                scores[i, j] += q[i] @ projected("k_proj", head.kv_number)[row]
            if config.terms != "content_to_position":
                scores[i, j] += head.keys[j] @ projected("q_proj", head.number)[row]
    return scores * head.scale / math.sqrt(3 if config.terms == "both" else 2)


def disentangled_bucket(config: Any, offset: int) -> int:
    """The logarithmic bucket of an offset `i - j` (He et al. 2023, and their code)."""
    middle = config.buckets // 2
    if abs(offset) <= middle:
        return offset
    share = math.log(abs(offset) / middle) / math.log((config.max_distance - 1) / middle)
    return int(math.copysign(middle + math.ceil(share * (middle - 1)), offset))


def distances(texts: Texts) -> Tensor:
    """The offsets between all pairs of tokens: `j - i`."""
    place = torch.tensor(texts.place)
    return place[None, :] - place[:, None]


POSITIONS = Definitions[PositionDefinition](
    "position",
    "positions.py",
    {
        NoPositionConfig: PositionDefinition(),
        SinusoidalConfig: PositionDefinition(embed=sinusoidal),
        LearnedConfig: PositionDefinition(embed=learned),
        RotaryConfig: PositionDefinition(rotate=rotary),
        AxialRotaryConfig: PositionDefinition(rotate=axial_rotary),
        ALiBiConfig: PositionDefinition(alibi),
        RoundedALiBiConfig: PositionDefinition(rounded_alibi),
        KERPLEConfig: PositionDefinition(kerple),
        T5BiasConfig: PositionDefinition(t5),
        LearnedT5Config: PositionDefinition(t5, embed=learned_of_both),
        DisentangledConfig: PositionDefinition(disentangled, queries=disentangled_queries),
        TransformerXLConfig: PositionDefinition(
            transformer_xl_bias, queries=transformer_xl_queries
        ),
    },
    wrap=lambda own: (
        PositionDefinition(**own) if isinstance(own, Mapping) else PositionDefinition(own)
    ),
)


def embedded(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Tokens:
    """Apply a position encoding to the embeddings."""
    embed = POSITIONS.of(config).embed
    return x if embed is None else embed(config, weights, x, texts)


def rotated(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Tokens:
    """Apply a position encoding to the queries or keys of a head."""
    rotate = POSITIONS.of(config).rotate
    return x if rotate is None else rotate(config, weights, x, texts)


def met(config: Any, weights: Weights, q: Tokens, head: Head) -> Tokens:
    """The queries used in the product with the keys."""
    queries = POSITIONS.of(config).queries
    return q if queries is None else queries(config, weights, q, head)


def bias(config: Any, weights: Weights, q: Tokens, head: Head) -> Pairs:
    """The position bias added to the scores of a head."""
    definition = POSITIONS.of(config).bias
    if definition is None:
        return torch.zeros(len(head.texts), len(head.texts), dtype=torch.float64)
    return definition(config, weights, q, head)


def _numbers(table: Any) -> Tensor:
    """Convert Python floats to float64, which torch would round to float32 by default."""
    return torch.tensor(table, dtype=torch.float64)
