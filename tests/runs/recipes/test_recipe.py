"""Recipes: located errors with suggestions, overrides, and line numbers."""

import string
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.tiny import CLASSIFICATION, RECIPES, TRANSLATION, quiet, write_recipe

from addnorm.data import Corpus, Pair
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.nn.attention import WindowPatternConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.heads import ClassificationHeadConfig, TokenHeadConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.runs.recipes.custom_parts import import_parts
from addnorm.runs.recipes.recipe import (
    RECIPE,
    Recipe,
    differences,
    line_of,
    read_recipe,
    set_field,
    task_of,
    with_current_names,
)
from addnorm.runs.train.train_run import train_run
from addnorm.tasks.registry import check_corpus
from addnorm.training.settings import TrainConfig

CLASSES = ClassificationHeadConfig()
REPOSITORY = Path(__file__).parents[3]


def message(file: Path, **overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        read_recipe(file, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (DecoderConfig(d_model=8), "text"),
        (EncoderDecoderConfig(d_model=8), "parallel"),
        (EncoderConfig(d_model=8, input=PatchEmbeddingConfig(), head=CLASSES), "image_files"),
        (EncoderDecoderConfig(d_model=8, input=LogMelEmbeddingConfig()), "audio"),
        (EncoderConfig(d_model=8, head=TokenHeadConfig()), "text"),
        (EncoderConfig(d_model=8, head=CLASSES), "lines"),
    ],
)
def test_missing_data_are_asked_for_of_a_kind_that_fits(model: ModelConfig, kind: str) -> None:
    with pytest.raises(InputError, match=f"such as `data.kind = {kind}` and files as `data.train`"):
        Recipe(model=model, train=TrainConfig(steps=1)).corpus()


@pytest.mark.parametrize("task", RECIPES)
def test_a_recipe_says_its_task(task: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPES[task])
    assert task_of(read_recipe(tmp_path / "r.toml")).name == task


@pytest.mark.parametrize(
    "file", sorted((REPOSITORY / "recipes").glob("*.toml")), ids=lambda f: f.stem
)
def test_our_recipes_are_valid_and_survive_json(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    monkeypatch.chdir(file.parent)
    import_parts(tomllib.loads(file.read_text("utf-8")).get("import", ()))
    recipe = read_recipe(file)
    assert RECIPE.validate_python(RECIPE.dump_python(recipe, mode="json")) == recipe


WRONG = {
    # What is replaced, by what, the line of it, and what the message must hold.
    "a typo in a table's name": ("[train]", "[trian]", "[trian]", "Did you mean 'train'?"),
    "a typo in a field": ("d_model = 16", "d_modl = 16", "d_modl", "Did you mean 'd_model'?"),
    "a typo in a part": ("n_heads", "n_head", "n_head", "Did you mean 'n_heads'?"),
    "a typo in a part of a kind": (
        "tokens = 64",
        "token = 64",
        "token =",
        "Did you mean 'tokens'?",
    ),
    "a wrong kind": ('"parallel"', '"paralel"', "paralel", "Did you mean 'parallel'?"),
    "a wrong kind of part": ('kind = "mlp"', 'kind = "mpl"', "mpl", "Did you mean 'mlp'?"),
    "a kind left out": ('kind = "mlp", ', "", "feedforward", "model.feedforward.kind is missing"),
    "a wrong choice": ('"bleu"', '"bleau"', "bleau", "Did you mean 'bleu'?"),
    "a wrong type": ("d_model = 16", 'd_model = "wide"', "wide", "must be an integer"),
    "a wrong type in a kind": (
        "tokens = 64",
        'tokens = "x"',
        "tokens =",
        ".tokens = 'x'",
    ),
    "out of range": ("n_layers = 1", "n_layers = 0", "n_layers", "greater than 0"),
    "out of range in a part": ("beams = 2", "beams = 0", "beams", "eval.decoding.beams = 0"),
    "an infinite count": ("steps = 4", "steps = inf", "steps", "train.steps = inf"),
    "not a table": (
        '{ kind = "tokens", tokens = 64 }',
        "[64]",
        "batching",
        "train.batching = [64] is not a table",
    ),
    "not a table of kinds": (
        "{ n_heads = 2 }",
        "2",
        "attention",
        "model.attention = 2 is not a table",
    ),
    "heads that do not divide": ("n_heads = 2", "n_heads = 3", "[model]", "n_heads must be one of"),
    "parts that do not fit": (
        "n_layers = 1",
        'n_layers = 1\nposition = { kind = "rotary" }\nd_model = 6',
        "[model]",
        "must be even",
    ),
    "both steps and epochs": (
        "steps = 4",
        "steps = 4\nepochs = 1",
        "[train]",
        "either steps or epochs",
    ),
    "a metric without examples": ("valid_examples = 2", "", "metric =", "valid_examples"),
    "a metric of another task": ('"bleu"', '"accuracy"', "metric", "not measured for translation"),
    "too few of two": ('["train.en", "train.de"]', '["train.en"]', "train =", "data.train"),
    "bad TOML": ("d_model = 16", "d_model = ", "d_model", "not valid TOML"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_named_with_its_line(case: str, tmp_path: Path) -> None:
    old, new, mark, expected = WRONG[case]
    text = TRANSLATION.replace(old, new, 1)
    if case == "parts that do not fit":
        text = text.replace("d_model = 16\n", "", 1)
    file = tmp_path / "r.toml"
    file.write_text(text)
    line = next(n for n, row in enumerate(text.split("\n"), 1) if mark in row)
    said = message(file)
    assert said.startswith(f"{file}:{line}: ")
    assert expected in said
    assert "\n" not in said


def test_a_missing_table_and_a_missing_field(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text(TRANSLATION.split("[train]")[0])
    assert message(file) == f"{file}:1: train is missing."
    file.write_text(CLASSIFICATION.replace('train = "train.txt"\n', ""))
    assert message(file) == f"{file}:2: data.train is missing."


def test_an_end_in_the_middle_is_on_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('[data]\nkind = "text"\ntrain = ["a",\n')
    assert message(tmp_path / "r.toml").startswith(f"{tmp_path}/r.toml:3: not valid TOML")
    (tmp_path / "play.txt").write_text("To be, or not to be\n")
    assert message(tmp_path / "play.txt").endswith(
        "a text to learn from is named in it, as data.train"
    )


def test_files_that_are_not_recipes(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b"[data]\n# \xff\n")
    assert message(tmp_path / "recipe.toml").startswith(f"{tmp_path}/recipe.toml:2: ")
    assert "Did you mean 'recipe.toml'?" in message(tmp_path / "recip.toml")
    assert "no such recipe" in message(tmp_path / "nowhere" / "r.toml")
    assert "Is a directory" in message(tmp_path)
    (tmp_path / "deep.toml").write_text("a = " + "[" * 50_000)
    assert message(tmp_path / "deep.toml").startswith(f"{tmp_path}/deep.toml")
    (tmp_path / "empty.toml").write_text("")
    assert message(tmp_path / "empty.toml").endswith(":1: data is missing.")


def test_an_encoder_without_a_task(tmp_path: Path) -> None:
    text = CLASSIFICATION.replace('"classification"', '"pooler"')
    (tmp_path / "r.toml").write_text(text)
    line = next(n for n, row in enumerate(text.split("\n"), 1) if '"pooler"' in row)
    assert message(tmp_path / "r.toml").startswith(f"{tmp_path}/r.toml:{line}: model.head.kind")


def test_batches_of_another_task(tmp_path: Path) -> None:
    text = CLASSIFICATION.replace('"classification"', '"token"')
    (tmp_path / "r.toml").write_text(text)
    line = next(n for n, row in enumerate(text.split("\n"), 1) if "batching" in row)
    found = message(tmp_path / "r.toml")
    assert found.startswith(f"{tmp_path}/r.toml:{line}: train.batching.kind = 'tokens' hides no")
    assert "give 'masked', or for another task its model.head" in found


@pytest.mark.parametrize(
    ("field", "value"),
    [("label_smoothing", "0.1"), ("r_drop", "1"), ("distillation", '{teacher = "runs/big"}')],
)
def test_what_learns_tags_one_by_one_is_refused_with_a_crf(
    field: str, value: str, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, "crf")
    with pytest.raises(
        InputError, match=rf"train\.{field} is for labels that are learnt one by one"
    ):
        read_recipe(recipe, {f"train.{field}": value})


def test_rare_tokens_are_not_adjusted(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "language")
    with pytest.raises(InputError, match="for classes and tags, and this model is for language"):
        read_recipe(recipe, {"train.logit_adjustment": "0.5"})
    teacher = {"train.logit_adjustment": "0.5", "train.distillation": '{teacher = "runs/big"}'}
    with pytest.raises(InputError, match="leave it out with distillation"):
        read_recipe(write_recipe(tmp_path, "classification"), teacher)


def test_r_drop_needs_cross_entropy(tmp_path: Path) -> None:
    teacher = {"train.r_drop": "2", "train.distillation": '{teacher = "runs/big"}'}
    with pytest.raises(InputError, match="r_drop goes with cross_entropy: leave it out with dist"):
        read_recipe(write_recipe(tmp_path, "classification"), teacher)


@pytest.mark.parametrize("field", ["r_drop", "label_smoothing"])
@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_settings_for_classes_are_rejected_for_other_targets(
    field: str, task: str, tmp_path: Path
) -> None:
    plain = read_recipe(file := write_recipe(tmp_path, task))
    recipe = replace(plain, train=replace(plain.train, **{field: 0.1}))
    for_classes = rf"train\.{field} = 0\.1 is for a single class"
    with pytest.raises(InputError, match=for_classes):
        train_run(recipe, tmp_path / "run", resume=False, console=quiet())
    with pytest.raises(InputError, match=for_classes):
        read_recipe(file, {f"train.{field}": "0.1"})
    assert not (tmp_path / "run").exists()


def test_overrides_replace_fields_at_every_depth(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text(TRANSLATION)
    recipe = read_recipe(
        file,
        {
            "train.lr": "3e-4",
            "model.position": '{kind = "rotary", theta = 500}',
            "eval.decoding.length_penalty": "1",
            "data.root": "/some where/else",
        },
    )
    assert recipe.train.lr == 3e-4
    assert recipe.model.position.kind == "rotary"
    assert recipe.model.position.theta == 500
    assert recipe.eval.decoding.kind == "beam"
    assert recipe.eval.decoding.length_penalty == 1
    assert recipe.data.kind == "parallel"
    assert recipe.data.root == Path("/some where/else")


def test_a_path_names_an_entry_of_a_list_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text(TRANSLATION)
    given = {"model.n_layers": "2", "model.layer_pattern": '[{norm = "rmsnorm"}, {}]'}
    recipe = read_recipe(file, {**given, "model.layer_pattern.1.norm": "scalenorm"})
    assert [layer.norm.kind for layer in recipe.model.layer_pattern] == ["rmsnorm", "scalenorm"]
    for entry, problem in (
        ("2.norm", "layer_pattern has the entries 0 to 1, and no 2"),
        ("x.norm", "and no x"),
        ("1", "name a field of an entry, such as layer_pattern.0.norm"),
    ):
        assert problem in message(file, **given, **{f"model.layer_pattern.{entry}": "rmsnorm"})
    for entry in ("0", "0.norm"):
        said = message(file, **{f"model.layer_pattern.{entry}": "rmsnorm"})
        assert "there is no list layer_pattern: give it whole, such as model.layer_" in said


def test_an_unknown_kind_of_example_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    data = '[data]\nkind = "records"\nexample = "QuestionAnswr"\ntrain = "x.jsonl"\n'
    model = '[model]\nkind = "encoder"\nd_model = 8\nhead = "span"\n[train]\nsteps = 1\n'
    file.write_text(f'{data}[tokenizer]\nkind = "char"\n{model}')
    with pytest.raises(InputError, match=r"r.toml:3: data.example = 'QuestionAnswr'. Did you mean"):
        read_recipe(file, import_parts=True)


def test_a_wrong_override_is_blamed_and_not_the_file(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text(TRANSLATION)
    assert message(file, **{"train.lrr": "1"}).startswith("`train.lrr`: train.lrr is not a field.")
    assert message(file, **{"train.lr": "fast"}).startswith("`train.lr`: train.lr = 'fast'")
    said = message(file, **{"model.position": '{kind = "rotary", thta = 1}'})
    assert said.startswith("`model.position`: model.position.thta is not a field.")
    for name, meant in (
        ("no_repeat_ngram", "no_repeat_ngram_size"),
        ("forced_bos", "forced_bos_token_id"),
    ):
        said = message(file, **{f"eval.decoding.{name}": "3"})
        assert f"eval.decoding.{name} is not a field. Did you mean 'rules.{meant}'?" in said
    said = message(file, **{"eval.decoding.early_stopping": "nver"})
    assert "eval.decoding.early_stopping = 'nver' does not exist. Did you mean 'never'?" in said
    said = message(file, **{"model.position": "rotry"})
    assert said.startswith("`model.position`: model.position.kind = 'rotry' does not exist.")
    assert "Did you mean 'rotary'?" in said
    assert "is not a table" in message(file, **{"train.lr": "1", "train.lr.x": "1"})
    # What goes wrong between an override and the file names both.
    said = message(file, **{"train.epochs": "3"})
    assert said.startswith(f"{file}:")
    assert " with `train.epochs`: train: give either steps or epochs, and not both" in said


@pytest.mark.parametrize("name", ["layer_pattern", "decoder_layer_pattern"])
def test_rejects_entries_that_no_layer_takes(name: str, tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "translation")
    fields = {"model.n_layers": "3", "model.n_decoder_layers": "2"}
    read_recipe(file, {**fields, f"model.{name}": "[{}, {}]"})
    with pytest.raises(InputError, match=rf"model\.{name} has 4 entries, and there are [23]"):
        read_recipe(file, {**fields, f"model.{name}": "[{}, {}, {}, {}]"})


def test_data_of_another_task_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(CLASSIFICATION)
    with pytest.raises(InputError, match=r"use model\.kind = 'encoder_decoder'"):
        check_corpus(task_of(read_recipe(tmp_path / "r.toml")), Corpus(train=[Pair("a", "b")]))


NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=6)


@settings(max_examples=30)
@given(st.dictionaries(NAMES, st.dictionaries(NAMES, st.integers(), min_size=1), min_size=1))
def test_line_of_finds_every_key(tables: dict[str, dict[str, int]]) -> None:
    lines = ["# a comment = 1"]
    places: list[tuple[list[str], int]] = []
    for table, rows in tables.items():
        lines += ["", f"[{table}]"]
        places.append(([table], len(lines)))
        for key, value in rows.items():
            lines.append(f"  {key} = {value}")
            places.append(([table, key], len(lines)))
            places.append(([table, key, "within", "0"], len(lines)))
        places.append(([table, "NOT THERE"], lines.index(f"[{table}]") + 1))
    text = "\n".join(lines)
    assert tomllib.loads(text) == tables
    for path, line in places:
        assert line_of(text, path) == line


def test_line_of_reads_the_other_ways_to_write_a_key() -> None:
    text = "[a.b]\nc.d = 1\n'e' = 2\n[ \"f\" . g ]\nh . i = 3\n[[k]]\nl = 4\n"
    tree = tomllib.loads(text)
    assert tree["a"]["b"]["c"]["d"] == 1
    assert line_of(text, ["a", "b", "c", "d"]) == 2
    assert line_of(text, ["a", "b", "e"]) == 3
    assert line_of(text, ["f", "g"]) == 4
    assert line_of(text, ["f", "g", "h", "i"]) == 5
    assert line_of(text, ["k", "l"]) == 7
    assert line_of(text, ["nothing"]) == 1


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


def toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else repr(value)


def test_a_part_at_its_default_can_be_changed_in_one_field(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(CLASSIFICATION)
    recipe = read_recipe(
        tmp_path / "r.toml",
        {
            "train.schedule.warmup": "7",
            "train.optimizer.weight_decay": "0.2",
            "model.norm.eps": "1",
        },
    )
    assert recipe.train.schedule.kind == "linear"
    assert recipe.train.schedule.warmup == 7
    assert recipe.model.norm.eps == 1
    said = message(tmp_path / "r.toml", **{"train.schedule.warmpu": "7"})
    assert "Did you mean 'warmup'?" in said


@given(st.lists(NAMES, min_size=1, max_size=4), VALUES)
def test_set_field_sets_what_toml_would(path: list[str], value: object) -> None:
    tree: dict[str, Any] = {"kept": 1, "a": {"b": 2}}
    if path[0] == "kept" or path[:2] == ["a", "b"]:
        return
    set_field(tree, ".".join(path), toml(value))
    here: Any = tree
    for key in path:
        here = here[key]
    assert here == value
    assert tree["kept"] == 1


def test_set_field_fills_a_table_that_is_null() -> None:
    tree: dict[str, Any] = {"data": None}
    set_field(tree, "data.kind", "text")
    assert tree == {"data": {"kind": "text"}}


@given(st.text())
def test_set_field_takes_any_text(text: str) -> None:
    tree: dict[str, Any] = {}
    set_field(tree, "a.b", text)
    assert "b" in tree["a"]
    set_field(tree, "a.b", "plain words")
    assert tree == {"a": {"b": "plain words"}}


OLD_PATTERN = [{"pattern": {"kind": "window", "size": 3}}, {}]


def with_cycle(text: str) -> str:
    """A recipe whose layers repeat, under the name that this had in the first version."""
    return f'{text}\n[[model.cycle]]\npattern = {{kind = "window", size = 3}}\n[[model.cycle]]\n'


def test_a_recipe_may_call_its_layer_pattern_a_cycle(tmp_path: Path) -> None:
    text = RECIPES["language"].replace("n_layers = 1", "n_layers = 2")
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(with_cycle(text))
    new.write_text(with_cycle(text).replace("cycle", "layer_pattern"))
    recipe = read_recipe(old)
    assert recipe == read_recipe(new)
    assert [layer.pattern for layer in recipe.model.layer_pattern] == [
        WindowPatternConfig(size=3),
        None,
    ]
    plain = tmp_path / "plain.toml"
    plain.write_text(text)
    assert (
        read_recipe(plain, {"model.cycle": '[{pattern = {kind = "window", size = 3}}, {}]'})
        == recipe
    )


def test_both_names_of_the_layer_pattern_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(with_cycle(RECIPES["language"]))
    assert "model.cycle is not a field" in message(
        tmp_path / "r.toml", **{"model.layer_pattern": "[{}]"}
    )


def test_current_names_leave_other_trees_alone() -> None:
    tree = {"model": {"cycle": OLD_PATTERN, "d_model": 4}, "train": {"cycle": 1}}
    assert with_current_names(tree) == {
        "model": {"layer_pattern": OLD_PATTERN, "d_model": 4},
        "train": {"cycle": 1},
    }
    assert "cycle" in tree["model"]
    for other in ({}, {"model": 3}, {"model": {"d_model": 4}}):
        assert with_current_names(other) == other


def test_differences_are_named_by_field(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "translation")
    old = read_recipe(file)
    new = read_recipe(file, {"model.d_model": "32", "model.position": '{kind = "rotary"}'})
    assert differences(old, old) == {}
    found = differences(old, new)
    assert found["model.d_model"] == (16, 32)
    assert found["model.position.kind"] == ("sinusoidal", "rotary")
    new = read_recipe(file, {"train.optimizer": '{kind = "muon"}'})
    found |= differences(old, new)
    assert found["train.optimizer.kind"] == ("adamw", "muon")
    assert found["train.optimizer.adamw.kind"] == (None, "adamw")
