"""Options of decoding: what they choose, what they leave as it is, which do not go together."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.test_house import write_gpt2

import addnorm as an
from addnorm.data.tokenizing.tokenizers import CharConfig
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, RulesConfig, SampleConfig
from addnorm.runs.inference.decoding import _id_of, decoding_for
from addnorm.runs.run import Run

RunOf = Callable[[str], Path]


def test_options_choose_the_decoding(run_of: RunOf) -> None:
    play, translator = Run.open(run_of("language")), Run.open(run_of("translation"))
    assert decoding_for(play) == SampleConfig()
    assert decoding_for(play, seed=3, top_k=2) == SampleConfig(seed=3, top_k=2)
    assert decoding_for(translator) == translator.recipe.eval.decoding
    assert decoding_for(translator, seed=3) == translator.recipe.eval.decoding
    assert decoding_for(translator, temperature=0.5) == SampleConfig(temperature=0.5)
    assert decoding_for(play, beams=1) == GreedyConfig()
    assert decoding_for(play, beams=3) == BeamConfig(beams=3)
    assert decoding_for(play, n_best=7) == BeamConfig(beams=7, n_best=7)


def test_options_of_a_search_leave_the_rest_of_it_as_it_is(run_of: RunOf) -> None:
    play, translator = Run.open(run_of("language")), Run.open(run_of("translation"))
    assert decoding_for(play, length_penalty=0.0) == BeamConfig(length_penalty=0.0)
    own = BeamConfig(beams=2, normaliser="length", early_stopping=False)
    evaluation = replace(translator.recipe.eval, decoding=own)
    translator = replace(translator, recipe=replace(translator.recipe, eval=evaluation))
    assert decoding_for(translator, length_penalty=2.0) == replace(own, length_penalty=2.0)
    assert decoding_for(translator, early_stopping=True) == replace(own, early_stopping=True)
    assert decoding_for(translator, n_best=2) == replace(own, n_best=2)


def test_rules_hold_in_every_decoding(run_of: RunOf) -> None:
    play, translator = Run.open(run_of("language")), Run.open(run_of("translation"))
    rules = RulesConfig(no_repeat_ngram_size=2)
    assert decoding_for(play, no_repeat_ngram=2) == SampleConfig(rules=rules)
    assert decoding_for(play, no_repeat_ngram=2, beams=1) == GreedyConfig(rules=rules)
    assert decoding_for(translator, no_repeat_ngram=2) == BeamConfig(beams=2, rules=rules)
    cat = translator.tokenizers.target.id_of("katze")
    assert cat is not None
    for token in ("katze", str(cat), cat):
        found = decoding_for(translator, forced_bos=token)
        assert found.rules == RulesConfig(forced_bos_token_id=cat)
    assert translator.generate("no dog", forced_bos="katze", beams=1).startswith("katze")


@pytest.mark.parametrize(
    ("task", "options", "expected"),
    [
        ("language", {"temperature": -0.5}, "temperature = -0.5"),
        ("language", {"top_p": 1.5}, "top_p = 1.5"),
        ("language", {"seed": -1}, "seed = -1"),
        ("language", {"beams": 0}, "beams = 0"),
        ("language", {"n_best": 0}, "n_best = 0"),
        ("language", {"beams": 2, "n_best": 3}, "`n_best = 3` needs as many `beams`"),
        ("language", {"beams": 2, "top_k": 3}, "leave out `top_k`, or `beams`"),
        ("language", {"length_penalty": 1.0, "top_k": 3}, "leave out `top_k`, or `length_penalty`"),
        ("language", {"length_penalty": 11.0}, "length_penalty = 11.0"),
        ("language", {"beams": 1, "early_stopping": True}, "leave out `early_stopping`"),
        ("language", {"no_repeat_ngram": -1}, "no_repeat_ngram = -1"),
        ("language", {"forced_bos": "x"}, "give it a prompt that begins so"),
        ("translation", {"forced_bos": "<eso>"}, "no such token. Did you mean '<eos>'?"),
        ("translation", {"forced_bos": 1000}, "an id from 0 to "),
        ("translation", {"forced_bos": -1}, "forced_bos = -1"),
    ],
)
def test_options_that_cannot_be(
    task: str, options: dict[str, Any], expected: str, run_of: RunOf
) -> None:
    with pytest.raises(InputError) as caught:
        decoding_for(Run.open(run_of(task)), **options)
    assert expected in str(caught.value)


def test_a_hugging_face_folder_is_searched_as_its_library_searches(tmp_path: Path) -> None:
    write_gpt2(tmp_path / "gpt2")
    run = an.load(tmp_path / "gpt2")
    found = decoding_for(run, beams=4, length_penalty=3.0)
    expected = BeamConfig(
        beams=4,
        length_penalty=3.0,
        normaliser="length",
        early_stopping=False,
        width="constant",
        unfinished="ranked",
    )
    assert found == expected


def test_digits_are_an_id(tmp_path: Path) -> None:
    tokenizer = CharConfig().train(["0123456789"])
    assert tokenizer.id_of("7") != 7
    assert _id_of(tokenizer, "7") == 7
    assert _id_of(tokenizer, "<eos>") == tokenizer.eos_id
