"""Made data: answers are right, chance is what it is said to be, and a seed decides all."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from addnorm.errors import InputError
from addnorm.lab.claims.tasks import (
    IGNORED,
    Chain,
    Characters,
    Examples,
    added,
    in_order,
    next_tokens,
    recalled,
    remembered,
    unequal_texts,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def answers(examples: Examples) -> Tensor:
    """The one answer of each row."""
    scored = examples.targets != IGNORED
    assert (scored.sum(1) == 1).all()
    return examples.targets[scored]


def entropy(counts: Tensor) -> float:
    share = counts.double() / counts.sum()
    return -torch.special.xlogy(share, share).sum().item()


def test_the_chain_needs_the_two_latest_tokens() -> None:
    """Its docstring says what each who knows less can reach at best."""
    chain = Chain()
    tokens = chain.draw(seeded(), 4000, 40)[:, 2:]
    n = chain.vocab
    singles = torch.bincount(tokens.flatten(), minlength=n)
    pairs = torch.bincount((tokens[:, :-1] * n + tokens[:, 1:]).flatten(), minlength=n**2)
    triples = (tokens[:, :-2] * n + tokens[:, 1:-1]) * n + tokens[:, 2:]
    thrice = torch.bincount(triples.flatten(), minlength=n**3)
    alone, after_one = entropy(singles), entropy(pairs) - entropy(singles)
    best = entropy(thrice) - entropy(pairs)
    assert f"{best:.2f}" in (Chain.__doc__ or "")
    assert f"{after_one:.2f}" in (Chain.__doc__ or "")
    assert alone > after_one + 0.1 > best + 0.3


def test_draws_depend_on_the_seed_alone() -> None:
    first, again, other = (Chain().draw(seeded(seed), 8, 16) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_order_of_two_marks_is_asked() -> None:
    for causal in (True, False):
        examples = in_order(seeded(), 500, 12, causal=causal)
        first = (examples.tokens == 2).int().argmax(1) < (examples.tokens == 3).int().argmax(1)
        assert torch.equal(answers(examples), first.long())
        assert 0.4 < first.float().mean() < 0.6
        place = examples.tokens.shape[1] - 1 if causal else 0
        assert (examples.tokens[:, place] == 4).all()
        assert (examples.targets[:, place] != IGNORED).all()


@pytest.mark.parametrize("distance", [1, 16, 100])
def test_the_first_symbol_is_asked_after_a_distance(distance: int) -> None:
    examples = remembered(seeded(), 100, distance)
    assert torch.equal(answers(examples), examples.tokens[:, 0])
    assert examples.tokens.shape == (100, distance + 2)
    assert (examples.tokens[:, 1:-1] >= 8).all()


@pytest.mark.parametrize("distance", [8, 30])
def test_the_value_of_a_key_is_recalled(distance: int) -> None:
    examples = recalled(seeded(), 100, distance)
    for row, answer in zip(examples.tokens.tolist(), answers(examples).tolist(), strict=True):
        values = dict(zip(row[0:8:2], row[1:8:2], strict=True))
        assert len(values) == 4
        assert values[row[-1]] == answer


@pytest.mark.parametrize("distance", [2, 5, 64])
def test_two_marked_digits_are_added(distance: int) -> None:
    examples = added(seeded(), 200, distance)
    for row, answer in zip(examples.tokens.tolist(), answers(examples).tolist(), strict=True):
        marked = [token - 10 for token in row[:-1] if token >= 10]
        assert len(marked) == 2
        assert sum(marked) % 10 == answer


@pytest.mark.parametrize("spread", [0.0, 0.5, 0.9])
def test_padding_is_not_scored(spread: float) -> None:
    examples = unequal_texts(seeded(), Chain(), 300, 24, spread)
    assert examples.valid is not None
    lengths = examples.valid.sum(1)
    assert lengths.float().mean().sub(24).abs() < 2
    assert (lengths.max() > lengths.min()) == bool(spread)
    assert torch.equal(examples.targets != IGNORED, examples.valid)
    pairs = examples.valid[:, :-1] & examples.valid[:, 1:]
    assert torch.equal(examples.targets[:, :-1][pairs], examples.tokens[:, 1:][pairs])


def test_characters_keep_their_tests_apart(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("a" * 90 + "b" * 10, "utf-8")
    text = Characters(file)
    assert text.vocab == 2
    assert text.draw(seeded(), 50, 5).unique().tolist() == [0]
    assert text.draw(seeded(), 50, 5, test=True).unique().tolist() == [1]
    with pytest.raises(InputError, match=r"text\.txt"):
        Characters(tmp_path / "none" / "text.txt")


def test_a_text_shorter_than_a_sample_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("a short text", "utf-8")
    with pytest.raises(InputError, match="too short"):
        Characters(file).draw(seeded(), 2, 60)


def test_the_next_token_is_the_target() -> None:
    examples = next_tokens(torch.arange(6).view(2, 3))
    assert examples.tokens.tolist() == [[0, 1], [3, 4]]
    assert examples.targets.tolist() == [[1, 2], [4, 5]]
