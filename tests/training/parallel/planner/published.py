"""Published trainings of large models, as the planner is given them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.core import EagerCoreConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.init import without_values
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import LearnedConfig, RotaryConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.training.parallel.planner.cluster import CARDS, SHAPES, Card, Cluster, link_named
from addnorm.training.parallel.planner.estimate import Estimate, estimate
from addnorm.training.parallel.planner.model import ModelSizes
from addnorm.training.parallel.planner.plan import Plan
from addnorm.training.parallel.planner.sizes import sizes_of
from addnorm.training.parallel.planner.training import System, Training


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A training, what was published of it, and where."""

    model: str
    rows: int
    seq_len: int
    plan: Plan
    card: Card
    system: System
    figure: Literal["mfu", "hfu", "tokens_per_second"]
    published: float
    source: str
    misses: bool = False
    """Whether the planner is known to miss it by more than a fifth."""

    def estimate(self) -> Estimate:
        """The planner's estimate."""
        inner, outer = (link_named(name, self.card) for name in self.card.links)
        cluster = Cluster(self.plan.cards, self.card, inner, outer, 8)
        training = Training(rows=self.rows, seq_len=self.seq_len, precision="bfloat16")
        of_model = sizes(self.model, self.plan.tensor)
        return estimate(of_model, training, self.plan, cluster, self.system)

    @property
    def ratio(self) -> float:
        """The estimate, as a multiple of what was published."""
        return float(getattr(self.estimate(), self.figure)) / self.published


def llama(d_model: int, n_layers: int, n_heads: int, d_ff: int) -> DecoderConfig:
    """Llama 3 (Llama Team 2024, table 3)."""
    return DecoderConfig(
        d_model=d_model,
        n_layers=n_layers,
        position=RotaryConfig(),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
        attention=AttentionConfig(n_heads=n_heads, n_kv_heads=8, bias=False),
        feedforward=GatedFeedForwardConfig(d_ff=d_ff),
        head=TokenHeadConfig(tied=False),
        dropout=0.0,
        vocab_size=128_256,
    )


def gpt(d_model: int, n_layers: int, n_heads: int, vocab_size: int, dropout: float) -> Any:
    """GPT with attention of plain products, as before fused kernels."""
    heads = AttentionConfig(n_heads=n_heads, core=EagerCoreConfig(), dropout=dropout)
    return DecoderConfig(
        d_model=d_model,
        n_layers=n_layers,
        position=LearnedConfig(),
        max_len=2048,
        residual=PreNormConfig(),
        attention=heads,
        feedforward=FeedForwardConfig(activation="gelu"),
        dropout=dropout,
        vocab_size=vocab_size,
    )


MODELS: Mapping[str, DecoderConfig] = {
    "Llama 3 405B": llama(16_384, 126, 128, 53_248),
    "Llama 3 8B": llama(4096, 32, 32, 14_336),
    "GPT 145.6B": gpt(12_288, 80, 96, 51_200, 0.1),
    "GPT-2 124M": gpt(768, 12, 12, 50_304, 0.0),
}


@cache
def sizes(model: str, tensor: int) -> ModelSizes:
    """The sizes of a model in a process of `tensor`, of layers that are all alike."""
    config = MODELS[model]
    with without_values():
        few = replace(config, n_layers=2).build(config.vocab_size or 0)
    of_few = sizes_of(few, config.d_model, tensor)
    return replace(of_few, layers=of_few.layers[:1] * config.n_layers)


H100, A100 = CARDS["h100"], CARDS["a100"]
SLOWER = (500 / 700) ** (1 / 3)
"""The clock of a card at 500 W of its 700 W: power rises as the cube of the clock."""
TITAN = replace(
    H100,
    bandwidth=2.4e12,
    memory=96e9,
    measured=H100.measured * SLOWER,
    attention=H100.attention * SLOWER,
)
"""The H100 of torchtitan's figures: HBM2e, and a limit of 500 W."""
FLOAT8 = replace(
    TITAN,
    flops={"bfloat16": 1979e12},
    measured=1280 / 1979 / SHAPES * SLOWER,
    attention=TITAN.attention / 2,
)
"""The same with products in float8 (1,280 of 1,979 TFLOP/s: SemiAnalysis 2024), attention without.
"""

MEGATRON = System(
    weights=2,
    gradients=4,
    gathered=2,
    stream=2,
    cast=False,
    overlaps=True,
    once=True,
    scattered=True,
    order=("tensor", "context", "pipeline", "data"),
)
"""Weights in bfloat16, exchanges while others compute, outputs of stages in parts."""

RUNS = {
    "Llama 3 405B, 8,192 H100": Run(
        model="Llama 3 405B",
        rows=2048,
        seq_len=8192,
        plan=Plan(data=64, shard=True, tensor=8, pipeline=16, schedule="interleaved", stages=8),
        card=H100,
        system=MEGATRON,
        figure="mfu",
        published=0.43,
        source="Llama Team 2024, table 4",
    ),
    "Llama 3 405B, 16,384 H100": Run(
        model="Llama 3 405B",
        rows=2048,
        seq_len=8192,
        plan=Plan(data=128, shard=True, tensor=8, pipeline=16, schedule="interleaved", stages=8),
        card=H100,
        system=MEGATRON,
        figure="mfu",
        published=0.41,
        source="Llama Team 2024, table 4",
    ),
    "Llama 3 405B, 131,072 tokens": Run(
        model="Llama 3 405B",
        rows=128,
        seq_len=131_072,
        plan=Plan(
            data=8,
            shard=True,
            tensor=8,
            pipeline=16,
            context=16,
            schedule="interleaved",
            stages=8,
        ),
        card=H100,
        system=MEGATRON,
        figure="mfu",
        published=0.38,
        source="Llama Team 2024, table 4",
    ),
    "Megatron 145.6B, 1,536 A100": Run(
        model="GPT 145.6B",
        rows=2304,
        seq_len=2048,
        plan=Plan(data=24, tensor=8, pipeline=8, checkpointing="block"),
        card=A100,
        system=MEGATRON,
        figure="hfu",
        published=0.47,
        source="Narayanan et al. 2021, table 1",
    ),
    "torchtitan 8B, 8 H100": Run(
        model="Llama 3 8B",
        rows=16,
        seq_len=8192,
        plan=Plan(data=8, shard=True, rows=2),
        card=TITAN,
        system=replace(MEGATRON, once=False, recomputed=0.5),
        figure="tokens_per_second",
        published=6667,
        source="torchtitan, December 2024, table 1",
    ),
    "torchtitan 405B, 512 H100, interleaved": Run(
        model="Llama 3 405B",
        rows=256,
        seq_len=8192,
        plan=Plan(
            data=8,
            shard=True,
            tensor=8,
            pipeline=8,
            schedule="interleaved",
            stages=2,
            checkpointing="block",
        ),
        card=FLOAT8,
        system=MEGATRON,
        figure="tokens_per_second",
        published=128,
        source="torchtitan, December 2024, table 5",
        misses=True,
    ),
    "torchtitan 405B, 512 H100, 1F1B": Run(
        model="Llama 3 405B",
        rows=256,
        seq_len=8192,
        plan=Plan(data=8, shard=True, tensor=8, pipeline=8, checkpointing="block"),
        card=FLOAT8,
        system=MEGATRON,
        figure="tokens_per_second",
        published=100,
        source="torchtitan, December 2024, table 5",
        misses=True,
    ),
    "nanoGPT 124M, 8 A100": Run(
        model="GPT-2 124M",
        rows=480,
        seq_len=1024,
        plan=Plan(data=8, rows=12),
        card=CARDS["a100-40"],
        system=replace(MEGATRON, weights=4, stream=4),
        figure="tokens_per_second",
        published=491_520 * 600_000 / (4 * 86_400) / 8,
        source="nanoGPT, README: 600,000 steps in about 4 days",
    ),
}
