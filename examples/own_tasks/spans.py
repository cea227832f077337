"""A task of your own: which words of a text answer a question (Devlin et al. 2019, §4.2)."""

# addnorm train spans.toml --import spans.py; addnorm predict runs/spans x.jsonl --import spans.py

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from addnorm.data import Encoded, Example
from addnorm.nn.heads import TaggingHead
from addnorm.tasks import Evaluation, Task


@dataclass(frozen=True)
class Question(Example):
    """A question about a text, and its answer: words of the text."""

    task = "spans"
    targets = ("answer",)
    question: str
    text: str
    answer: str = ""

    def source_text(self) -> str:
        return f"{self.text} {self.question}"


class Spans(Task):
    """The first and the last word of the answer."""

    name = "spans"
    examples = (Question,)
    metrics = ("exact", "loss")

    def encode(self, examples: Any, tokenizers: Any, numbers: Any) -> Iterator[Encoded]:
        for i, example in enumerate(examples):
            words, answer = example.source_text().split(), example.answer.split()
            n, (ids, starts) = len(answer), tokenizers.source.encode_words(words)
            firsts = (k for k in range(len(words)) if words[k : k + n] == answer)
            yield Encoded(i, ids, next(([starts[k], starts[k + n - 1]] for k in firsts), []))

    def answers(self, head: nn.Module, logits: Tensor, batch: Any, valid: Any) -> dict[int, Any]:
        return dict(zip(batch.indices, logits.argmax(1).tolist(), strict=True))

    def result(self, answer: list[int], example: Any, tokenizers: Any, labels: Any) -> str:
        words = example.source_text().split()
        starts = tokenizers.source.encode_words(words)[1]
        first, last = (sum(start <= place for start in starts) for place in answer)
        return " ".join(words[first - 1 : last])

    def score(self, outputs: Any, split: Any, model: Any, n_written: int | None) -> Evaluation:
        rows, answers = split.examples, outputs.answers.items()
        texts = {i: self.result(x, rows[i], split.tokenizers, ()) for i, x in answers}
        exact = sum(text == rows[i].answer for i, text in texts.items()) / len(texts)
        return Evaluation({"exact": exact}, texts)


class SpanHead(TaggingHead):
    """Two scores for every token, that the answer starts and ends there; none for padding."""

    def forward(self, x: Tensor, ctx: Any) -> Tensor:
        z = super().forward(x, ctx)
        return z if ctx.valid is None else z.masked_fill(~ctx.valid[..., None], -1e9)

    def loss_sum(self, outputs: Tensor, targets: Tensor, valid: Tensor | None) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="sum")


@dataclass(frozen=True)
class SpanHeadConfig:
    """The head of `Spans`."""

    task = Spans
    joint_loss = True

    def build(self, d_model: int, n_outputs: int) -> SpanHead:
        return SpanHead(d_model, 2)
