"""Span extraction: answering a question by a part of a given text."""

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.data import Example
from addnorm.data.batches.batch import Batch
from addnorm.data.example import lack_of
from addnorm.data.ids.compact import IGNORE, Encoded
from addnorm.data.ids.encoding import encoded_inputs
from addnorm.data.ids.layout import Layout
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.models import Model
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task, Valid


@dataclass(frozen=True, slots=True)
class QuestionAnswer(Example):
    """A question, a text, and the right answers, which are parts of the text; there may be none.

    Training reads the first answer, at the first of the characters `starts`, or where the text has
    it first.
    """

    task = "span_extraction"
    targets = ("answers", "starts")

    question: str
    context: str
    answers: tuple[str, ...] | None = None
    starts: tuple[int, ...] = ()

    def source_text(self) -> str:
        """The question."""
        return self.question

    def second_text(self) -> str:
        """The text that may hold the answer."""
        return self.context

    def lack(self) -> str | None:
        """Describe a question or a text that has no words; None if both have."""
        return lack_of(question=self.question, context=self.context)

    def problem(self) -> str | None:
        """Describe an answer that is blank or misplaced, or starts that do not fit the answers."""
        answers = self.answers or ()
        if self.starts and len(self.starts) != len(answers):
            return f"{len(answers)} answers and {len(self.starts)} starts: give each answer its own"
        if any(not answer.strip() for answer in answers):
            return f"an answer is blank: {answers}: give no answers where the context has none"
        for answer in answers[:1]:
            if self.place() < 0 or not self.context.startswith(answer, self.place()):
                where = f" at character {self.starts[0]}" if self.starts else ""
                return f"the context does not have the answer {answer!r}{where}"
        return None

    def place(self) -> int:
        """The index of the character at which the first answer begins."""
        return self.starts[0] if self.starts else self.context.find((self.answers or ("",))[0])


@dataclass(frozen=True)
class Span:
    """An answer and its place in the text, in characters; empty if there is no answer.

    `score` is how much larger the logits of the span are than those of no answer.
    """

    answer: str
    start: int | None
    end: int | None
    score: float


class AnswerPlaces(Layout):
    """The positions of an answer's first and last token among the tokens that are read."""

    def shortened(self, example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
        """Shorten both texts; an answer that is cut off is no longer a target."""
        cut = super().shortened(example, max_len, special)
        if cut is example or not example.targets or example.targets[0] <= 0:
            return cut
        targets = [place + cut.spans[2] - example.spans[2] for place in example.targets]
        is_lost = targets[1] >= cut.spans[3]
        return replace(cut, targets=[IGNORE, IGNORE] if is_lost else targets)


class SpanExtraction(Task):
    """`p(start) p(end)` over the tokens of a question and a text (Devlin et al. 2019, §4.2).

    Without an answer, both are the first token (§4.3).
    """

    name = "span_extraction"
    model = "model.kind = 'encoder' with model.head.kind = 'span'"
    metrics = ("f1", "exact", "loss")
    examples = (QuestionAnswer,)
    layout = AnswerPlaces()

    def encode(
        self, examples: Sequence[Any], tokenizers: Tokenizers | None, numbers: Mapping[str, int]
    ) -> Iterator[Encoded]:
        """Encode the question and the text, with the positions of the first answer."""
        for example, inputs in zip(examples, encoded_inputs(examples, tokenizers), strict=True):
            if example.answers is None:
                yield inputs
            elif not example.answers:
                yield replace(inputs, targets=[0, 0])
            else:
                offsets = offsets_of(tokenizers, example.context)
                end = example.place() + len(example.answers[0])
                tokens = tokens_within(offsets, example.place(), end)
                places = [inputs.spans[2] + i for i in tokens] or [IGNORE, IGNORE]
                yield replace(inputs, targets=places)

    def measured_with(self, metric: str, settings: EvalConfig) -> str:
        """The definition of the scores (Rajpurkar et al. 2016, §6.1)."""
        rule = "best of the answers, without case, punctuation and articles"
        return rule if metric in ("f1", "exact") else ""

    def answers(
        self, head: nn.Module, logits: Float[Tensor, "batch seq 2"], batch: Batch, valid: Valid
    ) -> Mapping[int, Float[Tensor, "_ 2"]]:
        """The logits of the real tokens."""
        rows = [row if valid is None else row[valid[i]] for i, row in enumerate(logits.cpu())]
        return dict(zip(batch.indices, rows, strict=True))

    def result(
        self,
        answer: Float[Tensor, "seq 2"],
        example: QuestionAnswer,
        tokenizers: Tokenizers | None,
        labels: Sequence[str],
    ) -> Span:
        """The span of the text with the largest sum of both logits, of any length."""
        [encoded] = self.encode([replace(example, answers=None)], tokenizers, {})
        if len(answer) < len(encoded.tokens):
            encoded = self.layout.shortened(encoded, len(answer), (1, 1))
        first, stop = encoded.spans[2], encoded.spans[3]
        starts, ends = answer[first:stop].float().unbind(-1)
        pairs = starts[:, None] + ends
        pairs = pairs.masked_fill(torch.ones_like(pairs).tril(-1) > 0, -torch.inf)
        nothing = float(answer[0].float().sum())
        if not pairs.numel() or float(pairs.max()) <= nothing:
            best = float(pairs.max()) if pairs.numel() else nothing
            return Span("", None, None, best - nothing)
        start, end = divmod(int(pairs.argmax()), len(pairs))
        offsets = offsets_of(tokenizers, example.context)
        begin, finish = offsets[start][0], offsets[end][1]
        text = example.context[begin:finish]
        begin += len(text) - len(text.lstrip())
        return Span(text.strip(), begin, begin + len(text.strip()), float(pairs.max()) - nothing)

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """Exact match and word F1, each the mean over examples of the best answer's score."""
        examples: dict[int, Any] = {i: split.examples[i] for i in outputs.answers}
        texts = {
            i: self.result(outputs.answers[i], example, split.tokenizers, ()).answer
            for i, example in examples.items()
        }
        values = {
            name: {
                i: max(measure(texts[i], right) for right in example.answers or ("",))
                for i, example in examples.items()
            }
            for name, measure in (("exact", exact_match), ("f1", word_f1))
        }
        means = {name: sum(each.values()) / max(len(each), 1) for name, each in values.items()}
        return Evaluation(means, texts, values=values)


def offsets_of(tokenizers: Tokenizers | None, text: str) -> list[tuple[int, int]]:
    """The character range of each token of a text.

    Raises `InputError` for a custom tokenizer, which does not tell.
    """
    assert tokenizers is not None
    return tokenizers.source.inner.encode(text, add_special_tokens=False).offsets


def tokens_within(offsets: Sequence[tuple[int, int]], start: int, end: int) -> list[int]:
    """The first and last token that overlap characters `start` to `end`; None if none does."""
    within = [i for i, (first, stop) in enumerate(offsets) if first < end and stop > start]
    return [within[0], within[-1]] if within else []


def normalised(text: str) -> str:
    """A text as SQuAD scores it: lower case, without punctuation, articles and double spaces."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(answer: str, right: str) -> float:
    """1 if both answers are equal after `normalised`, else 0."""
    return float(normalised(answer) == normalised(right))


def word_f1(answer: str, right: str) -> float:
    """`2 p r / (p + r)`: the F1 of the words of two answers, after `normalised`."""
    words, right_words = normalised(answer).split(), normalised(right).split()
    if not words or not right_words:
        return float(words == right_words)
    shared = sum((Counter(words) & Counter(right_words)).values())
    precision, recall = shared / len(words), shared / len(right_words)
    return 2 * precision * recall / (precision + recall) if shared else 0.0
