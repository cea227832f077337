"""What cannot be split over processes is refused while the recipe is read."""

from pathlib import Path

import pytest
from tests.runs.tiny import write_recipe

from addnorm.errors import InputError
from addnorm.runs.recipes.recipe import read_recipe

REFUSED = {
    "more processes than rows": (
        {"train.batching": '{ kind = "windows", batch_size = 2, seq_len = 8 }'},
        3,
        "batches of 2 rows leave a process without one: give parallel.data = 2, or batch_size = 3",
    ),
    "batchnorm": ({"model.norm": "batchnorm"}, 2, "or parallel.data = 1"),
    "batchnorm in a layer": (
        {"model.layer_pattern": '[{}, { norm = "batchnorm" }]', "model.n_layers": "2"},
        2,
        "batchnorm of layer 1 would normalise by the rows of each process",
    ),
    "capacity": (
        {"model.feedforward": '{ kind = "moe", capacity_factor = 1.0 }'},
        2,
        "leave capacity_factor out",
    ),
    "capacity in a layer": (
        {
            "model.layer_pattern": '[{}, { feedforward = { kind = "moe", capacity_factor = 1 } }]',
            "model.n_layers": "2",
        },
        2,
        "experts of layer 1 would be full by the rows of each process",
    ),
    "compiled": ({"train.compile": "true"}, 2, "leave compile out"),
    "states in 8 bits": (
        {"train.optimizer": "adamw_8bit", "parallel.shard": "true"},
        2,
        "use adamw, muon, adadelta, or parallel.shard = false",
    ),
    "single numbers": (
        {"model.norm": "scalenorm", "parallel.shard": "true"},
        2,
        "scalenorm of layer 0 learns single numbers",
    ),
    "shards of one": ({"parallel.shard": "true"}, 1, "give data = 2, or leave shard out"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_differ_is_refused(tmp_path: Path, what: str) -> None:
    fields, data, message = REFUSED[what]
    recipe = write_recipe(tmp_path, "language")
    fields = {"train.device": "cpu", "parallel.data": str(data), **fields}
    with pytest.raises(InputError, match=message.replace("(", "\\(")) as error:
        read_recipe(recipe, fields)
    assert "\n" not in str(error.value)


def test_without_a_plan_all_is_allowed(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "language")
    plain = read_recipe(recipe, {"model.norm": "batchnorm"})
    assert plain.parallel.processes == 1
    split = read_recipe(recipe, {"parallel.data": "2", "parallel.shard": "true"})
    assert split.parallel.processes == 2


HEADS = {
    "heads": (
        {"model.attention": "{ n_heads = 6, d_head = 4 }"},
        4,
        "parallel.data = 1, tensor = 4: n_heads = 6 of layer 0 do not divide among 4 processes: "
        "the nearest that does is parallel.tensor = 3",
    ),
    "key heads": (
        {"model.attention": "{ n_heads = 6, n_kv_heads = 3, d_head = 4 }"},
        2,
        "n_heads = 6 and n_kv_heads = 3 of layer 0 do not divide among 2 processes: the nearest "
        "that does is parallel.tensor = 1",
    ),
    "pairs": (
        {"model.attention": '{ n_heads = 4, d_head = 4, core = "differential" }'},
        4,
        "n_heads = 4, in pairs, of layer 0 do not divide among 4 processes: the nearest that does "
        "is parallel.tensor = 2",
    ),
    "latent heads": (
        {
            "model.attention": '{ kind = "latent", n_heads = 6 }',
            "model.position": "rotary",
        },
        4,
        "n_heads = 6 of layer 0 do not divide among 4 processes: the nearest that does is "
        "parallel.tensor = 3",
    ),
    "tokens ahead": (
        {"model.mtp": "{ depth = 1 }"},
        2,
        "model.mtp`: parallel.data = 1, tensor = 2: tokens further ahead are predicted by a whole "
        "layer from whole texts: leave mtp out, or use parallel.tensor = 1",
    ),
    "a layer of its own": (
        {"model.layer_pattern": "[{}, { attention = { n_heads = 1 } }]", "model.n_layers": "2"},
        2,
        "n_heads = 1 of layer 1 do not divide among 2 processes",
    ),
    "states in 8 bits": ({"train.optimizer": "adamw_8bit"}, 2, "use adamw, muon, adadelta"),
    "compiled": ({"train.compile": "true"}, 2, "leave compile out"),
}


@pytest.mark.parametrize("what", HEADS)
def test_what_cannot_be_split_by_heads_is_refused(tmp_path: Path, what: str) -> None:
    fields, tensor, message = HEADS[what]
    recipe = write_recipe(tmp_path, "language")
    fields = {"train.device": "cpu", "parallel.tensor": str(tensor), **fields}
    with pytest.raises(InputError) as error:
        read_recipe(recipe, fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_key_heads_may_be_fewer_than_processes(tmp_path: Path) -> None:
    fields = {"train.device": "cpu", "parallel.tensor": "4", "parallel.data": "2"}
    attention = "{ n_heads = 4, n_kv_heads = 2, d_head = 4 }"
    recipe = write_recipe(tmp_path, "language")
    parsed = read_recipe(recipe, {**fields, "model.attention": attention})
    assert parsed.parallel.processes == 8


POSITIONS = {
    "tokens ahead": ({"model.mtp": "{ depth = 1 }"}, "leave mtp out, or use parallel.context = 1"),
    "a recurrence": (
        {"model.layer_pattern": '[{}, { attention = "recurrent" }]', "model.n_layers": "2"},
        "parallel.data = 1, context = 2: recurrent of layer 1 reads earlier tokens, which other "
        "processes have: use attention, or parallel.data = 2 and context = 1",
    ),
    "values of the first layer": (
        {"model.attention.value_residual": "learned", "model.n_layers": "2"},
        "layer 1 reads the keys or values of layer 0, which other processes have: use "
        "parallel.context = 1",
    ),
    "the delta rule": (
        {"model.attention": "gated_delta"},
        "gated_delta of layer 0 reads earlier tokens",
    ),
    "a convolution": (
        {"model.attention": "convolution"},
        "convolution of layer 0 reads earlier tokens",
    ),
    "batchnorm": (
        {"model.norm": "batchnorm"},
        "would normalise by the positions of each process and not of the batch: use another norm, "
        "or parallel.context = 1",
    ),
    "capacity": (
        {"model.feedforward": '{ kind = "moe", capacity_factor = 1.0 }'},
        "experts of layer 0 would be full by the positions of each process",
    ),
    "compiled": ({"train.compile": "true"}, "leave compile out"),
}


@pytest.mark.parametrize("what", POSITIONS)
def test_what_cannot_be_split_by_positions_is_refused(tmp_path: Path, what: str) -> None:
    fields, message = POSITIONS[what]
    recipe = write_recipe(tmp_path, "language")
    fields = {"train.device": "cpu", "parallel.context": "2", **fields}
    with pytest.raises(InputError) as error:
        read_recipe(recipe, fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_convolution_at_the_first_layer_is_not_split_by_positions(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "classification")
    fields = {"train.device": "cpu", "model.first_convolution": "{ kernel_size = 3 }"}
    assert read_recipe(recipe, {**fields, "parallel.tensor": "2"}).parallel.processes == 2
    with pytest.raises(
        InputError, match=r"reads neighbouring .* use parallel.data = 2 and context = 1"
    ):
        read_recipe(recipe, {**fields, "parallel.context": "2"})


LAYERS = {
    "more stages than layers": (
        {"model.n_layers": "3"},
        4,
        "parallel.data = 1, pipeline = 4: 4 groups of layers: the model has 3: give "
        "parallel.pipeline = 3",
    ),
    "interleaved": (
        {"model.n_layers": "3", "parallel.schedule": "interleaved"},
        2,
        "4 groups of layers, two groups of them in each process with schedule = 'interleaved': the "
        "model has 3: give parallel.pipeline = 1, or pipeline = 2 with schedule = '1f1b'",
    ),
    "a schedule that does not exist": (
        {"parallel.schedule": "1f2b"},
        2,
        "parallel.schedule",
    ),
    "batchnorm": ({"model.norm": "batchnorm"}, 2, "or parallel.pipeline = 1"),
    "early exits": ({"model.exits": "[1]", "model.n_layers": "2"}, 2, "leave exits out"),
    "tokens ahead": (
        {"model.mtp": "{ depth = 1 }"},
        2,
        "leave mtp out, or use parallel.pipeline = 1",
    ),
    "states in 8 bits": ({"train.optimizer": "adamw_8bit"}, 2, "use adamw, muon, adadelta"),
    "compiled": ({"train.compile": "true"}, 2, "leave compile out"),
}


@pytest.mark.parametrize("what", LAYERS)
def test_what_cannot_be_split_by_layers_is_refused(tmp_path: Path, what: str) -> None:
    fields, pipeline, message = LAYERS[what]
    recipe = write_recipe(tmp_path, "language")
    fields = {
        "train.device": "cpu",
        "model.n_layers": "4",
        "parallel.pipeline": str(pipeline),
        **fields,
    }
    with pytest.raises(InputError) as error:
        read_recipe(recipe, fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_layer_without_a_mixer_reads_no_other_tokens(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "language")
    fields = {"train.device": "cpu", "parallel.context": "2", "model.n_layers": "2"}
    layers = {"model.layer_pattern": '[{}, { attention = "none" }]'}
    assert read_recipe(recipe, {**fields, **layers}).parallel.processes == 2


def test_weights_are_split_among_processes_of_positions_too(tmp_path: Path) -> None:
    fields = {"train.device": "cpu", "parallel.context": "2", "parallel.shard": "true"}
    recipe = write_recipe(tmp_path, "language")
    assert read_recipe(recipe, fields).parallel.processes == 2


def test_layers_are_split_with_positions(tmp_path: Path) -> None:
    fields = {"train.device": "cpu", "parallel.context": "2", "parallel.pipeline": "2"}
    recipe = write_recipe(tmp_path, "language")
    assert read_recipe(recipe, {**fields, "model.n_layers": "2"}).parallel.processes == 4


def test_an_encoder_decoder_has_the_layers_of_both(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "translation")
    fields = {"train.device": "cpu", "model.n_layers": "1", "parallel.pipeline": "2"}
    assert read_recipe(recipe, fields).parallel.stages == 2
    with pytest.raises(InputError, match=r"the model has 2: give parallel\.pipeline = 2"):
        read_recipe(recipe, {**fields, "parallel.pipeline": "3"})
