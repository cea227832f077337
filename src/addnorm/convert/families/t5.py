"""T5, T5 v1.1 (Flan) and mT5: bucketed relative positions, pre-RMSNorm, unscaled scores."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, encoder_decoder, token_head_of
from addnorm.convert.core.maps import Renamed, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families.fairseq import TOKEN_IDS
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig, DotConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import Activation, FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import NoPositionConfig, T5BiasConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.parts import kind_of

PLAIN, GATED = FeedForwardConfig(bias=False), GatedFeedForwardConfig(bias=False)

GATED_ACTIVATIONS: dict[str, Activation] = {
    **{f"gated-{name}": activation for name, activation in keys.ACTIVATIONS.items()},
    "gated-gelu": "gelu_tanh",  # in T5 v1.1 this means the tanh approximation
}


def _read_feedforward(settings: Settings) -> keys.Fields:
    activations = keys.ACTIVATIONS | GATED_ACTIVATIONS
    activation = settings.choose("feed_forward_proj", activations, "relu")
    name = settings.get("feed_forward_proj", "relu")
    gated = name.startswith("gated-")
    settings.expect("is_gated_act", gated)
    inner = settings.has("dense_act_fn") and settings.choose("dense_act_fn", keys.ACTIVATIONS, "")
    if inner and inner != activation:
        raise settings.refuse("dense_act_fn", f"feed_forward_proj = {name!r}")
    return {"feedforward": replace(GATED if gated else PLAIN, activation=activation)}


def _write_feedforward(spec: ModelSpec) -> Json:
    match spec.model.feedforward:
        case FeedForwardConfig(activation=activation):
            return {"feed_forward_proj": keys.their_name(activation, keys.ACTIVATIONS)}
        case GatedFeedForwardConfig(activation=activation):
            return {"feed_forward_proj": keys.their_name(activation, GATED_ACTIVATIONS)}
        case _:
            return {}


def _read_scale(settings: Settings) -> keys.Fields:
    """The scale of hidden states before the head, used only if the head was tied in training."""
    tied = settings.get("tie_word_embeddings", True)
    return {"head.scale": "sqrt" if settings.get("scale_decoder_outputs", tied) else "one"}


def _write_scale(spec: ModelSpec) -> Json:
    head = token_head_of(spec.model)
    return {"tie_word_embeddings": head.tied, "scale_decoder_outputs": head.scale == "sqrt"}


def _read_no_scale(settings: Settings) -> keys.Fields:
    _read_scale(settings)
    return {}


MODEL = EncoderDecoderConfig(
    position=T5BiasConfig(),
    attention=AttentionConfig(n_heads=1, bias=False, score=DotConfig()),
    feedforward=PLAIN,
    norm=RMSNormConfig(),
    residual=PreNormConfig(),
    embedding=EmbeddingConfig(scale="one"),
)

POSITIONS: tuple[keys.Entry, ...] = (
    keys.Value("position.buckets", "relative_attention_num_buckets", 32),
    keys.Value("position.max_distance", "relative_attention_max_distance", 128),
)


def _table(
    stem: str,
    scale: keys.Entry,
    positions: tuple[keys.Entry, ...] = POSITIONS,
    base: EncoderDecoderConfig = MODEL,
) -> keys.ConfigTable:
    return keys.ConfigTable(
        base,
        (
            keys.VOCABULARY,
            keys.Size("d_model", "d_model hidden_size"),
            keys.Size("n_layers", "num_layers"),
            keys.Size("n_decoder_layers", "num_decoder_layers", None),
            keys.Size("max_len", "n_positions", 1024),
            *positions,
            keys.Size("attention.n_heads", "num_heads"),
            keys.Size("attention.d_head", "d_kv", 64),
            keys.Computed(_read_feedforward, _write_feedforward),
            keys.Size("feedforward.d_ff", "d_ff"),
            keys.Value("norm.eps", "layer_norm_epsilon", 1e-6),
            keys.Value("dropout attention.dropout feedforward.dropout", "dropout_rate", 0.1),
            scale,
            keys.Ignored("classifier_dropout scalable_attention"),
        ),
        {
            "architectures": [f"{stem}ForConditionalGeneration"],
            "is_encoder_decoder": True,
            **TOKEN_IDS,
        },
    )


def _tied(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """Mark the head as tied if the file lacks its weights, or if its input is scaled."""
    model = encoder_decoder(spec)
    tied = "lm_head.weight" not in names or token_head_of(model).scale == "sqrt"
    return replace(spec, model=replace(model, head=replace(token_head_of(model), tied=tied)))


ATTENTION = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}


def _stack_names(side: str, attentions: Mapping[str, str]) -> dict[str, str]:
    """The names in a stack, whose sublayers are numbered: attentions first, then feed-forward."""
    layer: dict[str, str] = {}
    for i, (ours, theirs) in enumerate(attentions.items()):
        layer |= within(ours, f"{i}.{theirs}", ATTENTION)
        layer[f"{ours}_residual.norm"] = f"{i}.layer_norm"
    last = len(attentions)
    layer["feedforward.down_proj"] = f"{last}.DenseReluDense.wo"
    layer["feedforward_residual.norm"] = f"{last}.layer_norm"
    first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
    return {
        f"{'source' if side == 'encoder' else 'target'}_embed.position.table": first,
        f"{side}.norm": f"{side}.final_layer_norm",
        **within(f"{side}.blocks.*", f"{side}.block.*.layer", layer),
    }


def _first_matrices(spec: ModelSpec) -> Iterator[TensorMap]:
    """The names of the matrices before the activation, by which a gate is recognised."""
    model = encoder_decoder(spec)
    plain = isinstance(model.feedforward, FeedForwardConfig)
    names = {"up_proj": "wi"} if plain else {"gate_proj": "wi_0", "up_proj": "wi_1"}
    for (side, layers), last in zip(model.stacks.items(), (1, 2), strict=True):
        for i in range(len(layers)):
            theirs = f"{side}.block.{i}.layer.{last}.DenseReluDense"
            for part, name in names.items():
                ours = f"{side}.blocks.{i}.feedforward.{part}"
                yield Renamed(f"{ours}.weight", f"{theirs}.{name}.weight")


T5 = Family(
    model_type="t5",
    config=_table("T5", keys.Computed(_read_scale, _write_scale)),
    names={
        "source_embed.tokens": "shared",
        "head": "lm_head",
        **_stack_names("encoder", {"attention": "SelfAttention"}),
        **_stack_names(
            "decoder", {"attention": "SelfAttention", "cross_attention": "EncDecAttention"}
        ),
    },
    others=_first_matrices,
    refine_by_names=_tied,
    ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    ties=(
        ("encoder.embed_tokens.weight", "shared.weight"),
        ("decoder.embed_tokens.weight", "shared.weight"),
        ("lm_head.weight", "shared.weight"),
    ),
)
"""Raffel et al. 2020; Shazeer 2020 for v1.1."""

MT5 = replace(
    T5, model_type="mt5", config=_table("MT5", keys.Computed(_read_no_scale, _write_scale))
)
"""Xue et al. 2021: like v1.1, without scaling before the head."""


def _read_layers(settings: Settings) -> keys.Fields:
    position = T5BiasConfig(
        buckets=settings.get("relative_attention_num_buckets", 32),
        max_distance=settings.get("relative_attention_max_distance", 128),
    )
    return {"layer_pattern": (LayerConfig(position=position),)}


def _write_layers(spec: ModelSpec) -> Json:
    position = spec.model.layer(0).position
    if not isinstance(position, T5BiasConfig):
        raise InputError(f"this family has T5's biases in every layer, not {kind_of(position)}")
    return {
        "relative_attention_num_buckets": position.buckets,
        "relative_attention_max_distance": position.max_distance,
    }


BIAS = "SelfAttention.relative_attention_bias"
UMT5 = replace(
    T5,
    model_type="umt5",
    config=_table(
        "UMT5",
        keys.Computed(_read_scale, _write_scale),
        (keys.Computed(_read_layers, _write_layers),),
        replace(
            MODEL,
            position=NoPositionConfig(),
            layer_pattern=(LayerConfig(position=T5BiasConfig()),),
        ),
    ),
    names={
        **T5.names,
        **{
            f"{side}.blocks.*.attention.position.table": f"{side}.block.*.layer.0.{BIAS}"
            for side in ("encoder", "decoder")
        },
    },
)
"""Chung et al. 2023 (2304.09151): a table of biases in each layer."""
