"""Beam search against exhaustive and reference search, on trees of random logits."""

import random
from itertools import product
from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.generate.plain_beam import Table, plain_beam_search
from torch import Tensor

from addnorm.generate import BeamConfig, Generated, GreedyConfig
from addnorm.generate.beam import beam_search
from addnorm.generate.decode import decode

EOS = 0


class Tree:
    """A `NextToken` whose logits are random numbers given by all the tokens that came before."""

    def __init__(self, vocab: int, seed: int = 0, sharpness: float = 2.0) -> None:
        self.vocab, self.seed, self.sharpness = vocab, seed, sharpness
        self.rows_read = 0

    def remaining_length(self, i: int, prompt: tuple[int, ...]) -> int:
        return 1000

    def start(self, prompts: list[tuple[int, ...]]) -> Tensor:
        self.rows = [tuple(prompt) for prompt in prompts]
        return self.logits()

    def step(self, tokens: Tensor) -> Tensor:
        self.rows = [(*row, t) for row, t in zip(self.rows, tokens.tolist(), strict=True)]
        return self.logits()

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[i] for i in rows.tolist()]

    def logits(self) -> Tensor:
        self.rows_read += len(self.rows)
        return torch.stack([self.after(row) for row in self.rows])

    def after(self, row: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, *row)) % 2**63)
        return torch.randn(self.vocab, generator=generator) * self.sharpness

    def log_p(self, prompt: tuple[int, ...], ids: tuple[int, ...]) -> float:
        steps = [self.after((*prompt, *ids[:i])).log_softmax(-1)[t] for i, t in enumerate(ids)]
        return float(sum(steps))


def every_score(tree: Tree, prompt: tuple[int, ...], limit: int, config: BeamConfig) -> dict:
    """The score of every complete continuation of at most `limit` tokens, its end included."""
    words = range(1, tree.vocab)
    every = [ids for n in range(limit) for ids in product(words, repeat=n)]
    return {
        ids: tree.log_p(prompt, (*ids, EOS)) / ((5 + len(ids) + 1) / 6) ** config.length_penalty
        for ids in every
    }


def search(
    tree: Tree, prompts, config: BeamConfig, limits, ends: tuple[int, ...] = (EOS,)
) -> list[list[Generated]]:
    return beam_search(tree, prompts, config, limits, ends)


@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 4),
    limit=st.integers(1, 4),
    penalty=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
)
def test_enough_beams_find_the_best_text(seed: int, vocab: int, limit: int, penalty: float) -> None:
    tree, prompt = Tree(vocab, seed), (1, 2)
    config = BeamConfig(beams=vocab**limit, n_best=2, length_penalty=penalty)
    scores = every_score(tree, prompt, limit, config)
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)[:2]
    [best] = search(tree, [prompt], config, [limit])
    complete = [g for g in best if g.finished == "eos"]
    assert [g.ids for g in complete] == ranked[: len(complete)]
    assert len(complete) == min(2, len(scores))
    expected = [scores[g.ids] for g in complete]
    assert [g.score for g in complete] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("width", ["shrinking", "constant"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("seed", range(12))
def test_a_batch_equals_the_definition(seed: int, penalty: float, width: str) -> None:
    draw = random.Random(f"{seed} {penalty} {width}")
    beams = draw.randint(1, 5)
    others: Any = {
        "normaliser": draw.choice(["gnmt", "length"]),
        "early_stopping": draw.choice(["never", "never", True, False]),
        "unfinished": draw.choice(["last", "ranked"]),
    }
    config = BeamConfig(
        beams=beams,
        n_best=draw.randint(1, beams),
        length_penalty=penalty,
        width=width,  # pyright: ignore[reportArgumentType]
        **others,
    )
    table, ends = Table(draw.randint(2, 6), seed), draw.choice([(EOS,), (EOS,), (1, EOS), ()])
    limits = [draw.randint(1, 9) for _ in range(6)]
    prompts = [(i,) * (1 + i % 2) for i in range(6)]
    results = beam_search(table, prompts, config, limits, ends)
    for prompt, limit, best in zip(prompts, limits, results, strict=True):
        expected = plain_beam_search(
            lambda ids, prompt=prompt: table.log_p((*prompt, *ids)), config, limit, ends
        )
        assert [(g.ids, g.finished) for g in best] == [(h.ids, h.finished) for h in expected]
        assert [g.score for g in best] == pytest.approx([h.score for h in expected], rel=1e-6)


def test_a_constant_width_stays_constant_where_several_tokens_end() -> None:
    class Ends(Table):
        """Both end tokens are likelier than the only other token."""

        def logits(self, history: tuple[int, ...]) -> list[float]:
            return [2.0, 1.0, 0.0]

    config = BeamConfig(beams=1, length_penalty=10.0, width="constant")
    [[result]] = beam_search(Ends(3, 0), [(2,)], config, [4], (0, 1))
    assert (result.ids, result.finished) == ((2, 2, 2), "eos")


@given(seed=st.integers(0, 10**6), limit=st.integers(1, 12))
def test_one_beam_is_greedy(seed: int, limit: int) -> None:
    prompts = [(1,), (2, 3), (3,)]
    beam = decode(Tree(4, seed), prompts, BeamConfig(beams=1), [limit] * 3, eos_id=EOS)
    greedy = decode(Tree(4, seed), prompts, GreedyConfig(), [limit] * 3, eos_id=EOS)
    assert [(b.ids, b.finished) for [b] in beam] == [(g.ids, g.finished) for [g] in greedy]


def test_closed_sentences_are_not_computed() -> None:
    class Ends(Tree):
        """Prompt (1,) ends at once, prompt (2,) never."""

        def after(self, row: tuple[int, ...]) -> Tensor:
            return torch.tensor([50.0 if row[0] == 1 else -inf, 1.0, 0.0])

    tree = Ends(3)
    [[first], [second]] = search(tree, [(1,), (2,)], BeamConfig(beams=2), [10, 10])
    assert (first.ids, first.finished) == ((), "eos")
    assert (second.ids, second.finished) == ((1,) * 10, "length")
    # Both at the start, then two beams of one sentence: (1,) closed before it was read again.
    assert tree.rows_read == 2 + 9 * 2


def test_more_beams_than_tokens_find_every_text_without_an_end_token() -> None:
    [[*hypotheses]] = beam_search(Tree(2), [(1,)], BeamConfig(beams=7, n_best=7), [2], ())
    assert sorted(g.ids for g in hypotheses) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [g.score for g in hypotheses] == sorted((g.score for g in hypotheses), reverse=True)
    assert {g.finished for g in hypotheses} == {"length"}


def test_invalid_settings_are_rejected() -> None:
    for bad in ({"beams": 0}, {"n_best": 0}, {"beams": 2, "n_best": 3}, {"length_penalty": -11.0}):
        with pytest.raises(ValidationError):
            BeamConfig(**bad)
