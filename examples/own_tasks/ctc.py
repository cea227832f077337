"""A task of your own: sounds to text without a decoder (CTC, Graves et al. 2006)."""

# addnorm train ctc.toml --import ctc.py; addnorm generate runs/ctc clip.wav --import ctc.py

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.data import Aligned, Encoded, Transcribed, encoded_inputs
from addnorm.generate import Generated
from addnorm.metrics.scores import transcription_scores
from addnorm.tasks import Evaluation, Task

BLANK = 0  # the id of padding


class Spelling(Task):
    """`p(text | frames)`; a text is read off the likeliest symbol of each frame."""

    name = "spelling"
    examples = (Transcribed,)
    metrics = ("wer", "cer", "loss")
    layout = Aligned()
    writes_text = True
    call = "run.transcribe(files)"

    def encode(self, examples: Any, tokenizers: Any, numbers: Any) -> Iterator[Encoded]:
        targets = tokenizers.target.encode_batch([example.target_text() for example in examples])
        for inputs, ids in zip(encoded_inputs(examples, None), targets, strict=True):
            yield replace(inputs, targets=ids)

    def answers(self, head: nn.Module, logits: Tensor, batch: Any, valid: Any) -> dict[int, Any]:
        paths = logits.argmax(-1)
        paths = paths if valid is None else paths.masked_fill(~valid, BLANK)
        texts = [[i for i, _ in groupby(path) if i != BLANK] for path in paths.tolist()]
        return dict(zip(batch.indices, texts, strict=True))

    def result(self, answer: list[int], example: Any, tokenizers: Any, labels: Any) -> Generated:
        return Generated(tokenizers.target.decode(answer), 0.0, "eos", ids=tuple(answer))

    def score(self, outputs: Any, split: Any, model: Any, n_written: int | None) -> Evaluation:
        texts = {i: split.tokenizers.target.decode(ids) for i, ids in outputs.answers.items()}
        right = [split.examples[i].text for i in texts]
        return Evaluation(transcription_scores(list(texts.values()), right), texts)


class SpellingHead(nn.Module):
    """Scores of the tokens and of the blank for every frame."""

    def __init__(self, d_model: int, n_outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, n_outputs)

    def forward(self, x: Tensor, ctx: Any) -> Tensor:
        return self.proj(x)

    def loss_sum(self, outputs: Tensor, targets: Tensor, valid: Tensor | None) -> Tensor:
        real = outputs.new_ones(outputs.shape[:2]) if valid is None else valid
        log_p, lengths = outputs.log_softmax(-1).transpose(0, 1), (targets >= 0).sum(1)
        return F.ctc_loss(log_p, targets.clamp(0), real.long().sum(1), lengths, reduction="sum")


@dataclass(frozen=True)
class SpellingHeadConfig:
    """The head of `Spelling`."""

    task = Spelling
    joint_loss = True
    predicts_tokens = True

    def build(self, d_model: int, n_outputs: int) -> SpellingHead:
        return SpellingHead(d_model, n_outputs)
