"""DINOv2 and DINOv3: ViT with layer scale, registers and vectors of pictures."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, attention_of, encoder, feedforward_of
from addnorm.convert.core.maps import (
    Concatenated,
    Renamed,
    TensorMap,
    UnusedTensor,
    ZeroTensor,
    within,
)
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import EncoderHeads
from addnorm.convert.families.vit import (
    ENDINGS,
    PICTURES,
    RENAMES,
    body_names,
    learned_tokens,
    patches_of,
    read_patches,
    write_patches,
)
from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import ClassificationHeadConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.pooling import JoinedPoolingConfig
from addnorm.nn.positions import AxialRotaryConfig
from addnorm.nn.residuals import LayerScaleConfig
from addnorm.nn.vectors import VectorHeadConfig

CLASS_TOKEN = VectorHeadConfig(pooling="first")

BACKBONE = keys.Ignored(
    "out_features out_indices stage_names apply_layernorm reshape_hidden_states return_class_token"
)
"""Keys of the maps of features that detectors read."""

MOST_TIMES = 64
"""The widest feed-forward layer, in multiples of d_model, that is looked for."""


def _base(patches: PatchEmbeddingConfig) -> EncoderConfig:
    return replace(PICTURES, residual=LayerScaleConfig(), input=patches, head=CLASS_TOKEN)


def _gated_width(width: int) -> int:
    """Two thirds of a plain layer's width, rounded up to a multiple of 8."""
    return (int(width * 2 / 3) + 7) // 8 * 8


def _read_feedforward(settings: Settings) -> keys.Fields:
    width = settings.required_int("hidden_size") * settings.get("mlp_ratio", 4)
    activation = settings.choose("hidden_act", keys.ACTIVATIONS, "gelu")
    if settings.get("use_swiglu_ffn", False):
        return {"feedforward": GatedFeedForwardConfig(d_ff=_gated_width(width), bias=True)}
    return {"feedforward": FeedForwardConfig(d_ff=width, activation=activation)}


def _write_feedforward(spec: ModelSpec) -> Json:
    d_model = spec.model.d_model
    part = feedforward_of(spec.model, FeedForwardConfig, GatedFeedForwardConfig)
    gated = isinstance(part, GatedFeedForwardConfig)
    width = _gated_width if gated else int
    times = [n for n in range(1, MOST_TIMES + 1) if width(n * d_model) == part.d_ff]
    if not times:
        raise InputError(
            f"this family has feed-forward layers of a multiple of d_model = {d_model}"
            f"{' by two thirds, rounded up to eights' if gated else ''}, not d_ff = {part.d_ff}"
        )
    activation = {} if gated else {"hidden_act": keys.their_name(part.activation, keys.ACTIVATIONS)}
    return {"mlp_ratio": times[0], "use_swiglu_ffn": gated, **activation}


def _read_square(settings: Settings) -> keys.Fields:
    fields = read_patches(settings)
    rows, columns = fields["input.size"]
    if rows != columns:
        raise settings.refuse("image_size", "learned positions must be of a square")
    return fields


def _registers(default: int) -> keys.Entry:
    """The key for the number of registers, which the mean of the patches skips."""

    def read(settings: Settings) -> keys.Fields:
        n = settings.get("num_register_tokens", default)
        return {"input.registers": n, "head.pooling.skipped": n}

    def write(spec: ModelSpec) -> Json:
        return {"num_register_tokens": patches_of(encoder(spec)).registers}

    return keys.Computed(read, write)


def _dinov2(stem: str, patches: PatchEmbeddingConfig, *entries: keys.Entry) -> keys.ConfigTable:
    classifier = ClassificationHeadConfig(pooling=JoinedPoolingConfig())
    return keys.ConfigTable(
        _base(patches),
        (
            EncoderHeads(stem, {"body": CLASS_TOKEN, "sequence": classifier}, ENDINGS),
            keys.Computed(_read_square, write_patches),
            keys.Size("input.channels", "num_channels", 3),
            *keys.SIZES[:3],
            keys.Computed(_read_feedforward, _write_feedforward),
            keys.Value("attention.bias", "qkv_bias", True),
            keys.Value("attention.dropout", "attention_probs_dropout_prob", 0.0),
            keys.Value("norm.eps", "layer_norm_eps", 1e-6),
            keys.Value("dropout", "hidden_dropout_prob", 0.0),
            keys.Value("residual.start", "layerscale_value", 1.0),
            keys.Ignored("drop_path_rate"),
            BACKBONE,
            *entries,
        ),
    )


def _dinov2_tensors(prefix: str, spec: ModelSpec) -> Iterator[TensorMap]:
    yield from learned_tokens(prefix, spec)
    for i in range(spec.model.n_layers):
        ours, theirs = f"stack.blocks.{i}", f"{prefix}encoder.layer.{i}"
        yield from _layer_scales(ours, theirs)
        if isinstance(part := spec.model.feedforward, GatedFeedForwardConfig):
            assert part.d_ff is not None
            for kind in ("weight", "bias"):
                names = tuple(f"{ours}.feedforward.{n}_proj.{kind}" for n in ("gate", "up"))
                yield Concatenated(names, f"{theirs}.mlp.weights_in.{kind}", (part.d_ff,) * 2)
                last = f"{ours}.feedforward.down_proj.{kind}"
                yield Renamed(last, f"{theirs}.mlp.weights_out.{kind}")


def _tensors_with_registers(spec: ModelSpec) -> Iterator[TensorMap]:
    """DINOv2's maps, and two tensors that every such file has even if unused."""
    prefix, d_model = "dinov2_with_registers.embeddings.", spec.model.d_model
    yield from _dinov2_tensors("dinov2_with_registers.", spec)
    yield UnusedTensor(f"{prefix}mask_token", (1, d_model))
    if not patches_of(encoder(spec)).registers:
        yield UnusedTensor(f"{prefix}register_tokens", (1, 0, d_model))


def _layer_scales(ours: str, theirs: str) -> Iterator[TensorMap]:
    for n, part in enumerate(("attention", "feedforward"), 1):
        scale = f"{ours}.{part}_residual.layer_scale"
        yield Renamed(scale, f"{theirs}.layer_scale{n}.lambda1")


def _family(model_type: str, config: keys.ConfigTable, prefix: str) -> Family:
    return Family(
        model_type=model_type,
        config=config,
        names=body_names(
            prefix,
            {
                "attention_residual.norm": "norm1",
                "feedforward.up_proj": "mlp.fc1",
                "feedforward.down_proj": "mlp.fc2",
                "feedforward_residual.norm": "norm2",
            },
        ),
        heads={ClassificationHeadConfig: {"proj": "classifier"}},
        others=partial(_dinov2_tensors, prefix),
        prefix=prefix,
        renames=RENAMES,
        ignored=(r"(.*\.)?embeddings\.mask_token",),
        left_aside=("classifier",),
    )


DINOV2 = _family(
    "dinov2",
    _dinov2("Dinov2", PatchEmbeddingConfig(), keys.Fixed("use_mask_token", False, (True,), True)),
    "dinov2.",
)
"""Oquab et al. 2024 (arXiv 2304.07193). The token that hides patches in training is left out."""

DINOV2_WITH_REGISTERS = replace(
    _family(
        "dinov2_with_registers",
        _dinov2(
            "Dinov2WithRegisters",
            PatchEmbeddingConfig(registers=4, interpolation="antialiased"),
            _registers(4),
        ),
        "dinov2_with_registers.",
    ),
    others=_tensors_with_registers,
)
"""Darcet et al. 2024 (arXiv 2309.16588)."""


def _read_gate(settings: Settings) -> keys.Fields:
    width = settings.optional_int("intermediate_size") or 1536
    activation = settings.choose("hidden_act", keys.ACTIVATIONS, "gelu")
    gated = settings.get("use_gated_mlp", False)
    kind = GatedFeedForwardConfig if gated else FeedForwardConfig
    bias = settings.get("mlp_bias", True)
    return {"feedforward": kind(d_ff=width, activation=activation, bias=bias)}


def _write_gate(spec: ModelSpec) -> Json:
    part = feedforward_of(spec.model, FeedForwardConfig, GatedFeedForwardConfig)
    return {
        "intermediate_size": part.d_ff,
        "hidden_act": keys.their_name(part.activation, keys.ACTIVATIONS),
        "use_gated_mlp": isinstance(part, GatedFeedForwardConfig),
        "mlp_bias": part.bias,
    }


def _read_bias(settings: Settings) -> keys.Fields:
    """The biases: for queries and values together, but never for keys."""
    settings.expect("key_bias", False)
    bias = settings.get("query_bias", True)
    if settings.get("value_bias", True) != bias:
        raise settings.refuse("value_bias", f"queries have query_bias = {bias}")
    return {"attention.bias": bias, "attention.out_bias": settings.get("proj_bias", True)}


def _write_bias(spec: ModelSpec) -> Json:
    attention = attention_of(spec.model)
    return {
        "query_bias": attention.bias,
        "key_bias": False,
        "value_bias": attention.bias,
        "proj_bias": attention.out_bias,
    }


def _dinov3_tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    d_model, patches = spec.model.d_model, patches_of(encoder(spec))
    yield from learned_tokens("", spec)
    yield UnusedTensor("embeddings.mask_token", (1, 1, d_model))
    if not patches.registers:
        yield UnusedTensor("embeddings.register_tokens", (1, 0, d_model))
    for i in range(spec.model.n_layers):
        yield from _layer_scales(f"stack.blocks.{i}", f"layer.{i}")
        yield ZeroTensor(f"stack.blocks.{i}.attention.k_proj.bias", (d_model,))


DINOV3 = Family(
    model_type="dinov3_vit",
    config=keys.ConfigTable(
        replace(_base(PatchEmbeddingConfig(positions="none")), position=AxialRotaryConfig()),
        (
            EncoderHeads("DINOv3ViT", {"body": CLASS_TOKEN}, ENDINGS),
            keys.Computed(read_patches, write_patches),
            keys.Size("input.channels", "num_channels", 3),
            *keys.SIZES[:3],
            keys.Computed(_read_gate, _write_gate),
            keys.Computed(_read_bias, _write_bias),
            _registers(0),
            keys.Value("attention.dropout", "attention_dropout", 0.0),
            keys.Value("norm.eps", "layer_norm_eps", 1e-5),
            keys.Value("position.theta", "rope_theta", 100.0),
            keys.Value("residual.start", "layerscale_value", 1.0),
            # Of training alone.
            keys.Ignored("drop_path_rate pos_embed_shift pos_embed_jitter pos_embed_rescale"),
            BACKBONE,
        ),
    ),
    names={
        "embed.proj": "embeddings.patch_embeddings",
        "stack.norm": "norm",
        **within(
            "stack.blocks.*",
            "layer.*",
            {
                "attention.q_proj": "attention.q_proj",
                "attention.k_proj": "attention.k_proj",
                "attention.v_proj": "attention.v_proj",
                "attention.out_proj": "attention.o_proj",
                "attention_residual.norm": "norm1",
                "feedforward.gate_proj": "mlp.gate_proj",
                "feedforward.up_proj": "mlp.up_proj",
                "feedforward.down_proj": "mlp.down_proj",
                "feedforward_residual.norm": "norm2",
            },
        ),
    },
    others=_dinov3_tensors,
    renames=((r"^model\.layer\.", "layer."),),
)
"""Siméoni et al. 2025 (arXiv 2508.10104). Its keys have no bias."""
