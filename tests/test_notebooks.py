"""What notebooks show: tables of HTML in which no text is taken for mark-up."""

from dataclasses import dataclass

import addnorm as an
from addnorm.data.example import Example
from addnorm.data.tokenizing.tokenizers import CharConfig, train_tokenizer
from addnorm.notebooks import html_table
from addnorm.runs.evaluation import Scores
from addnorm.tasks.task import Evaluation


def test_a_table_is_escaped_and_numbers_are_short() -> None:
    shown = html_table("a < b", {"x & y": "<script>", "loss": 1.23456789, "n": 12345, "on": True})
    assert "<caption>a &lt; b</caption>" in shown
    assert "x &amp; y" in shown
    assert "&lt;script&gt;" in shown
    assert all(f">{text}</td>" in shown for text in ("1.235", "12,345", "True"))


def test_a_configuration_shows_its_fields_and_what_differs_in_its_parts() -> None:
    config = an.DecoderConfig(d_model=64, norm=an.RMSNormConfig(eps=1e-5))
    shown = config._repr_html_()
    assert "<caption>DecoderConfig</caption>" in shown
    assert "d_model</th><td style='text-align:left'>64</td>" in shown
    assert "RMSNormConfig(eps=1e-05)" in shown
    assert "PostNormConfig()" in shown
    assert ">10000.5</td>" in an.RotaryConfig(theta=10000.5)._repr_html_()


def test_scores_are_a_dictionary_that_notebooks_show_as_a_table() -> None:
    scores = Scores({"examples": 3, "loss": 0.5})
    assert scores == {"examples": 3, "loss": 0.5}
    assert "loss" in scores._repr_html_()


def test_a_corpus_says_what_it_has_and_not_all_of_it() -> None:
    assert repr(an.text(["To be " * 999])) == "<Corpus of Text: 1 train, 0 valid, 0 test>"


def test_an_example_shows_no_more_than_the_ends_of_its_texts() -> None:
    [example] = an.text(["To be " * 999]).train
    assert repr(example).startswith("Text(text='To be To be")
    assert len(repr(example)) < 130
    [pair] = an.pairs([("one", "eins")]).train
    assert repr(pair) == "Pair(source='one', target='eins', other_targets=())"


def test_a_custom_example_shows_itself_as_it_says_or_shortly() -> None:
    @dataclass(frozen=True)
    class Riddle(Example):
        text: str

    @dataclass(frozen=True, slots=True)
    class Longer(Riddle):
        answer: str = ""

    @dataclass(frozen=True)
    class Named(Example):
        text: str

        def __repr__(self) -> str:
            return "mine"

    assert repr(Riddle("why?")).endswith("Riddle(text='why?')")
    assert len(repr(Longer("x" * 999, "y" * 999))) < 300
    assert repr(Named("x")) == "mine"


def test_an_evaluation_and_a_tokenizer_show_themselves_in_a_line() -> None:
    evaluation = Evaluation({"loss": 0.5}, dict.fromkeys(range(999), "a text"))
    assert repr(evaluation) == (
        "Evaluation(scores={'loss': 0.5}, details={}, measured_with={}, split='')"
    )
    tokenizer = train_tokenizer(CharConfig(), ["abc"])
    assert repr(tokenizer) == "<Tokenizer of 7 tokens>"
