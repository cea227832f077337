"""GPT-Neo: GPT-2 with unscaled scores and windows in every second layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    FULL,
    SLIDING,
    read_windows,
    write_windows,
)
from addnorm.convert.core.family import Family, ModelSpec
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.convert.families.gpt2 import NAMES as GPT2_NAMES
from addnorm.convert.families.gpt2 import TABLE
from addnorm.nn.attention import AttentionConfig, DotConfig

TYPES: Mapping[str, str] = {"global": FULL, "local": SLIDING}
THEIRS = {ours: theirs for theirs, ours in TYPES.items()}


def _read_layers(settings: Settings) -> keys.Fields:
    """The layer pattern from `attention_types`, a list of cycles and their repetitions."""
    n_layers = settings.required_int("num_layers", "num_hidden_layers")
    given: list[Any] = settings.tree.get("attention_types") or [[["global", "local"], 12]]
    settings.ignore("attention_types", "attention_layers")
    try:
        types = [TYPES[name] for cycle, n in given for name in cycle * n]
    except (KeyError, TypeError, ValueError) as error:
        raise settings.refuse("attention_types", "such as [[['global', 'local'], 12]]") from error
    if len(types) != n_layers:
        raise settings.refuse("attention_types", f"the model has {n_layers} layers")
    return read_windows(settings, types, settings.get("window_size", 256))


def _write_layers(spec: ModelSpec) -> Json:
    types, size = write_windows(spec.model)
    theirs = [THEIRS[kind] for kind in types]
    return {
        "attention_types": [[theirs, 1]],
        "attention_layers": theirs,
        "window_size": size or 256,
    }


GPT_NEO = Family(
    model_type="gpt_neo",
    config=keys.ConfigTable(
        replace(
            TABLE.base,
            attention=AttentionConfig(n_heads=1, bias=False, out_bias=True, score=DotConfig()),
        ),
        (
            keys.VOCABULARY,
            keys.Size("max_len", "max_position_embeddings"),
            keys.Size("d_model", "hidden_size"),
            keys.Size("n_layers", "num_layers num_hidden_layers"),
            keys.Size("attention.n_heads", "num_heads num_attention_heads"),
            keys.Size(
                "feedforward.d_ff", "intermediate_size", lambda s: 4 * s.required_int("hidden_size")
            ),
            keys.Choice(
                "feedforward.activation", "activation_function", keys.ACTIVATIONS, "gelu_new"
            ),
            keys.Value("norm.eps", "layer_norm_epsilon", 1e-5),
            keys.Value("attention.dropout", "attention_dropout", 0.0),
            keys.Value("dropout", "resid_dropout", 0.0),
            keys.Repeated("dropout", "embed_dropout"),
            keys.Computed(_read_layers, _write_layers),
            keys.Ignored("classifier_dropout summary_type summary_use_proj summary_activation"),
            keys.Ignored("summary_first_dropout summary_proj_to_labels"),
            DecoderHead("GPTNeo", tied=True),
        ),
    ),
    names={
        **GPT2_NAMES,
        **{
            f"stack.blocks.*.attention.{part}_proj": f"transformer.h.*.attn.attention.{part}_proj"
            for part in ("q", "k", "v", "out")
        },
    },
    prefix="transformer.",
    ignored=(r".*\.attn\.attention\.(bias|masked_bias)",),
    ties=(("lm_head.weight", "transformer.wte.weight"),),
)
"""Black et al. 2021."""
