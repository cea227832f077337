"""T5, T5 v1.1 (Flan) and mT5: bucketed relative positions, pre-RMSNorm, unscaled scores."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from addnorm.convert.core.activations import NAMES, activation_name
from addnorm.convert.core.family import Family, ModelSpec, attention_of, encoder_decoder, layers
from addnorm.convert.core.known import token_head_of
from addnorm.convert.core.maps import Renamed, TensorMap
from addnorm.convert.core.settings import Json, Settings
from addnorm.data.tokenizing.tokenizers import BOS_ID, EOS_ID, PAD_ID
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig, DotConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import Activation, FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import T5BiasConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.parts import kind_of

ACTIVATIONS: dict[str, Activation] = {
    **NAMES,
    **{f"gated-{name}": activation for name, activation in NAMES.items()},
    "gated-gelu": "gelu_tanh",  # in T5 v1.1 this means the tanh approximation
}


def _read(settings: Settings) -> ModelSpec:
    d_model, n_heads = (
        settings.required_int("d_model", "hidden_size"),
        settings.required_int("num_heads"),
    )
    dropout = settings.get("dropout_rate", 0.1)
    settings.get("classifier_dropout", 0.0)
    model = EncoderDecoderConfig(
        d_model=d_model,
        n_layers=settings.required_int("num_layers"),
        n_decoder_layers=settings.optional_int("num_decoder_layers"),
        max_len=settings.optional_int("n_positions") or 1024,
        position=T5BiasConfig(
            buckets=settings.get("relative_attention_num_buckets", 32),
            max_distance=settings.get("relative_attention_max_distance", 128),
        ),
        attention=AttentionConfig(
            n_heads=n_heads,
            d_head=settings.optional_int("d_kv") or 64,
            bias=False,
            dropout=dropout,
            score=DotConfig(),
        ),
        feedforward=_feedforward(settings, dropout),
        norm=RMSNormConfig(eps=settings.get("layer_norm_epsilon", 1e-6)),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
        head=TokenHeadConfig(scale="sqrt" if _scales(settings) else "one"),
        dropout=dropout,
    )
    return ModelSpec(model=model, vocab_size=settings.required_int("vocab_size"))


def _scales(settings: Settings) -> bool:
    """Whether hidden states are scaled for the head: only if it was tied in training."""
    tied = settings.get("tie_word_embeddings", True)
    return settings.get("scale_decoder_outputs", tied) and settings.get("model_type", "t5") == "t5"


def _feedforward(settings: Settings, dropout: float) -> FeedForwardConfig | GatedFeedForwardConfig:
    activation = settings.choose("feed_forward_proj", ACTIVATIONS, "relu")
    name = settings.get("feed_forward_proj", "relu")
    gated = name.startswith("gated-")
    settings.expect("is_gated_act", gated)
    if settings.has("dense_act_fn") and settings.choose("dense_act_fn", NAMES, "") != activation:
        raise settings.refuse("dense_act_fn", f"feed_forward_proj = {name!r}")
    d_ff = settings.required_int("d_ff")
    if gated:
        return GatedFeedForwardConfig(d_ff=d_ff, activation=activation, dropout=dropout)
    return FeedForwardConfig(d_ff=d_ff, activation=activation, bias=False, dropout=dropout)


def _tied(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """Mark the head as tied if its weights are not in the file, or if it is scaled."""
    model = encoder_decoder(spec)
    tied = "lm_head.weight" not in names or token_head_of(model).scale == "sqrt"
    return replace(spec, model=replace(model, head=replace(token_head_of(model), tied=tied)))


def _write(spec: ModelSpec) -> Json:
    model = encoder_decoder(spec)
    attention, feedforward, position = attention_of(model), model.feedforward, model.position
    if not isinstance(position, T5BiasConfig):
        raise InputError(f"t5 has no {kind_of(position)} positions")
    if not isinstance(feedforward, FeedForwardConfig | GatedFeedForwardConfig):
        raise InputError(f"t5 has no {kind_of(feedforward)} feed-forward")
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": spec.vocab_size,
        "d_model": model.d_model,
        "d_kv": attention.heads(model.d_model).d_head,
        "num_heads": attention.n_heads,
        "num_layers": model.n_layers,
        "num_decoder_layers": model.n_decoder_layers or model.n_layers,
        "n_positions": model.max_len,
        "relative_attention_num_buckets": position.buckets,
        "relative_attention_max_distance": position.max_distance,
        "layer_norm_epsilon": getattr(model.norm, "eps", 1e-6),
        "dropout_rate": model.dropout,
        "tie_word_embeddings": token_head_of(model).tied,
        "scale_decoder_outputs": token_head_of(model).scale == "sqrt",
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "decoder_start_token_id": BOS_ID,
    } | _dense(feedforward, model.d_model)


def _dense(feedforward: FeedForwardConfig | GatedFeedForwardConfig, d_model: int) -> Json:
    name = activation_name(feedforward.activation)
    if isinstance(feedforward, FeedForwardConfig):
        return {"d_ff": feedforward.d_ff or 4 * d_model, "feed_forward_proj": name}
    name = {"gelu": "gelu_python", "gelu_pytorch_tanh": "gelu"}.get(name, name)
    return {"d_ff": feedforward.d_ff or 8 * d_model // 3, "feed_forward_proj": f"gated-{name}"}


def _write_multilingual(spec: ModelSpec) -> Json:
    return _write(spec) | {
        "model_type": "mt5",
        "architectures": ["MT5ForConditionalGeneration"],
    }


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = encoder_decoder(spec)
    gated = isinstance(model.feedforward, GatedFeedForwardConfig)
    yield Renamed("source_embed.tokens.weight", "shared.weight")
    for embed, side in (("source_embed", "encoder"), ("target_embed", "decoder")):
        first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield Renamed(f"{embed}.position.table.weight", first)
        yield Renamed(f"{side}.norm.weight", f"{side}.final_layer_norm.weight")
    yield from layers(model.n_layers, lambda i: _layer(i, "encoder", gated))
    n_decoder_layers = model.n_decoder_layers or model.n_layers
    yield from layers(n_decoder_layers, lambda i: _layer(i, "decoder", gated))
    if not token_head_of(model).tied:
        yield Renamed("head.weight", "lm_head.weight")


def _layer(i: int, side: str, gated: bool) -> Iterator[TensorMap]:
    ours, theirs = f"{side}.blocks.{i}", f"{side}.block.{i}.layer"
    sublayers = [("attention", "SelfAttention")]
    sublayers += [("cross_attention", "EncDecAttention")] if side == "decoder" else []
    for j, (sublayer, name) in enumerate(sublayers):
        for part, short in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "o")):
            yield Renamed(f"{ours}.{sublayer}.{part}.weight", f"{theirs}.{j}.{name}.{short}.weight")
        yield Renamed(f"{ours}.{sublayer}_residual.norm.weight", f"{theirs}.{j}.layer_norm.weight")
    last = f"{theirs}.{len(sublayers)}"
    dense = {"up_proj": "wi", "down_proj": "wo"}
    dense = {"gate_proj": "wi_0", "up_proj": "wi_1", "down_proj": "wo"} if gated else dense
    for part, short in dense.items():
        name = f"{last}.DenseReluDense.{short}.weight"
        yield Renamed(f"{ours}.feedforward.{part}.weight", name)
    yield Renamed(f"{ours}.feedforward_residual.norm.weight", f"{last}.layer_norm.weight")


T5 = Family(
    model_types=("t5",),
    read=_read,
    write=_write,
    maps=_maps,
    refine_by_names=_tied,
    ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    ties=(
        ("encoder.embed_tokens.weight", "shared.weight"),
        ("decoder.embed_tokens.weight", "shared.weight"),
        ("lm_head.weight", "shared.weight"),
    ),
)
"""Raffel et al. 2020; Shazeer 2020 for v1.1."""

MT5 = replace(T5, model_types=("mt5",), write=_write_multilingual)
"""Xue et al. 2021: like v1.1, without scaling before the head."""
