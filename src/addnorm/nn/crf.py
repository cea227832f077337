"""A linear-chain conditional random field, which chooses all tags of a text together."""

from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from addnorm.config import Probability, config
from addnorm.nn.context import Context
from addnorm.nn.dropout import Dropout
from addnorm.nn.functional import at_least_float32, eagerly
from addnorm.nn.linear import Linear
from addnorm.nn.types import Hidden

Scores = Float[Tensor, "batch words tags"]
Words = Bool[Tensor, "batch words"]


class Chain(nn.Module):
    """The scores of the order of tags: `start`, `transitions[from, to]` and `end`."""

    def __init__(self, n_tags: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(n_tags))
        self.transitions = nn.Parameter(torch.zeros(n_tags, n_tags))
        self.end = nn.Parameter(torch.zeros(n_tags))


def log_likelihood(
    chain: Chain, scores: Scores, tags: Int[Tensor, "batch words"], words: Words
) -> Float[Tensor, " batch"]:
    """`log p(y | x) = s(x, y) - log Σ_y' exp s(x, y')` of the tags of each text, in nats.

    `s(x, y) = start[y_1] + Σ_t scores[t, y_t] + Σ_t transitions[y_t, y_t+1] + end[y_n]` (Lafferty
    et al. 2001; Lample et al. 2016, §2.2, without their bounds on a path's ends). The sum over all
    paths is that of the forward algorithm. `words` are the tokens with a tag; the tokens between
    them and padding are left out. Zero for a text without words.
    """
    scores, words, tags = _side_by_side(scores, words, tags)
    best = tags.where(words, 0)
    own = scores.gather(2, best[..., None])[..., 0].where(words, 0.0).sum(1)
    steps = chain.transitions[best[:, :-1], best[:, 1:]].where(words[:, 1:], 0.0).sum(1)
    last = best.gather(1, (words.sum(1, keepdim=True) - 1).clamp(min=0))[:, 0]
    ends = chain.start[best[:, 0]] + chain.end[last]
    total = (_forward(chain, scores, words) + chain.end).logsumexp(1)
    return (own + steps + ends - total).where(words[:, 0], 0.0)


def best_tags(chain: Chain, scores: Scores, words: Words) -> list[list[int]]:
    """The path of the highest `s(x, y)` of each text, by Viterbi's algorithm: a tag for each word.

    Of equally good ones the path whose last tags have the lowest numbers.
    """
    scores, words, _ = _side_by_side(scores, words, None)
    best, before = chain.start + scores[:, 0], list[Tensor]()
    for t in range(1, scores.shape[1]):
        reached, came_from = (best[:, :, None] + chain.transitions).max(1)
        best = torch.where(words[:, t, None], reached + scores[:, t], best)
        before.append(came_from)
    ends = (best + chain.end).argmax(1).tolist()
    came = torch.stack(before, 1).tolist() if before else [[] for _ in ends]
    lengths = words.sum(1).tolist()
    return [_backwards(*row) for row in zip(ends, came, lengths, strict=True)]


def _backwards(last: int, came_from: list[list[int]], length: int) -> list[int]:
    path = [last]
    for row in reversed(came_from[: max(length - 1, 0)]):
        path.append(row[path[-1]])
    return path[::-1] if length else []


def _forward(chain: Chain, scores: Scores, words: Words) -> Float[Tensor, "batch tags"]:
    """The log of the summed scores of all paths that end in each tag of the last word."""
    alpha = chain.start + scores[:, 0]
    for t in range(1, scores.shape[1]):
        reached = (alpha[:, :, None] + chain.transitions).logsumexp(1) + scores[:, t]
        alpha = torch.where(words[:, t, None], reached, alpha)
    return alpha


def _side_by_side(
    scores: Scores, words: Words, tags: Int[Tensor, "batch words"] | None
) -> tuple[
    Float[Tensor, "batch longest tags"], Bool[Tensor, "batch longest"], Int[Tensor, "batch longest"]
]:
    """The words of each text without the tokens between them, padded on the right.

    Scores are in float32 or wider.
    """
    longest = max(int(words.sum(1).max()), 1)
    order = (~words).int().argsort(dim=1, stable=True)[:, :longest]
    wide = at_least_float32(scores)
    of_words = wide.gather(1, order[..., None].expand(-1, -1, scores.shape[2]))
    real = words.gather(1, order)
    # Whatever stands in the padding, NaN included, is kept out of every product.
    tags = order if tags is None else tags.gather(1, order)
    return torch.where(real[..., None], of_words, 0.0), real, tags


class CRFHead(nn.Module):
    """`W drop(x) + b`: scores of tags, from which a chain picks the best path (Lample et al. 2016).

    The `chain` adds what it costs to begin with a tag, to end with one, and to go from one to the
    next; `log_likelihood` learns it, and `best_tags` finds the best path.
    """

    def __init__(self, d_model: int, n_outputs: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.proj = Linear(d_model, n_outputs)
        self.chain = Chain(n_outputs)

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "batch seq tags"]:
        return self.proj(self.dropout(x))

    def loss_sum(
        self, outputs: Scores, targets: Int[Tensor, "batch words"], valid: Words | None
    ) -> Float[Tensor, ""]:
        """`-log p` of all tags of each text, summed; targets below zero are not words."""
        likelihood = eagerly(log_likelihood)  # a loop over words
        return -likelihood(self.chain, outputs, targets, targets >= 0).sum()


@config
class CRFHeadConfig:
    """The tags of all words of a text, chosen jointly (Lafferty et al. 2001; Lample et al. 2016).

    A score for every tag after every other is learnt as well as those of the words, so that I-place
    never follows B-person. The loss is that of whole texts, whose tags Viterbi's algorithm finds.
    """

    task: ClassVar[str] = "tagging"
    joint_loss: ClassVar[bool] = True

    kind: Literal["crf"] = "crf"
    dropout: Probability = 0.0
    """The dropout rate before the scores of the words."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """No examples here: the order of tags is learnt in its loss, and is tested with it."""
        return {}

    def conflict(self, around: Any) -> str | None:
        """A CRF head needs an encoder of texts without early exits."""
        if around.input.kind != "tokens":
            return "a crf head tags words: it needs model.input.kind = 'tokens'"
        if around.exits:
            return "a crf head has no early exits: leave model.exits out"
        return None

    def build(self, d_model: int, n_outputs: int) -> CRFHead:
        return CRFHead(d_model, n_outputs, dropout=self.dropout)
