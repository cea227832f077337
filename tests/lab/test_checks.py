"""What is wrong with variants is found before anything is trained, by the name of the variant."""

from pathlib import Path

import pytest
from tests.lab.small import recipe_file

from addnorm.errors import InputError
from addnorm.lab.checks import comparable, prepared, tokens_differ
from addnorm.lab.grid import reader_of, variants_of
from addnorm.lab.studies import Design, study_of


def variants(folder: Path, name: str, *values: str) -> list:
    return variants_of(reader_of(recipe_file(folder)), {name: values})


def test_data_that_are_missing_refuse_their_variant(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path)
    text = next(tmp_path.glob("*.txt"))
    found = variants_of(reader_of(recipe), {"data.train": [str(text), "nothere.txt"]})
    said: list[str] = []
    checked = prepared(found, said.append)
    assert [one.recipe is None for one in checked] == [False, True]
    assert "nothere.txt" in checked[1].refused
    assert len(said) == 2
    with pytest.raises(InputError, match=r"the first variant: .*nothere"):
        prepared(found[::-1], said.append)


def test_what_reads_the_same_is_tried_once(tmp_path: Path) -> None:
    said: list[str] = []
    prepared(variants(tmp_path, "train.lr", "0.1", "0.2", "0.3"), said.append)
    assert len(said) == 1


def test_language_models_of_other_tokens_are_compared_by_characters(tmp_path: Path) -> None:
    same = variants(tmp_path, "model.norm", "layernorm", "rmsnorm")
    other = variants(tmp_path, "tokenizer", '{kind = "char"}', '{kind = "bpe", vocab_size = 300}')
    assert tokens_differ(other)
    assert not tokens_differ(same)
    assert comparable(same, "language", None, "loss") == "loss"
    assert comparable(other, "language", None, "loss") == "bits_per_character"
    assert comparable(same, "language", "bits_per_character", "loss") == "bits_per_character"
    with pytest.raises(InputError, match="take `metric` = bits_per_character"):
        comparable(other, "language", "loss", "loss")
    with pytest.raises(InputError, match="take `metric` = bleu"):
        comparable(other, "translation", None, "loss")
    with pytest.raises(InputError, match="different tokens"):
        comparable(other, "masked_language", "accuracy", "loss")
    assert comparable(other, "translation", "bleu", "loss") == "bleu"
    assert comparable(other, "classification", "loss", "accuracy") == "loss"
    with pytest.raises(InputError, match=r"not measured for language\..*Did you mean"):
        comparable(same, "language", "bits_per_charakter", "loss")


def test_a_study_of_tokenizers_says_by_what_it_compares(tmp_path: Path) -> None:
    vary = {"tokenizer": ['{kind = "char"}', '{kind = "bpe", vocab_size = 300}']}
    study = study_of(recipe_file(tmp_path), tmp_path / "study", Design(vary=vary))
    assert study.metric == "bits_per_character"
    assert study.lower_is_better
