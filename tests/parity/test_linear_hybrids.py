"""Hybrids of linear layers and attention against transformers: Qwen 3.5, LFM2, Granite 4."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import (
    check_greedy_and_beam,
    check_logits,
    check_refused,
    made,
    padded,
    prompts,
)
from tests.parity.test_families import CLASSIFIERS, flags, rms, rotary, sizes, some_dense

from addnorm.checking.checkpoints import check_settings
from addnorm.checking.wide import Wide
from addnorm.convert.core.settings import Settings
from addnorm.convert.folder import load, read_config, save
from addnorm.convert.registry import family_of
from addnorm.errors import IgnoredSettings, InputError
from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.delta import GatedDeltaConfig
from addnorm.nn.short_convolution import GatedConvolutionConfig

pytestmark = pytest.mark.parity

Draw = random.Random
Keys = dict[str, Any]


def types(draw: Draw, n: int, linear: str) -> Keys:
    """The kind of each layer; transformers needs one of attention to count tokens in its cache."""
    kinds = [draw.choice((linear, "full_attention")) for _ in range(n)]
    kinds[draw.randrange(n)] = "full_attention"
    return {"layer_types": kinds}


def qwen3_5(draw: Draw) -> Keys:
    """Few heads of odd widths, and a part of each rotated."""
    tree = sizes(draw) | rotary(draw) | rms(draw) | {"head_dim": draw.choice((4, 8))}
    tree["rope_parameters"]["partial_rotary_factor"] = draw.choice((0.5, 1.0))
    n_keys = draw.randint(1, 3)
    delta = {
        "linear_num_key_heads": n_keys,
        "linear_num_value_heads": n_keys * draw.randint(1, 2),
        "linear_key_head_dim": draw.randint(1, 5),
        "linear_value_head_dim": draw.randint(1, 5),
        "linear_conv_kernel_dim": draw.randint(2, 5),
    }
    n = tree["num_hidden_layers"]
    given, every_other = types(draw, n, "linear_attention"), {"full_attention_interval": 2}
    default = {"full_attention_interval": 1} if n < 2 else draw.choice((every_other, given))
    return tree | delta | (default if draw.random() < 0.5 else given)


def experts(draw: Draw) -> Keys:
    n = draw.randint(2, 5)
    return {
        "num_experts": n,
        "num_experts_per_tok": draw.randint(1, n),
        "moe_intermediate_size": draw.randint(3, 12),
        "shared_expert_intermediate_size": draw.randint(3, 9),
    }


def qwen3_5_moe(draw: Draw) -> Keys:
    tree = qwen3_5(draw) | experts(draw)
    del tree["intermediate_size"]
    return tree


def qwen3_next(draw: Draw) -> Keys:
    tree = qwen3_5(draw) | experts(draw) | flags(draw, "norm_topk_prob")
    return tree | some_dense(draw, tree)


def lfm2(draw: Draw) -> Keys:
    tree = sizes(draw) | rotary(draw) | {"norm_eps": draw.choice((1e-5, 1e-3))}
    tree |= {"conv_L_cache": draw.randint(2, 5), "block_multiple_of": draw.choice((1, 5))}
    tree |= {"block_ffn_dim_multiplier": draw.choice((1.0, 1.3))}
    tree |= flags(draw, "block_auto_adjust_ff_dim")
    del tree["attention_dropout"]
    n = tree["num_hidden_layers"]
    given = types(draw, n, "conv")
    listed = [i for i, kind in enumerate(given["layer_types"]) if kind != "conv"]
    return tree | draw.choice((given, {"full_attn_idxs": listed}))


def granitemoehybrid(draw: Draw) -> Keys:
    """Experts or none, positions or none, and groups of heads."""
    tree = sizes(draw) | rotary(draw) | rms(draw) | flags(draw, "attention_bias")
    groups, expand = draw.randint(1, 2), draw.choice((1, 2))
    n = draw.choice((0, 3))
    heads = draw.choice((2, 4))
    return tree | {
        "embedding_multiplier": draw.choice((1.0, 12.0)),
        "residual_multiplier": draw.choice((1.0, 0.22)),
        "attention_multiplier": draw.choice((0.3, 0.015625)),
        "logits_scaling": draw.choice((1.0, 8.0)),
        "position_embedding_type": draw.choice((None, "rope")),
        "num_local_experts": n,
        "num_experts_per_tok": draw.randint(1, 3),
        "shared_intermediate_size": draw.randint(3, 12),
        "mamba_n_heads": heads,
        "mamba_n_groups": groups,
        "mamba_d_state": draw.randint(1, 5),
        "mamba_d_conv": draw.randint(2, 5),
        "mamba_expand": expand,
        **flags(draw, "mamba_conv_bias"),
        **types(draw, tree["num_hidden_layers"], "linear_attention"),
    }


def nemotron_h(draw: Draw) -> Keys:
    """Layers of one sublayer each, of all kinds; experts in groups, and heads of other widths."""
    tree = sizes(draw) | {"tie_word_embeddings": False, "time_step_min": 1e-9}
    groups, per_group = draw.randint(1, 2), draw.randint(2, 3)
    kinds = [draw.choice(("linear_attention", "mlp", "moe")) for _ in range(draw.randint(0, 4))]
    kinds.insert(draw.randint(0, len(kinds)), "full_attention")  # as for `types`
    del tree["num_hidden_layers"]
    n_groups = draw.randint(1, 2)
    return tree | {
        "layers_block_type": kinds,
        "head_dim": draw.choice((4, 8)),
        "layer_norm_epsilon": draw.choice((1e-6, 1e-3)),
        "mlp_hidden_act": draw.choice(("relu2", "silu", "gelu")),
        **flags(draw, "mlp_bias", "use_conv_bias", "norm_topk_prob"),
        "mamba_num_heads": n_groups * draw.randint(1, 3),
        "mamba_head_dim": draw.randint(1, 6),
        "n_groups": n_groups,
        "ssm_state_size": draw.randint(1, 5),
        "conv_kernel": draw.randint(2, 5),
        "n_routed_experts": groups * per_group,
        "n_group": groups,
        "topk_group": draw.randint(1, groups),
        "num_experts_per_tok": draw.randint(1, 2),
        "moe_intermediate_size": draw.randint(3, 12),
        "moe_shared_expert_intermediate_size": draw.randint(3, 12),
        "routed_scaling_factor": draw.choice((1.0, 2.5)),
    }


FAMILIES: dict[str, tuple[str, str, Callable[[Draw], Keys]]] = {
    "nemotron_h": ("NemotronH", "NemotronHConfig", nemotron_h),
    "qwen3_next": ("Qwen3Next", "Qwen3NextConfig", qwen3_next),
    "qwen3_5": ("Qwen3_5", "Qwen3_5TextConfig", qwen3_5),
    "qwen3_5_moe": ("Qwen3_5Moe", "Qwen3_5MoeTextConfig", qwen3_5_moe),
    "lfm2": ("Lfm2", "Lfm2Config", lfm2),
    "granitemoehybrid": ("GraniteMoeHybrid", "GraniteMoeHybridConfig", granitemoehybrid),
}
"""The stem of a family's classes in transformers, its configuration, and a random one."""


def random_config(name: str, seed: int) -> Any:
    _, kind, draw = FAMILIES[name]
    return getattr(transformers, kind)(**draw(random.Random(f"{name} {seed}")))


def random_settings(name: str, seed: int, ending: str = "ForCausalLM") -> Settings:
    """A random `config.json`, as transformers writes it."""
    tree = random_config(name, seed).to_dict()
    tree.pop("time_step_limit", None)  # an infinite number, which is not JSON
    return Settings(tree | {"architectures": [f"{FAMILIES[name][0]}{ending}"]})


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_equal_to_transformers(name: str) -> None:
    result = check_settings(random_settings(name, 0))
    assert result.failed is None, result


@pytest.mark.slow
@pytest.mark.parametrize("ending", CLASSIFIERS)
def test_a_hybrid_that_classifies_is_equal_to_transformers(ending: str) -> None:
    for seed in range(10):
        result = check_settings(random_settings("qwen3_next", seed, ending))
        assert result.failed is None, (seed, result)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_thirty_configurations_of_a_family_are_equal(name: str) -> None:
    for seed in range(1, 31):
        result = check_settings(random_settings(name, seed))
        assert result.failed is None, (seed, result)


def both_kinds(name: str, **changes: Any) -> Any:
    """A configuration of four layers: three linear ones and one of attention."""
    linear = "conv" if name == "lfm2" else "linear_attention"
    _, kind, draw = FAMILIES[name]
    tree = draw(random.Random(name)) | {"vocab_size": 64, "num_hidden_layers": 4}
    for key in ("full_attn_idxs", "full_attention_interval", "mlp_only_layers"):
        tree.pop(key, None)
    kinds = [linear, linear, "full_attention", linear]
    if name == "nemotron_h":
        kinds = [linear, "moe", "full_attention", "mlp"]
        tree.pop("num_hidden_layers")
        tree.pop("layers_block_type")
    tree |= {"layer_types": kinds}
    return getattr(transformers, kind)(**tree | changes)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_ragged_batches_are_written_alike_by_beam_search(name: str, tmp_path: Path) -> None:
    theirs, loaded = made(f"{FAMILIES[name][0]}ForCausalLM", both_kinds(name), tmp_path)
    if name not in ("qwen3_5", "lfm2"):
        theirs.set_experts_implementation("eager")  # the grouped one has no float64
    check_greedy_and_beam(theirs, loaded, 64, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_5", "lfm2"])
def test_texts_of_many_chunks(name: str, tmp_path: Path) -> None:
    config = both_kinds(name, max_position_embeddings=256)
    theirs, _ = made(f"{FAMILIES[name][0]}ForCausalLM", config, tmp_path)
    ids, valid = padded(prompts(64, (150, 3, 70)), left=True)
    model = load(tmp_path, dtype=torch.float64).model
    with torch.no_grad(), Wide():
        expected = theirs(ids, attention_mask=valid.long()).logits
        ours = model(ids, valid)
    torch.testing.assert_close(ours[valid], expected[valid], rtol=0, atol=1e-8)


@pytest.mark.parametrize("bias", [True, False])
def test_gated_convolutions_with_biases(bias: bool, tmp_path: Path) -> None:
    """Without padding: transformers reads biases there, which the definition does not."""
    theirs, loaded = made("Lfm2ForCausalLM", both_kinds("lfm2", conv_bias=bias), tmp_path)
    assert loaded.spec.model.layer(0).attention.bias == bias
    ids, _ = padded(prompts(64, (7, 7)), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})


def test_mamba_with_biases_of_its_projections(tmp_path: Path) -> None:
    """Without padding, as above."""
    config = both_kinds("nemotron_h", use_bias=True)
    theirs, loaded = made("NemotronHForCausalLM", config, tmp_path)
    theirs.set_experts_implementation("eager")
    assert loaded.spec.model.layer(0).attention.bias
    ids, _ = padded(prompts(64, (7, 7)), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})


def test_layers_by_the_letters_of_an_older_file() -> None:
    """`M` for Mamba-2, `*` for attention, `-` for a feed-forward, `E` for experts."""
    tree = random_settings("nemotron_h", 0).tree
    kinds = ["linear_attention", "mlp", "full_attention", "moe"]
    listed = tree | {"layers_block_type": kinds}
    lettered = {**tree, "hybrid_override_pattern": "M-*E", "num_hidden_layers": 4}
    del lettered["layers_block_type"]
    models = [read_config(family_of(s), s).model for s in map(Settings, (listed, lettered))]
    assert models[0] == models[1]
    for changes, match in (
        ({"hybrid_override_pattern": "M-X"}, "X is not one of"),
        ({"num_hidden_layers": 5}, "lists 4 layers, not 5"),
        ({"moe_latent_size": 4}, "moe_latent_size = 4"),
        ({"sliding_window": 4}, "sliding_window = 4"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings = True"),
    ):
        settings = Settings(lettered | changes)
        with pytest.raises(InputError, match=match):
            read_config(family_of(settings), settings)


SIGHT: Keys = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 16,
}
IMAGE = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*only the text half:addnorm.errors.IgnoredSettings")
@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_the_text_half_of_a_model_of_images(name: str, tmp_path: Path) -> None:
    stem, _, _ = FAMILIES[name]
    text = both_kinds(name).to_dict()
    text["rope_parameters"] |= {"mrope_section": [1, 1, 1], "mrope_interleaved": True}
    config = getattr(transformers, f"{stem}Config")(
        text_config=text, vision_config={**SIGHT, "out_hidden_size": text["hidden_size"]}, **IMAGE
    )
    theirs, _ = made(f"{stem}ForConditionalGeneration", config, tmp_path)
    if name == "qwen3_5_moe":
        theirs.set_experts_implementation("eager")
    ids, _ = padded([[i % 50 + 8 for i in row] for row in prompts(64)], left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})
    with pytest.warns(IgnoredSettings, match=r"config\.json: only the text half .*vision_config"):
        loaded = load(tmp_path)
    out = save(tmp_path / "text", loaded.spec, loaded.model, None)
    assert out == {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_next"}[name]
    weights, again = loaded.model.state_dict(), load(tmp_path / "text").model.state_dict()
    assert all(torch.equal(again[key], weights[key]) for key in weights)


def test_experts_in_one_tensor(tmp_path: Path) -> None:
    """As Qwen3.5 is published: gate and up of all experts in one tensor, and down in another."""
    config = both_kinds("qwen3_5_moe", num_experts=3, num_experts_per_tok=2)
    made("Qwen3_5MoeForCausalLM", config, tmp_path)
    expected, file = load(tmp_path), tmp_path / "model.safetensors"
    weights = load_file(file)
    for i in range(4):
        start = f"model.layers.{i}.mlp.experts"
        each = [[weights.pop(f"{start}.{e}.{part}_proj.weight") for part in ("gate", "up", "down")]
                for e in range(3)]  # fmt: skip
        weights[f"{start}.gate_up_proj"] = torch.stack([torch.cat(part[:2]) for part in each])
        weights[f"{start}.down_proj"] = torch.stack([part[2] for part in each])
    save_file(weights, file)
    state, ours = load(tmp_path).model.state_dict(), expected.model.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in ours.items())
    save_file(weights | {f"{start}.down_proj": torch.ones(2, 5, 4)}, file)
    with pytest.raises(InputError, match="expected 3 experts"):
        load(tmp_path)


REFUSED: dict[str, tuple[str, Keys, str]] = {
    "an unknown layer type": (
        "qwen3_5",
        {"layer_types": ["mamba"] * 4},
        "mamba is neither full_attention nor linear_attention",
    ),
    "a wrong number of types": ("lfm2", {"layer_types": ["conv"]}, "the model has 4 layers"),
    "heads that keys do not divide": (
        "qwen3_next",
        {"linear_num_key_heads": 3, "linear_num_value_heads": 4},
        "n_key_heads = 3 cannot serve n_heads = 4",
    ),
    "a bias of queries": ("qwen3_5", {"attention_bias": True}, "attention_bias = True"),
    "another activation": ("qwen3_5", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "an unknown key": ("lfm2", {"something_new": 3}, "something_new = 3"),
}


@pytest.mark.parametrize(("name", "changes", "match"), REFUSED.values(), ids=REFUSED)
def test_unsupported_settings_are_named(
    name: str, changes: Keys, match: str, tmp_path: Path
) -> None:
    tree = both_kinds(name).to_dict()
    tree["architectures"] = [f"{FAMILIES[name][0]}ForCausalLM"]
    settings = Settings(json.loads(json.dumps(tree)) | changes)
    with pytest.raises(InputError, match=match):
        read_config(family_of(settings), settings)


def test_what_no_family_has_is_named(tmp_path: Path) -> None:
    """Two forms of the rule, a decay of each feature, and layers beside those of another family."""
    loaded = made("Qwen3_5ForCausalLM", both_kinds("qwen3_5"), tmp_path)[1]
    model = loaded.spec.model
    assert isinstance(model, DecoderConfig)
    layers = model.layers(4)
    other = GatedDeltaConfig(n_heads=2, d_key=2, d_value=2, decay="channel")
    for changes, match in (
        ((other, other, None, other), "decay = 'channel' would become 'head'"),
        ((layers[0].attention, other, None, other), "one form of the gated delta rule"),
        ((GatedConvolutionConfig(), layers[0].attention, None, None), "gated_convolution"),
    ):
        pattern = tuple(LayerConfig(attention=mixer) for mixer in changes)
        spec = replace(loaded.spec, model=replace(model, layer_pattern=pattern))
        changed_model = spec.model.build(64)
        with pytest.raises(InputError, match=match):
            save(tmp_path / "out", spec, changed_model, None, model_type="qwen3_5_text")
        assert not (tmp_path / "out").exists()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    made("Qwen3_5ForCausalLM", both_kinds("qwen3_5"), tmp_path)
    check_refused(tmp_path, {"layer_types": ["full_attention"] * 4}, "missing .*self_attn")


PUBLISHED: dict[str, Keys] = {
    "qwen3-next-80b-a3b": {
        "architectures": ["Qwen3NextForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "decoder_sparse_step": 1,
        "eos_token_id": 151645,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 5120,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "model_type": "qwen3_next",
        "moe_intermediate_size": 512,
        "norm_topk_prob": True,
        "num_attention_heads": 16,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "output_router_logits": False,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000000,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 512,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "lfm2-1.2b": {
        "architectures": ["Lfm2ForCausalLM"],
        "block_auto_adjust_ff_dim": True,
        "block_dim": 2048,
        "block_ff_dim": 12288,
        "block_ffn_dim_multiplier": 1.0,
        "block_mlp_init_scale": 1.0,
        "block_multiple_of": 256,
        "block_norm_eps": 1e-05,
        "block_out_init_scale": 1.0,
        "block_use_swiglu": True,
        "block_use_xavier_init": True,
        "bos_token_id": 1,
        "conv_L_cache": 3,
        "conv_bias": False,
        "conv_dim": 2048,
        "conv_dim_out": 2048,
        "conv_use_xavier_init": True,
        "eos_token_id": 7,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "max_position_embeddings": 128000,
        "model_type": "lfm2",
        "norm_eps": 1e-05,
        "num_attention_heads": 32,
        "num_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pad_token_id": 0,
        "rope_theta": 1000000.0,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_pos_enc": True,
        "vocab_size": 65536,
    },
    "granite-4.0-h-tiny": {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_multiplier": 0.0078125,
        "bos_token_id": 100257,
        "embedding_multiplier": 12,
        "eos_token_id": 100257,
        "hidden_act": "silu",
        "hidden_size": 1536,
        "init_method": "mup",
        "initializer_range": 0.1,
        "intermediate_size": 512,
        "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
        "logits_scaling": 6,
        "mamba_chunk_size": 256,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": 48,
        "mamba_proj_bias": False,
        "max_position_embeddings": 131072,
        "model_type": "granitemoehybrid",
        "normalization_function": "rmsnorm",
        "num_attention_heads": 12,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 40,
        "num_key_value_heads": 4,
        "num_local_experts": 64,
        "output_router_logits": False,
        "pad_token_id": 100256,
        "position_embedding_type": "nope",
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000,
        "router_aux_loss_coef": 0.0001,
        "shared_intermediate_size": 1024,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 100352,
    },
}
"""Configurations of the kind that is published."""


def test_published_sizes_are_read() -> None:
    settings = Settings(PUBLISHED["qwen3-next-80b-a3b"])
    model = read_config(family_of(settings), settings).model
    assert isinstance(model, DecoderConfig)
    delta, _, _, last = (layer.attention for layer in model.layer_pattern)
    assert delta == GatedDeltaConfig(
        n_heads=32, n_key_heads=16, d_key=128, d_value=128, kernel_size=4
    )
    assert last is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2-1.2b", "granite-4.0-h-tiny"])
def test_a_published_configuration_is_proven_with_reduced_sizes(name: str) -> None:
    result = check_settings(Settings(PUBLISHED[name]))
    assert result.failed is None, result
