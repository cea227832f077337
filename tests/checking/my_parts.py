"""Custom parts for tests: some correct, some with faults that the check must detect."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.data.batches.buckets import Buckets, Loaders
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.nn.masks import Mask, Window


class DyT(nn.Module):
    """`γ tanh(α x) + β`."""

    def __init__(self, d_model: int, alpha: float) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.gain = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return self.gain * torch.tanh(self.alpha * x) + self.bias


@dataclass(frozen=True)
class DyTConfig:
    """`γ tanh(α x) + β`: no statistics (Zhu et al. 2025, §4)."""

    alpha: float = 0.5

    def build(self, d_model: int) -> nn.Module:
        return DyT(d_model, self.alpha)


def dyt_float64(config: Any, weights: Any, x: Tensor) -> Tensor:
    """The paper's line."""
    return weights["gain"] * torch.tanh(weights["alpha"] * x) + weights["bias"]


def dyt_without_bias(config: Any, weights: Any, x: Tensor) -> Tensor:
    """A definition that is another."""
    return weights["gain"] * torch.tanh(weights["alpha"] * x)


class Leaking(DyT):
    """Every token sees the mean of its row."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return super().forward(x) + 0.1 * x.mean(-2, keepdim=True)


@dataclass(frozen=True)
class LeakingConfig:
    """A norm that looks ahead."""

    def build(self, d_model: int) -> nn.Module:
        return Leaking(d_model, 0.5)


class Widening(DyT):
    """Whatever comes in, float32 goes out."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return super().forward(x).float()


@dataclass(frozen=True)
class WideningConfig:
    """A norm that changes the type."""

    def build(self, d_model: int) -> nn.Module:
        return Widening(d_model, 0.5)


class Unused(DyT):
    """A parameter that nothing reads."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, 0.5)
        self.spare = nn.Parameter(torch.ones(d_model))


@dataclass(frozen=True)
class UnusedConfig:
    """A norm with a parameter too many."""

    def build(self, d_model: int) -> nn.Module:
        return Unused(d_model)


class Sine(nn.Module):
    """`sin(W x)`."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.proj(x))


@dataclass(frozen=True)
class SineConfig:
    """`sin(W x)`, a feed-forward layer."""

    def build(self, d_model: int) -> nn.Module:
        return Sine(d_model)


class Cosine(nn.Module):
    """`s q·k / (‖q‖ ‖k‖)`."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n_heads))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = (x / (x.norm(dim=-1, keepdim=True) + 1e-3) for x in (q, k))
        return self.scale[:, None, None] * (q @ k.mT)


@dataclass(frozen=True)
class CosineConfig:
    """`s q·k / (‖q‖ ‖k‖)` for each head."""

    def build(self, n_heads: int, d_head: int) -> nn.Module:
        return Cosine(n_heads)


def cosine_float64(config: Any, weights: Any, head: int, q: Tensor, k: Tensor) -> Tensor:
    """One head at a time."""
    q, k = (x / ((x**2).sum(1, keepdim=True).sqrt() + 1e-3) for x in (q, k))
    return weights["scale"][head] * q @ k.T


@dataclass(frozen=True)
class NearConfig:
    """The last `size` tokens, as a pattern."""

    size: int = 2

    def build(self) -> Mask:
        return Window(self.size)


def near_float64(config: Any, i: int, j: int) -> bool:
    """Whether two places are near."""
    return abs(i - j) < config.size


class Brier(nn.Module):
    """`Σ (1 - p_y)²`."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        p = logits.softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        return torch.where(targets >= 0, (1 - p) ** 2, 0.0).sum()


@dataclass(frozen=True)
class BrierConfig:
    """`Σ (1 - p_y)²` (Brier 1950)."""

    def build(self) -> nn.Module:
        return Brier()


class Mean(Brier):
    """A mean where a sum is due."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return super().forward(logits, targets) / targets.numel()


@dataclass(frozen=True)
class MeanConfig:
    """A loss that is a mean."""

    def build(self) -> nn.Module:
        return Mean()


@dataclass(frozen=True)
class HalvingConfig:
    """`2^(-step / half)`, a schedule."""

    half: int = 10

    def factor(self, step: int, total: int) -> float:
        return 2.0 ** (-step / self.half)


@dataclass(frozen=True)
class NegativeConfig:
    """A schedule that falls below zero."""

    def factor(self, step: int, total: int) -> float:
        return 1.0 - step / 5


@dataclass(frozen=True)
class MomentumConfig:
    """Stochastic gradient descent with momentum."""

    momentum: float = 0.9

    def build(self, model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=lr, momentum=self.momentum)]


@dataclass(frozen=True)
class ForgetfulConfig:
    """An optimiser that leaves parameters out."""

    def build(self, model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD([*model.parameters()][:1], lr=lr)]


class Drawn(Buckets):
    """Batches in another order whenever they are asked for."""

    drawn = Random(0)

    def plan(self, epoch: int) -> list[list[int]]:
        found = super().plan(epoch)
        self.drawn.shuffle(found)
        return found


class Growing(Buckets):
    """A batch more in every epoch."""

    def plan(self, epoch: int) -> list[list[int]]:
        return super().plan(epoch)[: 3 + epoch]


@dataclass(frozen=True)
class DrawnConfig:
    """Batches that a run could not go on with."""

    kind: ClassVar[type[Buckets]] = Drawn

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
        train, valid = (
            self.kind(corpus, corpus.train, 64, seed=seed),
            Buckets(corpus, corpus.valid, 64),
        )
        return Loaders(train, valid, None, corpus.reports)


@dataclass(frozen=True)
class GrowingConfig(DrawnConfig):
    """Epochs of another length."""

    kind: ClassVar[type[Buckets]] = Growing


class Letters:
    """An id for each letter."""

    def __init__(self, letters: str, *, lower: bool = False) -> None:
        self.letters = letters
        self.lower = lower

    @property
    def vocab_size(self) -> int:
        """The number of letters."""
        return len(self.letters)

    def encode(self, text: str) -> list[int]:
        """One id a letter."""
        return [self.letters.index(c) for c in (text.lower() if self.lower else text)]

    def decode(self, ids: list[int]) -> str:
        """The letters again."""
        return "".join(self.letters[i] for i in ids)

    def save(self, folder: Path) -> None:
        """All letters in a file."""
        (folder / "letters.txt").write_text(self.letters, "utf-8")


@dataclass(frozen=True)
class LettersConfig:
    """A tokenizer of letters; `lower` forgets capitals."""

    lower: bool = False

    def train(self, texts: Iterable[str]) -> Letters:
        text = "".join(texts)
        return Letters("".join(sorted({*text, *text.lower()})), lower=self.lower)

    def load(self, folder: Path) -> Letters:
        return Letters((folder / "letters.txt").read_text("utf-8"), lower=self.lower)


@dataclass(frozen=True)
class NeedsSizeConfig:
    """A part that cannot be made without a value, and has no examples."""

    size: int

    def build(self, d_model: int) -> nn.Module:
        return DyT(d_model, float(self.size))


@dataclass(frozen=True)
class ChoosyConfig(CosineConfig):
    """A score that needs both heads with keys of their own and a gate after them."""

    def conflict(self, attention: Any) -> str | None:
        if attention.n_heads != attention.n_kv_heads:
            return "every head needs keys of its own"
        return None if attention.output else "it needs a gate"
