"""CLIP and SigLIP: dual encoders of texts and pictures, and either encoder alone."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, dual_encoder, encoder
from addnorm.convert.core.maps import Concatenated, Renamed, Reshaped, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families.vit import read_patches, write_patches
from addnorm.errors import choices
from addnorm.models import DualEncoderConfig, EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.contrastive import ContrastiveHeadConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.pooling import AttentionPoolingConfig
from addnorm.nn.positions import LearnedConfig, NoPositionConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.nn.vectors import VectorHeadConfig

PARTS: dict[str, Any] = {
    "attention": AttentionConfig(n_heads=1),
    "norm": LayerNormConfig(),
    "residual": PreNormConfig(),
    "dropout": 0.0,
}
"""What the four encoders share."""

TEXT: dict[str, Any] = PARTS | {
    "position": LearnedConfig(),
    "embedding": EmbeddingConfig(scale="one"),
}


@dataclass(frozen=True)
class Tower:
    """The keys of one of the two encoders, in a table of its own.

    Its fields are those of the whole model, or below `path`. A table named `older` takes its place
    in files that have one, as in transformers.
    """

    table: str
    model_type: str
    entries: tuple[keys.Entry, ...]
    path: str = ""
    older: str = ""

    def read(self, settings: Settings) -> keys.Fields:
        tables = [settings.table(name) for name in (self.older, self.table) if name]
        empty = Settings({}, f"{settings.where}: {self.table}")
        inner = next((table for table in tables if table is not None), empty)
        fields = {
            name: value for entry in self.entries for name, value in entry.read(inner).items()
        }
        inner.ignore("projection_dim")  # that of the whole model counts
        inner.check_all_read()
        return {
            name if name in keys.OF_SPEC else self.path + name: value
            for name, value in fields.items()
        }

    def write(self, spec: ModelSpec) -> Json:
        if self.path:
            spec = replace(spec, model=dual_encoder(spec).image)
        written = {key: value for entry in self.entries for key, value in entry.write(spec).items()}
        return {self.table: {"model_type": self.model_type} | written}


def _sizes(width: int, heads: int, inner: int, activation: str, eps: float) -> keys.Entries:
    """The keys for sizes, with transformers' defaults for absent ones."""
    return (
        keys.Size("d_model", "hidden_size", width),
        keys.Size("n_layers", "num_hidden_layers", 12),
        keys.Size("attention.n_heads head.pooling.n_heads", "num_attention_heads", heads),
        keys.Size("feedforward.d_ff head.pooling.feedforward.d_ff", "intermediate_size", inner),
        keys.Choice(
            "feedforward.activation head.pooling.feedforward.activation",
            "hidden_act",
            keys.ACTIVATIONS,
            activation,
        ),
        keys.Value("norm.eps input.norm.eps head.pooling.norm.eps", "layer_norm_eps", eps),
        keys.Value("attention.dropout", "attention_dropout", 0.0),
    )


def _pictures(patch: int) -> keys.Entries:
    """The keys for square pictures; `patch` is the default patch size."""

    def read(settings: Settings) -> keys.Fields:
        fields = read_patches(settings, patch)
        rows, columns = fields["input.size"]
        if rows != columns:
            raise settings.refuse("image_size", "pictures must be square")
        return fields

    return (keys.Computed(read, write_patches), keys.Size("input.channels", "num_channels", 3))


def _texts(rows: int, longest: int) -> keys.Entries:
    return (
        keys.Size("vocab_size", "vocab_size", rows),
        keys.Size("max_len", "max_position_embeddings", longest),
    )


CLIP_TEXTS = (*_sizes(512, 8, 2048, "quick_gelu", 1e-5), *_texts(49408, 77))
CLIP_PICTURES = (*_sizes(768, 12, 3072, "quick_gelu", 1e-5), *_pictures(32))
SIGLIP_TEXTS = (
    *_sizes(768, 12, 3072, "gelu_pytorch_tanh", 1e-6),
    *_texts(32000, 64),
    keys.Size("head.text.width", "projection_size", lambda s: s.optional_int("hidden_size") or 768),
    keys.Computed(
        lambda settings: {"fill": settings.get("pad_token_id", 1)},
        lambda spec: {"pad_token_id": dual_encoder(spec).fill},
    ),
)
SIGLIP_PICTURES = (
    *_sizes(768, 12, 3072, "gelu_pytorch_tanh", 1e-6),
    *_pictures(16),
    keys.Fixed("vision_use_head", True),
)


def _clip_pictures(width: int | None) -> EncoderConfig:
    return EncoderConfig(
        **PARTS,
        position=NoPositionConfig(),
        input=PatchEmbeddingConfig(bias=False, norm=LayerNormConfig()),
        head=VectorHeadConfig(pooling="first", width=width),
    )


SIGLIP_IMAGE = EncoderConfig(
    **PARTS,
    d_model=768,
    position=NoPositionConfig(),
    input=PatchEmbeddingConfig(class_token=False),
    head=VectorHeadConfig(
        pooling=AttentionPoolingConfig(
            norm=LayerNormConfig(eps=1e-6), feedforward=FeedForwardConfig(d_ff=3072)
        )
    ),
)


def _names(ours: str, theirs: str, norm: str) -> dict[str, str]:
    """The names of a stack's parts."""
    return {
        f"{ours}stack.norm": f"{theirs}{norm}",
        **within(
            f"{ours}stack.blocks.*",
            f"{theirs}encoder.layers.*",
            {
                "attention.q_proj": "self_attn.q_proj",
                "attention.k_proj": "self_attn.k_proj",
                "attention.v_proj": "self_attn.v_proj",
                "attention.out_proj": "self_attn.out_proj",
                "attention_residual.norm": "layer_norm1",
                "feedforward.up_proj": "mlp.fc1",
                "feedforward.down_proj": "mlp.fc2",
                "feedforward_residual.norm": "layer_norm2",
            },
        ),
    }


TEXT_NAMES = {
    "embed.tokens": "text_model.embeddings.token_embedding",
    "embed.position.table": "text_model.embeddings.position_embedding",
    **_names("", "text_model.", "final_layer_norm"),
}


def _image_names(ours: str) -> dict[str, str]:
    theirs = "vision_model."
    return {
        f"{ours}embed.proj": f"{theirs}embeddings.patch_embedding",
        f"{ours}embed.norm": f"{theirs}pre_layrnorm",
        **_names(ours, theirs, "post_layernorm"),
        **within(
            f"{ours}head.pool",
            f"{theirs}head",
            {
                "out_proj": "attention.out_proj",
                "norm": "layernorm",
                "feedforward.up_proj": "mlp.fc1",
                "feedforward.down_proj": "mlp.fc2",
            },
        ),
    }


def _image_tensors(ours: str, spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of learned tokens, positions, and SigLIP's attention pooling."""
    image = dual_encoder(spec).image if ours else encoder(spec)
    embeddings, pool = "vision_model.embeddings", f"{ours}head.pool"
    yield Renamed(f"{ours}embed.class_token", f"{embeddings}.class_embedding")
    yield Renamed(f"{ours}embed.positions", f"{embeddings}.position_embedding.weight")
    width = image.d_model
    yield Reshaped(f"{pool}.probe", "vision_model.head.probe", (width,), (1, 1, width))
    for kind in ("weight", "bias"):
        parts = tuple(f"{pool}.{part}_proj.{kind}" for part in ("q", "k", "v"))
        yield Concatenated(parts, f"vision_model.head.attention.in_proj_{kind}", (width,) * 3)


def _clip_tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    yield from _image_tensors("image.", spec)
    yield Renamed("head.logit_scale", "logit_scale")


def _siglip_tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    yield from _image_tensors("image.", spec)
    for name in ("logit_scale", "logit_bias"):
        yield Reshaped(f"head.{name}", name, (), (1,))


IDS = r"(text_model\.|vision_model\.)?embeddings\.position_ids"
"""Numbers that older files hold."""

CLIP = Family(
    model_type="clip",
    config=keys.ConfigTable(
        DualEncoderConfig(**TEXT, causal=True, image=_clip_pictures(512)),
        (
            keys.Fixed("architectures", ["CLIPModel"], written=True),
            Tower("text_config", "clip_text_model", CLIP_TEXTS, older="text_config_dict"),
            Tower(
                "vision_config",
                "clip_vision_model",
                CLIP_PICTURES,
                "image.",
                older="vision_config_dict",
            ),
            keys.Size("head.text.width image.head.width", "projection_dim", 512),
            keys.Value("head.log_scale", "logit_scale_init_value", 2.6592),
        ),
    ),
    names={
        "head.text.proj": "text_projection",
        "image.head.proj": "visual_projection",
        **TEXT_NAMES,
        **_image_names("image."),
    },
    others=_clip_tensors,
    ignored=(IDS,),
    looks_up_end=True,
)
"""Radford et al. 2021. A text is read up to its end token, which is its last."""

SIGLIP = Family(
    model_type="siglip",
    config=keys.ConfigTable(
        DualEncoderConfig(
            **TEXT,
            fill=1,
            image=SIGLIP_IMAGE,
            head=ContrastiveHeadConfig(
                text=VectorHeadConfig(pooling="last", width=768, bias=True),
                loss="sigmoid",
                log_scale=2.3026,
                bias=-10.0,
            ),
        ),
        (
            keys.Fixed("architectures", ["SiglipModel"], written=True),
            Tower("text_config", "siglip_text_model", SIGLIP_TEXTS),
            Tower("vision_config", "siglip_vision_model", SIGLIP_PICTURES, "image."),
        ),
    ),
    names={
        "head.text.proj": "text_model.head",
        **TEXT_NAMES,
        **_image_names("image."),
    },
    others=_siglip_tensors,
    ignored=(IDS,),
)
"""Zhai et al. 2023, and SigLIP 2 of a fixed resolution (Tschannen et al. 2025).

A text is filled up to the longest with padding, which is read like any other token, and its vector
is that of the last.
"""


def _projection(stem: str) -> keys.Entry:
    """The key for the class, which has a projection to the common space or has none."""
    names = [f"CLIP{stem}ModelWithProjection", f"CLIP{stem}Model"]

    def read(settings: Settings) -> keys.Fields:
        name = (settings.string_list("architectures") or names[1:])[0]
        if name not in names:
            raise settings.refuse("architectures", choices(name, names).lstrip())
        width = settings.optional_int("projection_dim", missing=512)
        return {"head.width": width if name == names[0] else None}

    def write(spec: ModelSpec) -> Json:
        head = spec.model.head
        width = head.width if isinstance(head, VectorHeadConfig) else None
        name = names[0] if width else names[1]
        return {"architectures": [name]} | ({"projection_dim": width} if width else {})

    return keys.Computed(read, write)


CLIP_TEXT = Family(
    model_type="clip_text_model",
    config=keys.ConfigTable(
        EncoderConfig(**TEXT, causal=True, head=VectorHeadConfig(pooling="last")),
        (_projection("Text"), *CLIP_TEXTS),
    ),
    names=TEXT_NAMES,
    heads={VectorHeadConfig: {"proj": "text_projection"}},
    prefix="text_model.",
    ignored=(IDS,),
    looks_up_end=True,
)
"""The encoder of texts of CLIP alone."""

CLIP_IMAGE = Family(
    model_type="clip_vision_model",
    config=keys.ConfigTable(_clip_pictures(None), (_projection("Vision"), *CLIP_PICTURES)),
    names=_image_names(""),
    heads={VectorHeadConfig: {"proj": "visual_projection"}},
    others=partial(_image_tensors, ""),
    prefix="vision_model.",
    ignored=(IDS,),
)
"""The encoder of pictures of CLIP alone."""

SIGLIP_VISION = Family(
    model_type="siglip_vision_model",
    config=keys.ConfigTable(
        SIGLIP_IMAGE,
        (keys.Fixed("architectures", ["SiglipVisionModel"], written=True), *SIGLIP_PICTURES),
    ),
    names=_image_names(""),
    others=partial(_image_tensors, ""),
    prefix="vision_model.",
    ignored=(IDS,),
)
"""The encoder of pictures of SigLIP alone."""
