"""Claim 8: residual connections keep the gradient alive in depth."""

from collections.abc import Iterable, Sequence
from math import log10
from statistics import fmean

import torch
from torch import nn

from addnorm.lab.claims.claim import Claim, Finding, Panel, Results, Row, Settings, Size
from addnorm.lab.claims.learning import Course, decoder, gradient_of, learn_text, loss_of
from addnorm.lab.claims.tasks import GENERATED, next_tokens, text_of
from addnorm.nn.residuals import PreNorm, Sublayer
from addnorm.nn.types import Hidden, Valid

GAINS = (0.0, 0.5, 1.0)
DEPTHS = {"quick": (4, 12), "full": (4, 12, 32), "night": (4, 12, 32, 64, 128)}
STEPS = {"quick": 120, "full": 300, "night": 300}
LENGTH, SEQUENCES = 32, 16


class WeakResidual(nn.Module):
    """`gain · x + f(norm(x))`: pre-norm with an identity that can be weakened."""

    def __init__(self, norm: nn.Module, gain: float) -> None:
        super().__init__()
        self.norm = norm
        self.gain = gain

    def forward(self, x: Hidden, f: Sublayer, valid: Valid | None = None) -> Hidden:
        return self.gain * x + f(self.norm(x, valid))


def weaken(model: nn.Module, gain: float) -> None:
    """Replace every residual of a pre-norm model by a weak one with the same norm."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, PreNorm):
                setattr(parent, name, WeakResidual(child.norm, gain))


def cells(size: Size, task: str) -> Sequence[Settings]:
    """Return a cell for each gain and depth."""
    return [
        {"gain": gain, "depth": n, "steps": STEPS[size]} for n in DEPTHS[size] for gain in GAINS
    ]


def measure(settings: Settings, seed: int) -> Iterable[Row]:
    """Yield the gradient of each layer at the start, and the loss after training."""
    text, depth, gain = text_of(GENERATED), settings["depth"], settings["gain"]
    model = decoder(
        text.vocab,
        seed,
        d_model=32,
        n_layers=depth,
        attention={"kind": "attention", "n_heads": 2},
        feedforward={"kind": "mlp", "d_ff": 64},
    )
    weaken(model, gain)
    drawn = text.draw(torch.Generator().manual_seed(seed), SEQUENCES, LENGTH + 1)
    loss_of(model, next_tokens(drawn)).backward()
    norms = [gradient_of(block) for block in model.stack.blocks]
    series = f"gain {gain:g}"
    yield Row("ratio", series, depth, log10(norms[0] / norms[-1]))
    for layer, norm in enumerate(norms if depth >= 12 else (), 1):
        yield Row("gradient", f"{series}, {depth}", layer, norm)
    model.zero_grad()
    losses = learn_text(model, GENERATED, LENGTH, Course(settings["steps"]), seed, SEQUENCES)
    yield Row("loss", series, depth, fmean(losses[-10:]))


def judge(results: Results) -> Sequence[Finding]:
    """Return the verdict by the claim's rule, at the greatest depth."""
    deepest = results.xs("loss")[-1]
    worse = results.difference(("loss", "gain 0", deepest), ("loss", "gain 1", deepest))
    return [
        Finding.at_most(results.mean("ratio", "gain 0", deepest), -1, OFF, depth=deepest),
        Finding.at_least(results.mean("ratio", "gain 1", deepest), -1, ON, depth=deepest),
        Finding.at_least(worse, 0.1, WORSE),
    ]


OFF = (
    "Without residual connections, the gradient of the first of {depth} layers is 10^{mean} times "
    "that of the last (exponent {low} to {high}; the limit is {limit}).",
    "没有残差连接时，{depth} 层中第一层的梯度是最后一层的 10^{mean} 倍"
    "（指数 {low} 至 {high}；界限 {limit}）。",
)
ON = (
    "With them, the gradient of the first of {depth} layers is 10^{mean} times that of the last "
    "(exponent {low} to {high}; the limit is {limit}).",
    "有残差连接时，{depth} 层中第一层的梯度是最后一层的 10^{mean} 倍"
    "（指数 {low} 至 {high}；界限 {limit}）。",
)
WORSE = (
    "After equal steps the loss without them is {mean} nats higher ({low} to {high}; the limit is "
    "{limit}).",
    "相同步数后，没有残差连接的损失高 {mean} 纳特（{low} 至 {high}；界限 {limit}）。",
)
CLAIM = Claim(
    title=("Residual connections and depth", "残差连接与深度"),
    statement=(
        "Residual connections give the gradient a way past every layer; without them deep models "
        "do not train (He et al. 2016).",
        "残差连接让梯度绕过每一层；没有它，深层模型无法训练（He 等 2016）。",
    ),
    literature=(
        "Dong et al. (2021) show that attention without residual connections loses rank doubly "
        "exponentially with depth; norms hold the size of the gradient, not its content.",
        "Dong 等（2021）证明没有残差连接的注意力随深度以双重指数速度失去秩；"
        "归一化能保持梯度大小，却保不住其内容。",
    ),
    literature_finds="supported",
    predicted=(
        "Training fails without them; the gradient need not vanish, as every layer has its norm.",
        "没有残差连接训练会失败；但由于每层都有归一化，梯度未必消失。",
    ),
    rule=(
        "Pre-norm decoders whose identity is multiplied by 0, ½ or 1. At the greatest depth the "
        "claim holds if, without the identity, the first layer's gradient is at most a tenth of "
        "the last one's, with it at least a tenth, and training ends 0.1 nats or more worse.",
        "前置归一化解码器，恒等支路乘以 0、½ 或 1。在最大深度，"
        "若无恒等支路时第一层梯度至多为最后一层的"
        "十分之一，有时至少为十分之一，且训练结束时差 0.1 纳特以上，则论断成立。",
    ),
    panels={
        "loss": Panel(
            ("layers", "层数"), ("last training loss, nats", "最后的训练损失（纳特）"), True
        ),
        "gradient": Panel(("layer", "层"), ("gradient at the start", "初始梯度"), log_y=True),
    },
    cells=cells,
    measure=measure,
    judge=judge,
)
