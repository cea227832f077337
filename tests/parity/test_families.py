"""Every family against transformers, over random configurations: `addnorm check --family`."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import transformers

from addnorm.checking.checkpoints import check_settings
from addnorm.convert.core.settings import Settings

pytestmark = pytest.mark.parity

Draw = random.Random
Keys = dict[str, Any]

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2")


def sizes(draw: Draw) -> Keys:
    """Heads and widths under their usual names; at times the heads do not fill the width."""
    n_kv, shared, d_head = draw.choice((1, 2, 3)), draw.choice((1, 2)), draw.choice((4, 8, 12))
    return {
        "vocab_size": draw.randint(20, 60),
        "hidden_size": n_kv * shared * d_head,
        "num_hidden_layers": draw.randint(1, 4),
        "num_attention_heads": n_kv * shared,
        "num_key_value_heads": n_kv,
        "intermediate_size": draw.randint(5, 30),
        "max_position_embeddings": draw.choice((64, 100)),
        "tie_word_embeddings": draw.random() < 0.5,
        "attention_dropout": draw.choice((0.0, 0.1)),
        **SPECIAL,
    }


SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def rotary(draw: Draw, *, partial: bool = False) -> Keys:
    """A base and a scaling of rotary positions; under the old names or the new ones."""
    scaling = draw.choice(
        (
            {"rope_type": "default"},
            {"rope_type": "default"},
            {"rope_type": "linear", "factor": 2.5},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        )
    )
    theta = {"rope_theta": draw.choice((100.0, 10000.0, 500000.0))}
    part = {"partial_rotary_factor": draw.choice((0.5, 1.0))} if partial else {}
    return {"rope_parameters": scaling | theta | part}


def gated(draw: Draw, *, partial: bool = False, d_head: bool = True) -> Keys:
    """A relative of LLaMA."""
    tree = sizes(draw) | rotary(draw, partial=partial)
    tree["hidden_act"] = draw.choice(ACTIVATIONS)
    if d_head and draw.random() < 0.5:
        tree["head_dim"] = draw.choice((4, 8))
    return tree


def rms(draw: Draw) -> Keys:
    return {"rms_norm_eps": draw.choice((1e-6, 1e-3))}


def flags(draw: Draw, *names: str) -> Keys:
    return {name: draw.random() < 0.5 for name in names}


def types(draw: Draw, tree: Keys) -> Keys:
    """Windows in some layers."""
    kinds = ("full_attention", "sliding_attention")
    chosen = [draw.choice(kinds) for _ in range(tree["num_hidden_layers"])]
    return {"layer_types": chosen, "sliding_window": draw.randint(2, 6)}


def llama(draw: Draw) -> Keys:
    return gated(draw) | rms(draw) | flags(draw, "attention_bias", "mlp_bias")


def mistral(draw: Draw) -> Keys:
    return gated(draw) | rms(draw) | {"sliding_window": draw.choice((None, 3))}


def qwen2(draw: Draw) -> Keys:
    tree = gated(draw) | rms(draw)
    return tree | types(draw, tree) | {"use_sliding_window": True}


def arcee(draw: Draw) -> Keys:
    return gated(draw) | rms(draw) | flags(draw, "attention_bias", "mlp_bias")


def seed_oss(draw: Draw) -> Keys:
    bias = flags(draw, "attention_bias", "attention_out_bias")
    return gated(draw) | {"head_dim": draw.choice((4, 6))} | rms(draw) | bias


def ministral(draw: Draw) -> Keys:
    tree = gated(draw) | rms(draw) | {"head_dim": draw.choice((4, 8))}
    return tree | types(draw, tree)


def helium(draw: Draw) -> Keys:
    tree = gated(draw, d_head=False) | rms(draw) | flags(draw, "attention_bias", "mlp_bias")
    return tree | {"head_dim": tree["hidden_size"] // tree["num_attention_heads"]}


def smollm3(draw: Draw) -> Keys:
    tree = gated(draw) | rms(draw) | flags(draw, "attention_bias", "mlp_bias")
    window = flags(draw, "use_sliding_window") | {"sliding_window": draw.randint(2, 5)}
    given = {"no_rope_layers": [draw.randint(0, 1) for _ in range(tree["num_hidden_layers"])]}
    return tree | window | draw.choice(({}, given, {"no_rope_layer_interval": 2}))


def phi(draw: Draw) -> Keys:
    tree = gated(draw, partial=True, d_head=False) | flags(draw, "qk_layernorm")
    return tree | {"hidden_act": "gelu_new", "layer_norm_eps": draw.choice((1e-5, 1e-2))}


def phi3(draw: Draw) -> Keys:
    tree = gated(draw, partial=True, d_head=False) | rms(draw)
    part = {"partial_rotary_factor": draw.choice((0.5, 1.0)), "rope_theta": 1000.0}
    tree["rope_parameters"] = {"rope_type": "default"} | part
    return tree | {"sliding_window": draw.choice((None, 3)), "resid_pdrop": 0.1}


def mixtral(draw: Draw) -> Keys:
    n = draw.randint(2, 5)
    experts = {"num_local_experts": n, "num_experts_per_tok": draw.randint(2, n)}
    return gated(draw) | rms(draw) | experts | {"sliding_window": draw.choice((None, 3))}


def qwen3_moe(draw: Draw) -> Keys:
    n = draw.randint(2, 5)
    experts = {"num_experts": n, "num_experts_per_tok": draw.randint(2, n), "norm_topk_prob": True}
    window = flags(draw, "use_sliding_window") | {"sliding_window": 3}
    width = {"moe_intermediate_size": draw.randint(3, 20), "head_dim": draw.choice((4, 8))}
    return gated(draw) | rms(draw) | experts | width | window | flags(draw, "attention_bias")


def starcoder2(draw: Draw) -> Keys:
    window = {"sliding_window": draw.choice((None, 3)), "norm_epsilon": draw.choice((1e-5, 1e-3))}
    return gated(draw) | window | flags(draw, "use_bias")


def stablelm(draw: Draw) -> Keys:
    choices = flags(draw, "use_qkv_bias", "use_parallel_residual")
    return gated(draw, partial=True, d_head=False) | choices | {"layer_norm_eps": 1e-4}


def glm(draw: Draw) -> Keys:
    tree = gated(draw, partial=True) | rms(draw) | flags(draw, "attention_bias")
    return tree | {"head_dim": draw.choice((4, 8))}


def granite(draw: Draw) -> Keys:
    numbers = {
        "embedding_multiplier": draw.choice((1.0, 12.0)),
        "residual_multiplier": draw.choice((1.0, 0.22)),
        "attention_multiplier": draw.choice((1.0, 0.015625)),
        "logits_scaling": draw.choice((1.0, 8.0, 49.0)),
    }
    return gated(draw, d_head=False) | rms(draw) | numbers | flags(draw, "attention_bias")


def cohere(draw: Draw) -> Keys:
    tree = gated(draw, d_head=False) | flags(draw, "attention_bias")
    return tree | {"logit_scale": draw.choice((0.0625, 1.0)), "layer_norm_eps": 1e-4}


def cohere2(draw: Draw) -> Keys:
    tree = cohere(draw) | {"sliding_window": 3}
    return tree | draw.choice(({}, {"sliding_window_pattern": 2}, types(draw, tree)))


def gpt(draw: Draw) -> Keys:
    """Sizes under the names of GPT-2."""
    tree = sizes(draw)
    return {
        "vocab_size": tree["vocab_size"],
        "n_positions": 64,
        "n_embd": tree["hidden_size"],
        "n_layer": tree["num_hidden_layers"],
        "n_head": tree["num_attention_heads"],
        "n_inner": draw.choice((None, 17)),
        "layer_norm_epsilon": draw.choice((1e-5, 1e-2)),
        "tie_word_embeddings": tree["tie_word_embeddings"],
        "activation_function": draw.choice(("gelu_new", "relu")),
        **SPECIAL,
    }


def gptj(draw: Draw) -> Keys:
    return gpt(draw) | {"rotary_dim": draw.choice((2, 4))}


def gpt_bigcode(draw: Draw) -> Keys:
    return gpt(draw) | flags(draw, "multi_query")


def gpt_neo(draw: Draw) -> Keys:
    tree = sizes(draw)
    cycle, n = draw.choice(((["global"], 1), (["global", "local"], 1), (["local"], 2)))
    return {
        "vocab_size": tree["vocab_size"],
        "max_position_embeddings": 64,
        "hidden_size": tree["hidden_size"],
        "num_layers": len(cycle) * n,
        "num_heads": tree["num_attention_heads"],
        "attention_types": [[cycle, n]],
        "intermediate_size": draw.choice((None, 17)),
        "window_size": draw.randint(2, 5),
        "layer_norm_epsilon": draw.choice((1e-5, 1e-2)),
        "tie_word_embeddings": tree["tie_word_embeddings"],
        **SPECIAL,
    }


def bloom(draw: Draw) -> Keys:
    tree = sizes(draw)
    return {
        "vocab_size": tree["vocab_size"],
        "hidden_size": tree["hidden_size"],
        "n_layer": tree["num_hidden_layers"],
        "n_head": tree["num_attention_heads"],
        "layer_norm_epsilon": draw.choice((1e-5, 1e-2)),
        "tie_word_embeddings": tree["tie_word_embeddings"],
        **SPECIAL,
    }


def mpt(draw: Draw) -> Keys:
    tree = sizes(draw)
    return {
        "vocab_size": tree["vocab_size"],
        "d_model": tree["hidden_size"],
        "n_layers": tree["num_hidden_layers"],
        "n_heads": tree["num_attention_heads"],
        "max_seq_len": 64,
        "layer_norm_epsilon": draw.choice((1e-5, 1e-2)),
        "tie_word_embeddings": tree["tie_word_embeddings"],
        "attn_config": {"softmax_scale": draw.choice((None, 0.3))},
        **SPECIAL,
    }


def falcon(draw: Draw) -> Keys:
    tree = sizes(draw) | rotary(draw)
    del tree["intermediate_size"]
    tree["num_kv_heads"] = tree.pop("num_key_value_heads")
    tree |= {"ffn_hidden_size": draw.choice((None, 17)), "activation": draw.choice(ACTIVATIONS)}
    tree |= flags(draw, "bias", "new_decoder_architecture", "multi_query", "parallel_attn")
    if tree["new_decoder_architecture"]:
        return tree | {"parallel_attn": True, "num_ln_in_parallel_attn": draw.choice((None, 1, 2))}
    if not tree["multi_query"]:
        tree["num_kv_heads"] = tree["num_attention_heads"]
    return tree


def translator(draw: Draw) -> Keys:
    tree: Keys = {
        "vocab_size": draw.randint(20, 60),
        "d_model": 12,
        "max_position_embeddings": 40,
        "scale_embedding": draw.random() < 0.5,
        "activation_function": draw.choice(("gelu", "relu", "silu")),
        "tie_word_embeddings": True,
        "decoder_start_token_id": 1,
        **SPECIAL,
    }
    for side in ("encoder", "decoder"):
        tree[f"{side}_layers"] = draw.randint(1, 3)
        tree[f"{side}_attention_heads"] = draw.choice((1, 2, 3))
        tree[f"{side}_ffn_dim"] = draw.randint(5, 20)
    return tree


FAMILIES: dict[str, tuple[str, Callable[[Draw], Keys]]] = {
    "llama": ("Llama", llama),
    "mistral": ("Mistral", mistral),
    "qwen2": ("Qwen2", qwen2),
    "arcee": ("Arcee", arcee),
    "seed_oss": ("SeedOss", seed_oss),
    "ministral": ("Ministral", ministral),
    "helium": ("Helium", helium),
    "smollm3": ("SmolLM3", smollm3),
    "phi": ("Phi", phi),
    "phi3": ("Phi3", phi3),
    "mixtral": ("Mixtral", mixtral),
    "qwen3_moe": ("Qwen3Moe", qwen3_moe),
    "starcoder2": ("Starcoder2", starcoder2),
    "gpt_bigcode": ("GPTBigCode", gpt_bigcode),
    "stablelm": ("StableLm", stablelm),
    "glm": ("Glm", glm),
    "glm4": ("Glm4", glm),
    "granite": ("Granite", granite),
    "cohere": ("Cohere", cohere),
    "cohere2": ("Cohere2", cohere2),
    "gptj": ("GPTJ", gptj),
    "gpt_neo": ("GPTNeo", gpt_neo),
    "bloom": ("Bloom", bloom),
    "mpt": ("Mpt", mpt),
    "falcon": ("Falcon", falcon),
    "mbart": ("MBart", translator),
    "pegasus": ("Pegasus", translator),
}
"""The stem of each family's classes in transformers, and a random configuration."""

TRANSLATORS = ("mbart", "pegasus")


def random_settings(name: str, seed: int) -> Settings:
    """A random `config.json`, as transformers writes it."""
    stem, draw = FAMILIES[name]
    tree = draw(random.Random(f"{name} {seed}"))
    config = getattr(transformers, f"{stem}Config")(**tree)
    ending = "ForConditionalGeneration" if name in TRANSLATORS else "ForCausalLM"
    return Settings(config.to_dict() | {"architectures": [f"{stem}{ending}"]})


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_equal_to_transformers(name: str) -> None:
    result = check_settings(random_settings(name, 0))
    assert result.failed is None, result


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_thirty_configurations_of_a_family_are_equal(name: str) -> None:
    for seed in range(1, 31):
        result = check_settings(random_settings(name, seed))
        assert result.failed is None, (seed, result)
