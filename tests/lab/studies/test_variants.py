"""The grid: every combination in order, values as in a recipe, refusals kept with their reason."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.small import recipe_file
from tests.runs.train.fake_logger import FakeConfig

from addnorm.errors import InputError
from addnorm.lab.studies.study import study_of
from addnorm.lab.studies.variants import (
    Variant,
    check_start,
    comparable,
    read_vary,
    reader_of,
    short_labels,
    short_names,
    split_values,
    tokens_differ,
    toml_value,
    variants_of,
    without_twins,
)
from addnorm.nn.attention.patterns import WindowPatternConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.tasks.registry import TASKS


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a,b", ["a", "b"]),
        ("a", ["a"]),
        ("", [""]),
        (' a , {kind = "w", width = 64} ,[1, 2]', ["a", '{kind = "w", width = 64}', "[1, 2]"]),
        ("'a,b',\"c,}\"", ["'a,b'", '"c,}"']),
        ('{a = "}", b = 1},c', ['{a = "}", b = 1}', "c"]),
    ],
)
def test_values_are_split_at_commas_of_their_own(text: str, values: list[str]) -> None:
    assert split_values(text) == values


def test_vary_is_read() -> None:
    found = read_vary(["model.norm=a,b", "--train.lr=1e-3,3e-4"])
    assert found == {"model.norm": ["a", "b"], "train.lr": ["1e-3", "3e-4"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.norm"], "a field and its values"),
        (["=a"], "a field and its values"),
        (["model.norm=a,"], "a field and its values"),
        (["model.norm="], "a field and its values"),
        (["model.norm=a", "model.norm=b"], "given twice"),
        (["model.norm=a,b,a"], "a is given twice"),
    ],
)
def test_read_vary_rejects(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_vary(words)


def test_every_combination_in_order(tmp_path: Path) -> None:
    read = reader_of(recipe_file(tmp_path), {"model.n_layers": "1"})
    vary = {"model.norm": ["layernorm", "rmsnorm"], "model.d_model": ["16", "32"]}
    found = variants_of(read, vary)
    assert [one.name for one in found] == [
        "norm=layernorm, d_model=16",
        "norm=layernorm, d_model=32",
        "norm=rmsnorm, d_model=16",
        "norm=rmsnorm, d_model=32",
    ]
    for one in found:
        assert one.recipe is not None
        assert one.recipe.model.n_layers == 1
    assert found[3].recipe is not None
    assert isinstance(found[3].recipe.model.norm, RMSNormConfig)
    assert found[3].recipe.model.d_model == 32


def test_a_refused_combination_keeps_its_reason(tmp_path: Path) -> None:
    read = reader_of(recipe_file(tmp_path))
    found = variants_of(read, {"model.norm": ["layernorm", "rmsnrom"]})
    assert found[1].recipe is None
    assert "rmsnorm" in found[1].refused  # the nearest name
    with pytest.raises(InputError, match=r"the first variant, is refused.*rmsnorm"):
        variants_of(read, {"model.norm": ["rmsnrom", "layernorm"]})
    with pytest.raises(InputError, match="nothing varies"):
        variants_of(read, {})


def test_equal_variants_are_rejected(tmp_path: Path) -> None:
    read = reader_of(recipe_file(tmp_path))
    vary = {"model.norm": ["layernorm", '{kind = "layernorm"}', "rmsnorm"]}
    first, twin, other = without_twins(variants_of(read, vary))
    assert first.recipe is not None
    assert other.recipe is not None
    assert twin.recipe is None
    assert twin.refused.startswith("the same recipe as norm=layernorm")
    one, two = without_twins(variants_of(read, {"train.seed": ["1", "2"]}))
    assert one.recipe is not None
    assert "seeds need not be varied" in two.refused


def test_a_table_is_a_value(tmp_path: Path) -> None:
    read = reader_of(recipe_file(tmp_path))
    [_, found] = variants_of(
        read, {"model.attention.pattern": ["full", '{kind = "window", size = 5}']}
    )
    assert found.recipe is not None, found.refused
    assert found.recipe.model.attention.pattern == WindowPatternConfig(size=5)


def test_a_recipe_made_in_python_varies_too(tmp_path: Path) -> None:
    recipe = reader_of(recipe_file(tmp_path))({})
    read = reader_of(recipe)
    assert read({}) == recipe
    other = read({"model.norm": "rmsnorm", "train.lr": "0.5"})
    assert other.model.norm == RMSNormConfig()
    assert other.train == replace(recipe.train, lr=0.5)
    with pytest.raises(InputError, match=r"model\.norm"):
        read({"model.norm": "rmsnrom"})


def test_names_are_as_short_as_they_can_be() -> None:
    assert short_names(["model.norm", "train.lr"]) == ["norm", "lr"]
    assert short_names(["a.b.kind", "a.c.kind"]) == ["b.kind", "c.kind"]
    assert short_names(["kind", "a.kind"]) == ["kind", "a.kind"]


def test_labels_of_parts_are_their_kinds_and_what_they_do_not_share() -> None:
    def labels(*values: str) -> list[str]:
        variants = [Variant(name=f"ff={v}", fields={"model.ff": v}) for v in values]
        return list(short_labels(variants).values())

    gated = '{kind = "gated", d_ff = 64, dropout = 0.1}'
    assert labels("mlp", gated) == ["ff=mlp", "ff=gated"]
    assert labels(gated, gated.replace("64", "96")) == ["ff=gated d_ff=64", "ff=gated d_ff=96"]
    assert labels('{kind = "my:Own"}', "mlp") == ["ff=Own", "ff=mlp"]
    assert labels("1e-3", "3e-4") == ["ff=1e-3", "ff=3e-4"]
    assert labels("{n = 1}", "{n = 2}") == ["ff=n=1", "ff=n=2"]
    same = ["a" * 30 + end for end in "bc"]  # too long, and alike as far as a label goes
    assert labels(*same) == [f"ff={value}" for value in same]


plain = st.one_of(
    st.integers(-9, 9),
    st.booleans(),
    st.text(st.characters(codec="ascii", exclude_categories=["C"])),
)


@given(
    st.dictionaries(st.sampled_from(["a", "b_c"]), st.one_of(plain, st.lists(plain, max_size=3)))
)
def test_values_survive_being_written(tree: dict) -> None:
    import tomllib

    assert tomllib.loads(f"value = {toml_value(tree)}")["value"] == tree


def test_a_configuration_is_written_as_its_table() -> None:
    import tomllib

    assert tomllib.loads(f"v = {toml_value(RMSNormConfig(eps=0.5))}")["v"] == {
        "kind": "rmsnorm",
        "eps": 0.5,
        "gain": "learned",
    }
    assert toml_value("rotary") == "rotary"
    own = "tests.runs.train.fake_logger:FakeConfig"
    assert toml_value(FakeConfig(fails_at=3)) == f'{{kind = "{own}", fails_at = 3}}'
    assert toml_value(True) == "true"


def variants(folder: Path, name: str, *values: str) -> list:
    return variants_of(reader_of(recipe_file(folder)), {name: values})


def test_data_that_are_missing_refuse_their_variant(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path)
    text = next(tmp_path.glob("*.txt"))
    found = variants_of(reader_of(recipe), {"data.train": [str(text), "nothere.txt"]})
    said: list[str] = []
    checked = check_start(found, said.append)
    assert [one.recipe is None for one in checked] == [False, True]
    assert "nothere.txt" in checked[1].refused
    assert len(said) == 2
    with pytest.raises(InputError, match=r"the first variant: .*nothere"):
        check_start(found[::-1], said.append)


def test_what_reads_the_same_is_tried_once(tmp_path: Path) -> None:
    said: list[str] = []
    check_start(variants(tmp_path, "train.lr", "0.1", "0.2", "0.3"), said.append)
    assert len(said) == 1


def test_language_models_of_other_tokens_are_compared_by_characters(tmp_path: Path) -> None:
    same = variants(tmp_path, "model.norm", "layernorm", "rmsnorm")
    other = variants(tmp_path, "tokenizer", '{kind = "char"}', '{kind = "bpe", vocab_size = 300}')
    assert tokens_differ(other)
    assert not tokens_differ(same)
    assert comparable(same, TASKS["language"], None, "loss") == "loss"
    assert comparable(other, TASKS["language"], None, "loss") == "bits_per_character"
    assert comparable(same, TASKS["language"], "bits_per_character", "loss") == "bits_per_character"
    with pytest.raises(InputError, match="take `metric` = bits_per_character"):
        comparable(other, TASKS["language"], "loss", "loss")
    with pytest.raises(InputError, match="take `metric` = bleu"):
        comparable(other, TASKS["translation"], None, "loss")
    with pytest.raises(InputError, match="different tokens"):
        comparable(other, TASKS["masked_language"], "accuracy", "loss")
    assert comparable(other, TASKS["translation"], "bleu", "loss") == "bleu"
    assert comparable(other, TASKS["classification"], "loss", "accuracy") == "loss"
    with pytest.raises(InputError, match=r"not measured for language\..*Did you mean"):
        comparable(same, TASKS["language"], "bits_per_charakter", "loss")


def test_a_study_of_tokenizers_names_its_score(tmp_path: Path) -> None:
    vary = {"tokenizer": ['{kind = "char"}', '{kind = "bpe", vocab_size = 300}']}
    study = study_of(recipe_file(tmp_path), tmp_path / "study", vary)
    assert study.metric == "bits_per_character"
    assert study.lower_is_better
