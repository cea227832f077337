"""Every family against transformers, over random configurations: `addnorm check --family`."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tests.parity.families import (
    changed,
    check_greedy_and_beam,
    check_logits,
    check_refused,
    check_round_trip,
    made,
    padded,
    prompts,
)

from addnorm.checking.checkpoints import check_settings
from addnorm.convert.core.settings import Settings
from addnorm.convert.families import llama_relatives
from addnorm.convert.folder import load, read_config
from addnorm.convert.registry import family_of
from addnorm.errors import InputError

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


def qwen3(draw: Draw) -> Keys:
    return qwen2(draw) | flags(draw, "attention_bias")


def gemma(draw: Draw) -> Keys:
    tree = gated(draw) | rms(draw) | flags(draw, "attention_bias")
    return tree | {"head_dim": draw.choice((4, 8))}


def gemma2(draw: Draw) -> Keys:
    tree = gemma(draw) | {"query_pre_attn_scalar": 8}
    return tree | types(draw, tree) | {"hidden_activation": tree.pop("hidden_act")}


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
    d_head = tree["hidden_size"] // tree["num_attention_heads"]
    n_pairs = int(d_head * part["partial_rotary_factor"]) // 2
    long = {
        "rope_type": "longrope",
        "short_factor": [1.0 + i for i in range(n_pairs)],
        "long_factor": [2.0 + i for i in range(n_pairs)],
        "attention_factor": draw.choice((None, 1.3)),
    }
    tree["rope_parameters"] = draw.choice(({"rope_type": "default"}, long)) | part
    tree["original_max_position_embeddings"] = 32
    return tree | {"sliding_window": draw.choice((None, 3)), "resid_pdrop": 0.1}


def mixtral(draw: Draw) -> Keys:
    n = draw.randint(2, 5)
    experts = {"num_local_experts": n, "num_experts_per_tok": draw.randint(1, n)}
    return gated(draw) | rms(draw) | experts | {"sliding_window": draw.choice((None, 3))}


def qwen3_moe(draw: Draw) -> Keys:
    n = draw.randint(2, 5)
    experts = {"num_experts": n, "num_experts_per_tok": draw.randint(1, n)}
    window = flags(draw, "use_sliding_window") | {"sliding_window": 3}
    width = {"moe_intermediate_size": draw.randint(3, 20), "head_dim": draw.choice((4, 8))}
    tree = gated(draw) | rms(draw) | experts | width | window
    return tree | some_dense(draw, tree) | flags(draw, "attention_bias", "norm_topk_prob")


def some_dense(draw: Draw, tree: Keys) -> Keys:
    """Layers without experts, by their numbers or every other one."""
    listed = [i for i in range(tree["num_hidden_layers"]) if draw.random() < 0.3]
    return draw.choice(({}, {"mlp_only_layers": listed}, {"decoder_sparse_step": 2}))


def qwen2_moe(draw: Draw) -> Keys:
    n = draw.randint(2, 5)
    tree = gated(draw, d_head=False) | rms(draw) | flags(draw, "qkv_bias", "norm_topk_prob")
    tree |= {"num_experts": n, "num_experts_per_tok": draw.randint(1, n)}
    tree |= {"moe_intermediate_size": draw.randint(3, 20)}
    return tree | some_dense(draw, tree) | {"shared_expert_intermediate_size": draw.randint(3, 9)}


def shared_experts(draw: Draw, *, sigmoid: bool) -> Keys:
    """Experts in groups, a shared one, and dense layers first."""
    groups, size = draw.randint(1, 3), draw.randint(2, 3)
    best = draw.randint(1, groups)
    tree: Keys = {
        "n_routed_experts": groups * size,
        "n_group": groups,
        "topk_group": best,
        "num_experts_per_tok": draw.randint(1, best * size),
        "n_shared_experts": draw.randint(1, 2),
        "moe_intermediate_size": draw.randint(3, 12),
        "first_k_dense_replace": draw.randint(0, 2),
        "routed_scaling_factor": draw.choice((1.0, 2.5)),
    }
    if sigmoid:
        return tree | flags(draw, "norm_topk_prob")
    return tree | {"topk_method": draw.choice(("greedy", "group_limited_greedy"))}


def latent(draw: Draw) -> Keys:
    """Latent attention, at times with queries of a latent, and both scales of YaRN."""
    tree = gated(draw, d_head=False) | rms(draw) | flags(draw, "attention_bias")
    tree["num_key_value_heads"] = tree["num_attention_heads"]
    scales = {"mscale": draw.choice((1.0, 0.7)), "mscale_all_dim": draw.choice((1.0, 0.5, 0.707))}
    if tree["rope_parameters"]["rope_type"] == "yarn":
        tree["rope_parameters"] |= draw.choice(({}, scales, {"mscale_all_dim": 1.0}))
    return tree | {
        "kv_lora_rank": draw.choice((4, 6, 10)),  # V2 rotates complex numbers: even widths
        "q_lora_rank": draw.choice((None, 5)),
        "qk_nope_head_dim": draw.choice((2, 4, 6)),
        "qk_rope_head_dim": draw.choice((2, 4, 6)),
        "v_head_dim": draw.randint(2, 6),
    }


def deepseek_v2(draw: Draw) -> Keys:
    return latent(draw) | shared_experts(draw, sigmoid=False)


def deepseek_v3(draw: Draw) -> Keys:
    return latent(draw) | shared_experts(draw, sigmoid=True) | flags(draw, "rope_interleave")


def glm4_moe(draw: Draw) -> Keys:
    tree = gated(draw, partial=True) | rms(draw) | flags(draw, "attention_bias", "use_qk_norm")
    return tree | {"head_dim": draw.choice((4, 8))} | shared_experts(draw, sigmoid=True)


def gpt_oss(draw: Draw) -> Keys:
    tree = gated(draw) | rms(draw) | flags(draw, "attention_bias")
    n = draw.randint(2, 5)
    tree |= {"num_local_experts": n, "num_experts_per_tok": draw.randint(1, n)}
    tree |= {"swiglu_limit": draw.choice((0.1, 7.0)), "head_dim": draw.choice((4, 8))}
    if draw.random() < 0.3:
        del tree["rope_parameters"]
    return tree | draw.choice(({}, types(draw, tree)))


def olmo(draw: Draw) -> Keys:
    return gated(draw) | flags(draw, "attention_bias")


def olmo2(draw: Draw) -> Keys:
    return olmo(draw) | rms(draw)


def olmo3(draw: Draw) -> Keys:
    """Windows in some layers, of positions of their own; scaled where attention is full."""
    tree = olmo2(draw)
    full, sliding = (rotary(draw)["rope_parameters"] for _ in range(2))
    tables = {"full_attention": full, "sliding_attention": sliding}
    del tree["rope_parameters"]
    positions = draw.choice(({}, {"rope_scaling": full}, {"rope_parameters": tables}))
    return tree | positions | draw.choice(({"sliding_window": 3}, types(draw, tree)))


def nemotron(draw: Draw) -> Keys:
    tree = gated(draw, partial=True) | {"norm_eps": draw.choice((1e-5, 1e-3))}
    return tree | flags(draw, "attention_bias", "mlp_bias")


def apertus(draw: Draw) -> Keys:
    tree = olmo2(draw) | {"hidden_act": draw.choice(("xielu", "xielu", "relu2"))}
    if draw.random() < 0.2:
        del tree["rope_parameters"]
    return tree


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
    tree |= flags(draw, "bias", "new_decoder_architecture", "multi_query", "parallel_attn", "alibi")
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


def m2m_100(draw: Draw) -> Keys:
    return translator(draw) | {"pad_token_id": draw.choice((0, 3))}


def t5(draw: Draw) -> Keys:
    return {
        "vocab_size": draw.randint(20, 60),
        "d_model": 12,
        "d_kv": draw.choice((3, 5)),
        "d_ff": draw.randint(5, 20),
        "num_layers": draw.randint(1, 3),
        "num_decoder_layers": draw.choice((None, 1, 2)),
        "num_heads": draw.choice((1, 2, 3)),
        "relative_attention_num_buckets": draw.choice((4, 8)),
        "relative_attention_max_distance": draw.choice((8, 20)),
        "feed_forward_proj": draw.choice(("relu", "gated-gelu", "gated-silu")),
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


FAMILIES: dict[str, tuple[str, Callable[[Draw], Keys]]] = {
    "llama": ("Llama", llama),
    "mistral": ("Mistral", mistral),
    "qwen2": ("Qwen2", qwen2),
    "qwen3": ("Qwen3", qwen3),
    "gemma": ("Gemma", gemma),
    "gemma2": ("Gemma2", gemma2),
    "arcee": ("Arcee", arcee),
    "seed_oss": ("SeedOss", seed_oss),
    "ministral": ("Ministral", ministral),
    "helium": ("Helium", helium),
    "smollm3": ("SmolLM3", smollm3),
    "phi": ("Phi", phi),
    "phi3": ("Phi3", phi3),
    "mixtral": ("Mixtral", mixtral),
    "qwen3_moe": ("Qwen3Moe", qwen3_moe),
    "qwen2_moe": ("Qwen2Moe", qwen2_moe),
    "glm4_moe": ("Glm4Moe", glm4_moe),
    "deepseek_v2": ("DeepseekV2", deepseek_v2),
    "deepseek_v3": ("DeepseekV3", deepseek_v3),
    "gpt_oss": ("GptOss", gpt_oss),
    "olmo": ("Olmo", olmo),
    "olmo2": ("Olmo2", olmo2),
    "olmo3": ("Olmo3", olmo3),
    "nemotron": ("Nemotron", nemotron),
    "apertus": ("Apertus", apertus),
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
    "t5": ("T5", t5),
    "umt5": ("UMT5", t5),
    "mbart": ("MBart", translator),
    "pegasus": ("Pegasus", translator),
    "m2m_100": ("M2M100", m2m_100),
}
"""The stem of each family's classes in transformers, and a random configuration."""

TRANSLATORS = ("t5", "umt5", "mbart", "pegasus", "m2m_100")
OF_ONE_CLASS = ("gptj", "gpt_neo", "gpt_bigcode", "bloom", "mpt", "falcon", *TRANSLATORS)
"""The families that are read by their class that writes alone."""

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
CLASSIFYING = [
    (name, ending)
    for name, (stem, _) in FAMILIES.items()
    for ending in CLASSIFIERS
    if hasattr(transformers, f"{stem}{ending}") and name not in OF_ONE_CLASS
]
"""The decoders with a class in transformers that classifies texts, or tags tokens."""


def random_settings(name: str, seed: int, ending: str = "ForCausalLM") -> Settings:
    """A random `config.json`, as transformers writes it."""
    stem, draw = FAMILIES[name]
    rng = random.Random(f"{name} {seed}")
    tree = draw(rng)
    if ending in CLASSIFIERS:
        tree["num_labels"] = rng.choice((1, 2, 5))
    config = getattr(transformers, f"{stem}Config")(**tree)
    ending = "ForConditionalGeneration" if name in TRANSLATORS else ending
    return Settings(config.to_dict() | {"architectures": [f"{stem}{ending}"]})


def phi3_long() -> Any:
    """A model that was trained on texts of eight tokens."""
    factors = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}
    rope = {"rope_type": "longrope", "rope_theta": 100.0} | factors
    tree: Keys = {
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 20,
        "max_position_embeddings": 64,
        "rope_parameters": rope,
        "original_max_position_embeddings": 8,
        **SPECIAL,
    }
    return transformers.Phi3Config(**tree)


@pytest.mark.parametrize("length", [8, 9, 12])
def test_long_texts_have_their_own_frequencies(length: int, tmp_path: Path) -> None:
    """All of one length: transformers turns the texts of a batch as the longest of them."""
    theirs, loaded = made("Phi3ForCausalLM", phi3_long(), tmp_path)
    ids, _ = padded(prompts(64, (length, length)), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})
    check_round_trip(loaded, tmp_path, "AutoModelForCausalLM", "phi3", theirs, input_ids=ids)


def test_the_first_names_of_longrope(tmp_path: Path) -> None:
    """`su` and `type`, with the base and the original length outside of the table."""
    _, loaded = made("Phi3ForCausalLM", phi3_long(), tmp_path)
    factors = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}
    old = {"rope_scaling": {"type": "su", **factors}, "rope_theta": 100.0}
    changed(tmp_path, old, without=("rope_parameters",))
    assert load(tmp_path).spec == loaded.spec


def test_a_list_of_the_wrong_length_is_named(tmp_path: Path) -> None:
    made("Phi3ForCausalLM", phi3_long(), tmp_path)
    rope = {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 2}
    check_refused(tmp_path, {"rope_scaling": rope}, "scaling.short has 3 divisors")


@given(st.floats(0.01, 1000.0))
def test_a_divisor_is_written_so_that_it_reads_as_it_was(number: float) -> None:
    entry = llama_relatives.Divisor("head.scale", "logits_scaling")
    factor = entry.decoded(Settings({"logits_scaling": number}))
    written = entry.encoded(factor)
    assert entry.decoded(Settings({"logits_scaling": written})) == factor


REFUSED: dict[str, tuple[str, Keys, str]] = {
    "heads of unequal gains": ("cohere", {"use_qk_norm": True}, "use_qk_norm = True"),
    "gains for each head": ("stablelm", {"qk_layernorm": True}, "qk_layernorm = True"),
    "experts that groups do not divide": (
        "deepseek_v3",
        {"n_routed_experts": 7, "n_group": 2, "topk_group": 2, "num_experts_per_tok": 1},
        "n_groups = 2 does not divide n_experts = 7",
    ),
    "clipped queries": ("olmo", {"clip_qkv": 8.0}, "clip_qkv = 8.0"),
    "one base for two types": (
        "olmo3",
        {"rope_theta": 10000.0, "rope_parameters": None, "rope_scaling": None},
        "rope_theta = 10000.0",
    ),
    "another norm around": ("apertus", {"post_norm": True}, "post_norm = True"),
    "another score": ("deepseek_v3", {"scoring_func": "tanh"}, "scoring_func = 'tanh'"),
    "windows that are off": ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window"),
    "clipped projections": ("mpt", {"attn_config": {"clip_qkv": 6.0}}, "clip_qkv = 6.0"),
    "another residual": (
        "bloom",
        {"apply_residual_connection_post_layernorm": True},
        "apply_residual_connection_post_layernorm = True",
    ),
    "a part of a head": ("gptj", {"rotary_dim": 4000}, "rotary_dim = 4000"),
    "cycles": ("gpt_neo", {"attention_types": [[["global"], 99]]}, "attention_types"),
    "layers": ("smollm3", {"no_rope_layers": [1] * 99}, "no_rope_layers"),
    "an unknown key": ("granite", {"something_new": 3}, "something_new = 3"),
}


@pytest.mark.parametrize(("name", "changes", "expected"), REFUSED.values(), ids=REFUSED)
def test_unsupported_settings_are_named(name: str, changes: Keys, expected: str) -> None:
    settings = Settings(random_settings(name, 0).tree | changes)
    with pytest.raises(InputError, match=expected):
        read_config(family_of(settings), settings)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_equal_to_transformers(name: str) -> None:
    result = check_settings(random_settings(name, 0))
    assert result.failed is None, result


@pytest.mark.long
@pytest.mark.parametrize("ending", CLASSIFIERS)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_decoder_that_classifies_is_equal_to_transformers(name: str, ending: str) -> None:
    result = check_settings(random_settings(name, 0, ending))
    assert result.failed is None, result


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*FAMILIES} - {*TRANSLATORS}))
def test_ragged_batches_are_written_alike_by_beam_search(name: str, tmp_path: Path) -> None:
    stem, draw = FAMILIES[name]
    config = getattr(transformers, f"{stem}Config")(**draw(random.Random(name)))
    theirs, loaded = made(f"{stem}ForCausalLM", config, tmp_path)
    theirs.set_experts_implementation("eager")  # the grouped one has no float64
    check_greedy_and_beam(theirs, loaded, config.vocab_size, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ending"), CLASSIFYING)
def test_thirty_configurations_of_a_decoder_that_classifies(name: str, ending: str) -> None:
    for seed in range(1, 31):
        result = check_settings(random_settings(name, seed, ending))
        assert result.failed is None, (seed, result)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_thirty_configurations_of_a_family_are_equal(name: str) -> None:
    for seed in range(1, 31):
        result = check_settings(random_settings(name, seed))
        assert result.failed is None, (seed, result)


PUBLISHED: dict[str, Keys] = {
    "phi-3.5-mini": {
        "architectures": ["Phi3ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
        "model_type": "phi3",
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0 + i for i in range(48)],
            "short_factor": [1.0 + i / 10 for i in range(48)],
        },
        "sliding_window": 262144,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 32000,
        "pad_token_id": 32000,
        "torch_dtype": "bfloat16",
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02,
        "sliding_window": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "falcon-40b": {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "vocab_size": 65024,
        "hidden_size": 8192,
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "num_kv_heads": 8,
        "alibi": False,
        "apply_residual_connection_post_layernorm": False,
        "bias": False,
        "layer_norm_epsilon": 1e-05,
        "multi_query": True,
        "new_decoder_architecture": True,
        "parallel_attn": True,
        "bos_token_id": 11,
        "eos_token_id": 11,
    },
}
"""Published configurations, as they stand in their folders."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_proven_with_reduced_sizes(name: str) -> None:
    result = check_settings(Settings(PUBLISHED[name]))
    assert result.failed is None, result


def test_sizes_that_depend_on_each_other_are_not_reduced() -> None:
    """The positions of NLLB, whose wavelengths depend on the width."""
    sizes = {"layers": 12, "ffn_dim": 99, "attention_heads": 4}
    large = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sizes.items()}
    tree = random_settings("m2m_100", 0).tree | large | {"d_model": 1020, "pad_token_id": 0}
    with pytest.raises(InputError, match=r"m2m_100 has the positions .* of smaller sizes"):
        check_settings(Settings(tree))
