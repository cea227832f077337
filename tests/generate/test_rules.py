"""Generation rules on hand-written scores; without rules nothing changes."""

from math import inf
from typing import Any

import pytest
import torch
from tests.generate.plain_beam import Table
from torch import Tensor

from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, RulesConfig, SampleConfig
from addnorm.generate.decode import decode
from addnorm.generate.rules import Rules, ngrams_repeated, repetition_penalised

SCORES = torch.tensor([[2.0, -1.0, 0.5, -3.0]])
ENDS = (0,)


def applied(before: list[int], written: list[int], limit: int = 9, **rules: Any) -> Tensor:
    of_text = Rules.over(RulesConfig(**rules), [before], [limit], ENDS)
    assert of_text is not None
    return of_text.apply(SCORES, torch.tensor([written], dtype=torch.long))[0]


def without(*tokens: int) -> list[float]:
    return [-inf if i in tokens else x for i, x in enumerate(SCORES[0].tolist())]


@pytest.mark.parametrize(
    ("rules", "before", "written", "expected"),
    [
        ({"suppress_tokens": (1, 3)}, [1], [], without(1, 3)),
        ({"begin_suppress_tokens": (2,)}, [1], [], without(2)),
        ({"begin_suppress_tokens": (2,)}, [1], [3], without()),
        ({"begin_suppress_tokens": (2,), "forced_bos_token_id": 3}, [1], [3], without(2)),
        ({"begin_suppress_tokens": (2,), "forced_bos_token_id": 3}, [1, 1], [], without(2)),
        ({"forced_bos_token_id": 3}, [1], [], [-inf, -inf, -inf, 0.0]),
        ({"forced_bos_token_id": 3}, [1, 2], [], without()),
        ({"forced_eos_token_id": 1}, [1], [2] * 8, [-inf, 0.0, -inf, -inf]),
        ({"forced_eos_token_id": 1}, [1], [2] * 7, without()),
        ({"min_new_tokens": 2}, [1, 1, 1], [2], without(0)),
        ({"min_new_tokens": 2}, [1, 1, 1], [2, 2], without()),
        ({"min_length": 4}, [1, 1], [2], without(0)),
        ({"min_length": 4}, [1, 1], [2, 2], without()),
        ({"no_repeat_ngram_size": 1}, [1], [2], without(1, 2)),
        ({"no_repeat_ngram_size": 2}, [1, 2, 3], [1], without(2)),
        ({"repetition_penalty": 2.0}, [0], [1], [1.0, -2.0, 0.5, -3.0]),
        ({"repetition_penalty": 0.5}, [3], [], [2.0, -1.0, 0.5, -1.5]),
    ],
)
def test_each_rule_changes_the_scores_as_defined(
    rules: dict[str, Any], before: list[int], written: list[int], expected: list[float]
) -> None:
    assert applied(before, written, **rules).tolist() == expected


def test_renormalised_scores_are_probabilities() -> None:
    scores = applied([1], [], suppress_tokens=(0,), renormalize_logits=True)
    assert scores[0] == -inf
    assert float(scores.exp().sum()) == pytest.approx(1.0)


def test_rules_apply_to_each_text_separately() -> None:
    rules = Rules.over(
        RulesConfig(min_length=3, no_repeat_ngram_size=1), [[1, 2], [3]], [9, 9], ENDS
    )
    assert rules is not None
    scores = rules.apply(SCORES.expand(4, -1), torch.tensor([[2], [0], [2], [1]]))
    assert scores.tolist() == [without(1, 2), without(0, 1, 2), without(0, 2, 3), without(0, 1, 3)]
    assert rules.keep(torch.tensor([1])).apply(SCORES, torch.tensor([[2]])).tolist() == [
        without(0, 2, 3)
    ]


def test_repeated_ngrams_equal_a_plain_search() -> None:
    history = [[-1, 1, 2, 1, 2], [3, 1, 2, 0, 1], [-1, -1, -1, -1, 1]]
    for n in (1, 2, 3, 6):
        repeated = ngrams_repeated(torch.tensor(history), n, 4).tolist()
        for row, banned in zip(history, repeated, strict=True):
            ids = [i for i in row if i >= 0]
            there = {tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)}
            tail = ids[len(ids) - n + 1 :] if n > 1 else []
            full = len(ids) >= n - 1
            assert banned == [full and (*tail, token) in there for token in range(4)]


def test_no_penalty_returns_the_same_tensor() -> None:
    assert repetition_penalised(SCORES, torch.tensor([[1]]), 1.0) is SCORES
    assert Rules.over(RulesConfig(max_new_tokens=3, max_length=9), [[1]], [9], ENDS) is None


@pytest.mark.parametrize("penalty", [1e-30, 1e-45, 1e-320])
def test_a_tiny_penalty_makes_no_score_infinite(penalty: float) -> None:
    scores = torch.tensor([[1e10, 0.0, -2.0, -inf, 5.0]])
    penalised = repetition_penalised(scores, torch.tensor([[0, 1, 2, 3]]), penalty)
    assert not (penalised.isnan() | (penalised == inf)).any()
    assert penalised.argmax() == 0
    assert penalised[0, 4] == 5.0


def test_limits_follow_the_rules() -> None:
    assert RulesConfig().limit(None, 3, 7) == 7
    assert RulesConfig(max_length=5).limit(None, 3, 7) == 2
    assert RulesConfig(max_length=5, max_new_tokens=4).limit(None, 3, 7) == 4
    assert RulesConfig(max_length=5, max_new_tokens=4).limit(6, 3, 7) == 6
    with pytest.raises(InputError, match="leaves none of max_length = 5"):
        RulesConfig(max_length=5).limit(None, 5, 7)


@pytest.mark.parametrize("decoding", [GreedyConfig, SampleConfig, BeamConfig])
def test_every_kind_of_decoding_obeys_the_rules(decoding: Any) -> None:
    rules = RulesConfig(suppress_tokens=(3,), min_new_tokens=4, no_repeat_ngram_size=2)
    prompts = [(1,), (2, 1)]
    for [best] in decode(Table(5, 0), prompts, decoding(rules=rules), [12, 12], eos_id=0):
        assert len(best.ids) >= 4
        assert 3 not in best.ids
        pairs = list(zip(best.ids, best.ids[1:], strict=False))
        assert len(pairs) == len(set(pairs))
    for bad in ((0, 1, 2, 3, 4), (9,)):
        match = "allow no token" if 9 not in bad else "names the token 9: this model writes 0 to 4"
        rules = RulesConfig(suppress_tokens=bad)
        with pytest.raises(InputError, match=match):
            decode(Table(5, 0), prompts, decoding(rules=rules), [5, 5], eos_id=0)
