"""Entries read and write the same keys; a path that no model of a family has is a mistake."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from addnorm.convert.core import keys
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Settings
from addnorm.convert.core.tasks import EncoderHeads
from addnorm.convert.families import FAMILIES, gemma
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.norms import LayerNormConfig, RMSNormConfig
from addnorm.nn.residuals import ParallelConfig, PostNormConfig, PreNormConfig

SPEC = ModelSpec(model=DecoderConfig(d_model=8, n_layers=3), vocab_size=7)


def spec(**changes: Any) -> ModelSpec:
    return replace(SPEC, model=replace(SPEC.model, **changes))


TABLE = keys.ConfigTable(
    DecoderConfig(),
    (
        keys.VOCABULARY,
        keys.Size("d_model", "width hidden"),
        keys.Size("feedforward.d_ff", "inner", lambda settings: 3 * settings.required_int("width")),
        keys.Choice("feedforward.activation", "act", keys.ACTIVATIONS, "gelu"),
        keys.Value("norm.eps embedding.norm.eps", "eps", 1e-3),
        keys.Choice("residual", "before", {True: PreNormConfig(), False: PostNormConfig()}, False),
        keys.Fixed("fixed", 1, (2,), written=True),
        keys.Ignored("old older"),
        keys.Repeated("dropout", "drop"),
    ),
    {"model_type": "x"},
)


def test_a_table_reads_what_it_writes() -> None:
    settings = Settings({"vocab_size": 9, "width": 8, "act": "gelu_new", "before": True, "old": []})
    read = TABLE.read(settings)
    assert read.vocab_size == 9
    assert read.model.d_model == 8
    assert read.model.feedforward == FeedForwardConfig(d_ff=24, activation="gelu_tanh")
    assert read.model.norm == LayerNormConfig(eps=1e-3)
    assert read.model.residual == PreNormConfig()
    settings.check_all_read()
    tree = TABLE.write(read)
    assert tree == {
        "model_type": "x",
        "vocab_size": 9,
        "width": 8,
        "inner": 24,
        "act": "gelu_pytorch_tanh",  # the first of two names
        "eps": 1e-3,
        "before": True,
        "fixed": 1,
        "drop": 0.1,
    }
    assert TABLE.read(Settings(tree)) == read


def test_fields_that_a_model_lacks_are_left_out() -> None:
    model = spec(embedding=replace(SPEC.model.embedding, norm=None)).model
    assert keys.with_values(model, {"embedding.norm.eps": 0.5, "head.nothing": 1}) == model
    assert list(keys.values_at(SPEC, "embedding.norm.eps n_layers vocab_size")) == [3, 7]


def test_null_differs_from_absent_only_where_the_entry_says_so() -> None:
    size = keys.Size("max_len", "size", None, missing=5)
    assert size.decoded(Settings({})) == 5
    assert size.decoded(Settings({"size": None})) is None
    assert keys.Size("max_len", "size", 6).decoded(Settings({"size": None})) == 6


def test_a_part_without_a_key_is_refused() -> None:
    with pytest.raises(InputError, match="has no 'parallel', only True, False"):
        TABLE.write(spec(residual=ParallelConfig()))


def test_a_part_without_a_required_field_is_refused() -> None:
    entry = keys.Size("norm.window", "window")
    with pytest.raises(InputError, match="this family has no rmsnorm norm"):
        entry.write(spec(norm=RMSNormConfig()))


def test_a_part_of_the_same_kind_is_written_and_reading_back_names_the_rest() -> None:
    tree = TABLE.write(spec(residual=PreNormConfig(first=False)))
    assert tree["before"] is True


def test_keys_must_have_their_fixed_value() -> None:
    for tree, valid in (({"fixed": 2}, True), ({"fixed": 3}, False), ({"act": "gleu"}, False)):
        settings = Settings({"vocab_size": 9, "width": 8, **tree})
        if valid:
            TABLE.read(settings)
        else:
            with pytest.raises(InputError, match=f"{next(iter(tree))} = .* is not supported"):
                TABLE.read(settings)


def tables() -> Iterator[keys.ConfigTable]:
    yield from (gemma.DECODER_3, gemma.ENCODER_3)
    for family in FAMILIES.values():
        if isinstance(family.config, keys.ConfigTable):
            yield family.config


def test_every_path_is_a_field_of_a_model() -> None:
    resolves: dict[str, bool] = {}
    for table in tables():
        heads = [entry.heads.values() for entry in table.entries if isinstance(entry, EncoderHeads)]
        models = [replace(table.base, head=head) for all_heads in heads for head in all_heads]
        specs = [ModelSpec(model=model) for model in (table.base, *models)]
        for entry in table.entries:
            for path in entry.paths.split() if isinstance(entry, keys.Key) else ():
                exists = any(list(keys.values_at(spec, path)) for spec in specs)
                resolves[path] = resolves.get(path, False) or exists
    assert len(resolves) > 30
    assert not [path for path, exists in resolves.items() if not exists]
