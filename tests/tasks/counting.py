"""A task of someone else: counting the words of a text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.data import Corpus, Example
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.encoding import encoded_inputs
from addnorm.nn.context import Context
from addnorm.tasks.task import Evaluation, Task


@dataclass(frozen=True)
class Counted(Example):
    task = "counting"
    targets = ("n",)

    text: str
    n: int | None = None

    def source_text(self) -> str:
        return self.text


@dataclass(frozen=True)
class Count:
    words: float


class Counting(Task):
    name = "counting"
    examples = (Counted,)
    metrics = ("off", "loss")
    lower_is_better = ("off", "loss")

    def encode(
        self, examples: Sequence[Any], tokenizers: Any, numbers: Mapping[str, int]
    ) -> Iterator[Encoded]:
        for one, read in zip(examples, encoded_inputs(examples, tokenizers), strict=True):
            yield read if one.n is None else replace(read, values=torch.tensor([float(one.n)]))

    def answers(self, head: nn.Module, logits: Tensor, batch: Any, valid: Any) -> dict[int, float]:
        return dict(zip(batch.indices, logits[:, 0].tolist(), strict=True))

    def result(self, answer: float, example: Any, tokenizers: Any, labels: Any) -> Count:
        return Count(answer)

    def score(self, outputs: Any, split: Any, model: Any, n_written: int | None) -> Evaluation:
        off = [abs(answer - split.examples[i].n) for i, answer in outputs.answers.items()]
        lines = {i: f"{answer:.1f}" for i, answer in outputs.answers.items()}
        return Evaluation({"off": sum(off) / len(off)}, lines)


class CountHead(nn.Module):
    """`Σ_t w · x_t` over the real tokens."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, 1)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        scores = self.proj(x)
        return (scores if ctx.valid is None else scores * ctx.valid[..., None]).sum(1)


@dataclass(frozen=True)
class CountHeadConfig:
    task = Counting

    def build(self, d_model: int, n_outputs: int) -> CountHead:
        return CountHead(d_model)


@dataclass(frozen=True)
class CountedConfig:
    n: int = 40

    def load(self) -> Corpus:
        rows = [Counted(" ".join("abc"[: 1 + i % 3] * (1 + i % 4)), 0) for i in range(self.n)]
        rows = [replace(row, n=len(row.text.split())) for row in rows]
        return Corpus(rows[8:], rows[:4], rows[4:8])
