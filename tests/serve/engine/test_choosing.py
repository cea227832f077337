"""Tokens are chosen row by row, by the options of each request."""

from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.engine.tiny import run_of

from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, RulesConfig, SampleConfig
from addnorm.serve.engine.choosing import Chooser, choose, decoding_of
from addnorm.serve.engine.options import Options

VOCAB = 11
GREEDY = GreedyConfig()


def chooser(
    decoding: GreedyConfig | SampleConfig = GREEDY, limit: int = 9, **options: Any
) -> Chooser:
    return Chooser.of(decoding, Options(**options), before=(1, 2), limit=limit, n=2, ends=(3,))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.5, "presence_penalty": 0.25},
    {"logit_bias": {4: 3.0, 0: -100.0}},
]
RULES = [
    RulesConfig(),
    RulesConfig(repetition_penalty=1.7),
    RulesConfig(no_repeat_ngram_size=2, suppress_tokens=(5,)),
    RulesConfig(min_new_tokens=3, forced_eos_token_id=3),
]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(range(len(OPTIONS))),
            st.sampled_from(range(len(RULES))),
            st.booleans(),
            st.lists(st.integers(0, VOCAB - 1), max_size=8),
        ),
        min_size=1,
        max_size=9,
    )
)
def test_each_row_is_chosen_as_if_it_were_alone(
    rows: list[tuple[int, int, bool, list[int]]],
) -> None:
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(len(rows)))

    def answers() -> list[Any]:
        return [
            chooser(
                SampleConfig(seed=5, rules=RULES[j]) if drawn else GreedyConfig(rules=RULES[j]),
                **OPTIONS[i],
            ).answer(0, written)
            for i, j, drawn, written in rows
        ]

    together = choose(logits, answers()).tokens
    alone = [choose(logits[i : i + 1], [each]).tokens[0] for i, each in enumerate(answers())]
    assert together == alone


def test_penalties_count_the_tokens_written_and_not_the_prompt() -> None:
    logits = torch.zeros(1, VOCAB, dtype=torch.float32)
    written = [4, 4, 6]
    choice = chooser(presence_penalty=0.5, frequency_penalty=0.25, logit_bias={7: 2.0}).choice
    answer = Chooser(choice, Options(), (1, 2), 9, ()).answer(0, written)
    expected = torch.zeros(VOCAB)
    expected[4], expected[6], expected[7] = -0.5 - 2 * 0.25, -0.5 - 0.25, 2.0
    torch.testing.assert_close(choice.scores(logits, [answer])[0], expected)


def test_a_row_without_an_allowed_token_fails_alone() -> None:
    only_end = RulesConfig(suppress_tokens=tuple(set(range(VOCAB)) - {3}), min_new_tokens=1)
    stuck = chooser(GreedyConfig(rules=only_end)).answer(0, [])
    logits = torch.randn(4, VOCAB)
    logits[2, 0], logits[3, 0] = torch.nan, inf
    drawn = chooser(SampleConfig()).answer(0, [])
    chosen = choose(logits, [chooser().answer(0, []), stuck, chooser().answer(0, []), drawn])
    assert chosen.tokens[0] == int(logits[0].argmax())
    assert "allow no token" in chosen.failed[1]
    assert "NaN" in chosen.failed[2]
    assert chosen.failed.keys() == {1, 2, 3}


@given(
    number=st.sampled_from([5e-324, 1e-320, 1e-300, 1e-40, 1e-20, 1.0, 100.0]),
    field=st.sampled_from(["temperature", "repetition_penalty", "top_p", "min_p"]),
    frequency=st.sampled_from([-2.0, 0.0, 2.0]),
    drawn=st.booleans(),
)
def test_every_number_that_is_taken_gives_a_token(
    number: float, field: str, frequency: float, drawn: bool
) -> None:
    changes: dict[str, Any] = {"rules": RulesConfig()}
    if field == "repetition_penalty":
        changes["rules"] = RulesConfig(repetition_penalty=number)
    elif drawn:
        changes[field] = number if field == "temperature" else min(number, 1.0)
    decoding = SampleConfig(**changes) if drawn else GreedyConfig(rules=changes["rules"])
    answer = chooser(decoding, frequency_penalty=frequency).answer(0, [*range(VOCAB)] * 3)
    assert choose(1e3 * torch.randn(1, VOCAB), [answer]).failed == {}


def test_near_ties_of_greedy_choices_are_counted() -> None:
    logits = torch.full((3, VOCAB), -inf)
    logits[0, :2] = torch.tensor([1.0, 1.00005])
    logits[1, :2] = torch.tensor([1.0, 1.1])
    logits[2, :2] = torch.tensor([1.0, 1.0])
    drawn = chooser(SampleConfig()).answer(0, [])
    answers = [chooser().answer(0, []), chooser().answer(0, []), drawn]
    assert choose(logits, answers).near_ties == 1


def test_options_lie_on_top_of_the_models_own_decoding() -> None:
    run = run_of()
    assert isinstance(decoding_of(run, Options()), SampleConfig)
    assert decoding_of(run, Options(decoding="greedy", top_p=0.5)) == GreedyConfig()
    own = decoding_of(run, Options(seed=4, top_p=0.5, repetition_penalty=1.25, min_tokens=2))
    rules = RulesConfig(repetition_penalty=1.25, min_new_tokens=2)
    assert own == SampleConfig(seed=4, top_p=0.5, rules=rules)
    assert decoding_of(run, Options(decoding="beam", n_best=7)) == BeamConfig(beams=7, n_best=7)
    assert decoding_of(run, Options(decoding="beam", beams=3, length_penalty=0.0)) == BeamConfig(
        beams=3, length_penalty=0.0
    )


def test_options_that_are_wrong_are_refused() -> None:
    run = run_of()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"decoding": "gredy"}, "Did you mean 'greedy'"),
        ({"presence_penalty": 2.5}, "at least -2 and at most 2"),
        ({"seed": -1}, "seed"),
        ({"log_probs": -1}, "log_probs"),
        ({"logit_bias": {3: 101.0}}, "logit_bias"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 1.5}, "top_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"beams": 4, "top_p": 0.5}, "does not sample"),
        ({"beams": 4, "logit_bias": {3: 1.0}}, "beam search has no logit_bias"),
        ({"forced_bos": 3}, "only a translation"),
    ]
    for options, message in wrong:
        with pytest.raises(InputError, match=message):
            decoding_of(run, Options(**options))
