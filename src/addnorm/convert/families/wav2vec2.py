"""wav2vec 2.0 and HuBERT: convolutions over a waveform, and a text by CTC."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, encoder
from addnorm.convert.core.maps import Renamed, Reshaped, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import EncoderHeads, Task
from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.ctc import CTCHeadConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import ClassificationHeadConfig, HeadConfig, HiddenHeadConfig, TransformConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.residuals import PostNormConfig, PreNormConfig
from addnorm.nn.waveform import WaveformEmbeddingConfig

HEADS: dict[Task, HeadConfig] = {
    "body": HiddenHeadConfig(),
    "frames": CTCHeadConfig(),
    "sequence": ClassificationHeadConfig(
        pooling="mean", pooled="transformed", transform=TransformConfig(activation="identity")
    ),
}
ENDINGS: dict[str, Task] = {
    "Model": "body",
    "ForCTC": "frames",
    "ForSequenceClassification": "sequence",
    "ForPreTraining": "body",
}

USUAL = WaveformEmbeddingConfig()


def _integers(settings: Settings, key: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    value: object = settings.tree.get(key)
    n = len(value) if isinstance(value, list) else len(usual)  # pyright: ignore[reportUnknownArgumentType]
    values = tuple(settings.integers(key, n) or usual)
    if min(values) < 1:
        raise settings.refuse(key, "every number must be at least 1")
    return values


def _read_waveform(settings: Settings) -> keys.Fields:
    stable = settings.get("do_stable_layer_norm", False)
    norms = {"group": "first", "layer": "every"}
    settings.ignore("num_feat_extract_layers")
    return {
        "input.channels": _integers(settings, "conv_dim", USUAL.channels),
        "input.kernels": _integers(settings, "conv_kernel", USUAL.kernels),
        "input.strides": _integers(settings, "conv_stride", USUAL.strides),
        "input.layer_norms": settings.choose("feat_extract_norm", norms, "group"),
        "input.norm": not stable,
        "residual": PreNormConfig() if stable else PostNormConfig(),
    }


def _write_waveform(spec: ModelSpec) -> Json:
    model = encoder(spec)
    sound = _waveform(model)
    return {
        "conv_dim": list(sound.channels),
        "conv_kernel": list(sound.kernels),
        "conv_stride": list(sound.strides),
        "num_feat_extract_layers": len(sound.channels),
        "feat_extract_norm": "group" if sound.layer_norms == "first" else "layer",
        "do_stable_layer_norm": isinstance(model.residual, PreNormConfig),
    }


def _waveform(model: EncoderConfig) -> WaveformEmbeddingConfig:
    if not isinstance(model.input, WaveformEmbeddingConfig):
        raise InputError(f"this family reads samples of sound, not {model.input.kind}")
    return model.input


def _table(stem: str, *entries: keys.Entry) -> keys.ConfigTable:
    return keys.ConfigTable(
        EncoderConfig(
            position=NoPositionConfig(),
            attention=AttentionConfig(n_heads=1),
            feedforward=FeedForwardConfig(),
            norm=LayerNormConfig(),
            residual=PostNormConfig(),
            input=USUAL,
            head=HiddenHeadConfig(),
            init="bert",
        ),
        (
            EncoderHeads(stem, HEADS, ENDINGS),
            keys.Computed(_read_waveform, _write_waveform),
            keys.Size("vocab_size", "vocab_size", 32),
            *keys.SIZES,
            keys.Value("input.bias", "conv_bias", False),
            keys.Choice("input.activation", "feat_extract_activation", keys.ACTIVATIONS, "gelu"),
            keys.Size("input.position_kernel", "num_conv_pos_embeddings", 128),
            keys.Size("input.position_groups", "num_conv_pos_embedding_groups", 16),
            keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, "gelu"),
            keys.Value("norm.eps input.eps", "layer_norm_eps", 1e-5),
            keys.Value("head.blank", "pad_token_id", 0),
            keys.Size("head.transform.d_out", "classifier_proj_size", 256),
            keys.Value("dropout", "hidden_dropout", 0.1),
            keys.Value("attention.dropout", "attention_dropout", 0.1),
            keys.Value("feedforward.dropout", "activation_dropout", 0.1),
            keys.Value("layer_drop", "layerdrop", 0.1),
            keys.Fixed("use_weighted_layer_sum", False),
            # Of training alone.
            keys.Ignored(
                "hidden_dropout_prob feat_extract_dropout feat_proj_dropout final_dropout "
                "apply_spec_augment mask_time_length mask_time_min_masks "
                "mask_feature_length mask_feature_min_masks mask_time_min_space mask_time_other "
                "mask_time_selection mask_channel_length mask_channel_min_space "
                "mask_channel_other mask_channel_prob mask_channel_selection "
                "ctc_loss_reduction ctc_zero_infinity"
            ),
            keys.Computed(_read_masks, lambda spec: dict.fromkeys(MASKS, 0.0)),
            *entries,
        ),
    )


MASKS = ("mask_time_prob", "mask_feature_prob")


def _read_masks(settings: Settings) -> keys.Fields:
    """Ignore the keys that only affect training, by which it hides frames."""
    settings.ignore(*MASKS)
    return {}


def _positions(prefix: str, spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of the positional convolution, whose weight is stored as magnitude and direction."""
    kernel = _waveform(encoder(spec)).position_kernel
    ours, theirs = "embed.convolution", f"{prefix}encoder.pos_conv_embed.conv"
    parts = f"{theirs}.parametrizations.weight.original"
    yield Reshaped(f"{ours}.magnitude", f"{parts}0", (kernel,), (1, 1, kernel))
    yield Renamed(f"{ours}.direction", f"{parts}1")
    yield Renamed(f"{ours}.bias", f"{theirs}.bias")


def _family(model_type: str, config: keys.ConfigTable) -> Family:
    prefix = f"{model_type}."
    return Family(
        model_type=model_type,
        config=config,
        names={
            **within(
                "embed.layers.*",
                f"{prefix}feature_extractor.conv_layers.*",
                {"conv": "conv", "norm": "layer_norm"},
            ),
            "embed.projection_norm": f"{prefix}feature_projection.layer_norm",
            "embed.projection": f"{prefix}feature_projection.projection",
            "embed.norm": f"{prefix}encoder.layer_norm",
            "stack.norm": f"{prefix}encoder.layer_norm",
            **within(
                "stack.blocks.*",
                f"{prefix}encoder.layers.*",
                {
                    "attention.q_proj": "attention.q_proj",
                    "attention.k_proj": "attention.k_proj",
                    "attention.v_proj": "attention.v_proj",
                    "attention.out_proj": "attention.out_proj",
                    "attention_residual.norm": "layer_norm",
                    "feedforward.up_proj": "feed_forward.intermediate_dense",
                    "feedforward.down_proj": "feed_forward.output_dense",
                    "feedforward_residual.norm": "final_layer_norm",
                },
            ),
        },
        heads={
            CTCHeadConfig: {"proj": "lm_head"},
            ClassificationHeadConfig: {"transform.proj": "projector", "proj": "classifier"},
        },
        others=lambda spec: _positions(prefix, spec),
        prefix=prefix,
        renames=(
            (r"\.conv\.weight_g$", ".conv.parametrizations.weight.original0"),
            (r"\.conv\.weight_v$", ".conv.parametrizations.weight.original1"),
        ),
        ignored=(rf"({model_type}\.)?masked_spec_embed",),
        left_aside=("quantizer", "project_hid", "project_q"),
    )


WAV2VEC2 = _family(
    "wav2vec2",
    _table(
        "Wav2Vec2",
        keys.Fixed("add_adapter", False),
        keys.Fixed("adapter_attn_dim", None),
        # Of pre-training, of other heads, and of adapters, which are refused.
        keys.Ignored(
            "feat_quantizer_dropout num_codevectors_per_group num_codevector_groups "
            "contrastive_logits_temperature num_negatives codevector_dim proj_codevector_dim "
            "diversity_loss_weight tdnn_dim tdnn_kernel tdnn_dilation xvector_output_dim "
            "adapter_kernel_size adapter_stride num_adapter_layers output_hidden_size"
        ),
    ),
)
"""Baevski et al. 2020. The vector that hides frames in training is left out, and so are the
quantiser and the projections of pre-training."""

HUBERT = _family(
    "hubert",
    _table(
        "Hubert",
        keys.Value("input.projection_norm", "feat_proj_layer_norm", True),
        keys.Fixed("conv_pos_batch_norm", False),
    ),
)
"""Hsu et al. 2021 (arXiv 2106.07447)."""
