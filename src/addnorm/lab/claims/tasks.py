"""The data for the claims: generated sequences, and natural language.

They are drawn from a generator, so that a seed decides them.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from addnorm.data.readers.text_files import read_text
from addnorm.errors import InputError

IGNORED = -100
"""The target of a position that is not scored."""


class Examples(NamedTuple):
    """Tokens, the target at each position, and a mask of positions that are not padding."""

    tokens: Int[Tensor, "batch seq"]
    targets: Int[Tensor, "batch seq"]
    valid: Bool[Tensor, "batch seq"] | None = None


@runtime_checkable
class Text(Protocol):
    """A source of texts of any length."""

    vocab: int

    def draw(
        self, generator: torch.Generator, n: int, length: int, *, test: bool = False
    ) -> Int[Tensor, "n length"]:
        """Draw texts; test texts never overlap with training texts."""
        ...


class Chain:
    """A random Markov chain of order two over eight tokens: the last two decide the next.

    The best possible loss is 1.25 nats a token; a model that sees only the latest token reaches
    1.90, one that sees none 2.04.
    """

    vocab = 8

    def __init__(self) -> None:
        of_chain = torch.Generator().manual_seed(0)
        likely = torch.randn(self.vocab**2, self.vocab, generator=of_chain) * 2
        self.cumulative = likely.softmax(-1).cumsum(-1)

    def draw(
        self, generator: torch.Generator, n: int, length: int, *, test: bool = False
    ) -> Int[Tensor, "n length"]:
        del test  # new ones each time
        chance = torch.rand(n, length, 1, generator=generator)
        tokens = torch.randint(self.vocab, (n, length), generator=generator)
        for i in range(2, length):
            pair = tokens[:, i - 2] * self.vocab + tokens[:, i - 1]
            following = (self.cumulative[pair] < chance[:, i]).sum(-1)
            tokens[:, i] = following.clamp(max=self.vocab - 1)
        return tokens


class Characters:
    """The characters of a text file, whose last tenth is for tests."""

    def __init__(self, file: Path) -> None:
        self.file, text = file, read_text(file)
        alphabet = sorted(set(text))
        self.vocab = len(alphabet)
        number = {character: i for i, character in enumerate(alphabet)}
        self.tokens = torch.tensor([number[character] for character in text])

    def draw(
        self, generator: torch.Generator, n: int, length: int, *, test: bool = False
    ) -> Int[Tensor, "n length"]:
        cut = len(self.tokens) * 9 // 10
        part = self.tokens[cut:] if test else self.tokens[:cut]
        if len(part) < length:
            raise InputError(f"{self.file}: too short: {length} characters in a row are needed")
        starts = torch.randint(len(part) - length + 1, (n, 1), generator=generator)
        return part[starts + torch.arange(length)]


GENERATED = "chain"
"""The name of the task whose data is generated."""


@cache
def text_of(task: str) -> Text:
    """The source of a task's texts: a Markov chain for `chain`, else a file."""
    return Chain() if task == GENERATED else Characters(Path(task))


@cache
def halfway(task: str) -> float:
    """The mean of a unigram model's loss and a bigram model's loss on a task's texts."""
    text = text_of(task)
    drawn = text.draw(torch.Generator().manual_seed(1), 2000, 64)
    follows = torch.zeros(text.vocab, text.vocab, dtype=torch.double)
    ones = torch.ones(drawn[:, 1:].numel(), dtype=torch.double)
    follows.index_put_((drawn[:, :-1].flatten(), drawn[:, 1:].flatten()), ones, accumulate=True)
    follows /= follows.sum()
    first = -torch.special.xlogy(follows.sum(0), follows.sum(0)).sum().item()
    second = -torch.special.xlogy(follows.sum(1), follows.sum(1)).sum().item()
    joint = -torch.special.xlogy(follows, follows).sum().item()
    return (first + joint - second) / 2


def next_tokens(tokens: Int[Tensor, "batch length"]) -> Examples:
    """Return next-token prediction: every token but the last, with the token after each."""
    return Examples(tokens[:, :-1], tokens[:, 1:])


def in_order(generator: torch.Generator, n: int, length: int, *, causal: bool) -> Examples:
    """Return noise with tokens 2 and 3 in it: the answer is 1 if 2 comes first, else 0.

    The answer is the target of a special token: the last or, for encoders, the first.
    """
    tokens = torch.randint(5, 13, (n, length), generator=generator)
    places = torch.rand(n, length, generator=generator).topk(2).indices
    tokens.scatter_(1, places, torch.tensor([2, 3]).expand(n, 2))
    answer = (places[:, 0] < places[:, 1]).long()
    question = torch.full((n, 1), 4)
    tokens = torch.cat((tokens, question) if causal else (question, tokens), 1)
    return _with_answer(tokens, answer, -1 if causal else 0)


def remembered(generator: torch.Generator, n: int, distance: int) -> Examples:
    """The copying task: output the first of eight symbols after `distance` tokens of noise."""
    answer = torch.randint(8, (n,), generator=generator)
    noise = torch.randint(8, 16, (n, distance), generator=generator)
    question = torch.full((n, 1), 16)
    return _with_answer(torch.cat((answer[:, None], noise, question), 1), answer, -1)


def recalled(generator: torch.Generator, n: int, distance: int) -> Examples:
    """Associative recall: four keys with their values, noise, and one key whose value is asked."""
    keys = torch.rand(n, 8, generator=generator).topk(4).indices
    values = torch.randint(8, 16, (n, 4), generator=generator)
    pairs = torch.stack((keys, values), 2).flatten(1)
    noise = torch.randint(16, 24, (n, max(0, distance - 8)), generator=generator)
    which = torch.randint(4, (n, 1), generator=generator)
    answer = values.gather(1, which)[:, 0]
    return _with_answer(torch.cat((pairs, noise, keys.gather(1, which)), 1), answer, -1)


def added(generator: torch.Generator, n: int, distance: int) -> Examples:
    """The adding problem with digits: the answer is the sum modulo ten of two marked digits.

    One stands in the first tenth, the other in the last half.
    """
    digits = torch.randint(10, (n, distance), generator=generator)
    early = torch.randint(max(1, distance // 10), (n,), generator=generator)
    late = torch.randint(distance // 2, distance, (n,), generator=generator)
    rows = torch.arange(n)
    answer = (digits[rows, early] + digits[rows, late]) % 10
    digits[rows, early] += 10
    digits[rows, late] += 10
    return _with_answer(torch.cat((digits, torch.full((n, 1), 20)), 1), answer, -1)


def _with_answer(tokens: Tensor, answer: Tensor, place: int) -> Examples:
    targets = torch.full_like(tokens, IGNORED)
    targets[:, place] = answer
    return Examples(tokens, targets)


def unequal_texts(
    generator: torch.Generator, text: Text, n: int, mean_length: int, spread: float
) -> Examples:
    """Return next-token prediction on padded texts of unequal length.

    Lengths are uniform between `1 - spread` and `1 + spread` times their mean.
    """
    longest = round(mean_length * (1 + spread))
    least = max(3, round(mean_length * (1 - spread)))
    lengths = torch.randint(least, longest + 1, (n, 1), generator=generator)
    tokens, targets, _ = next_tokens(text.draw(generator, n, longest + 1))
    valid = torch.arange(longest) < lengths
    return Examples(
        tokens.where(valid, torch.tensor(0)), targets.where(valid, torch.tensor(IGNORED)), valid
    )
