"""ViT: image patches, a class token, learned positions, pre-norm."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, encoder
from addnorm.convert.core.maps import Reshaped, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import EncoderHeads, Task, without_pooler
from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.heads import ClassificationHeadConfig, PoolerHeadConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.residuals import PreNormConfig

ENDINGS: dict[str, Task] = {"Model": "body", "ForImageClassification": "sequence"}
"""The tasks by class name ending."""


def _read_patches(settings: Settings) -> keys.Fields:
    patch, other = settings.int_pair("patch_size", 16)
    if patch != other:
        raise settings.refuse("patch_size", "patches must be square")
    settings.expect("pooler_output_size", settings.required_int("hidden_size"))
    return {"input.size": settings.int_pair("image_size", 224), "input.patch": patch}


def _write_patches(spec: ModelSpec) -> Json:
    patches = _patches(encoder(spec))
    rows, columns = patches.size
    return {
        "image_size": rows if rows == columns else [rows, columns],
        "patch_size": patches.patch,
        "encoder_stride": patches.patch,
        "pooler_output_size": spec.model.d_model,
    }


def _patches(model: EncoderConfig) -> PatchEmbeddingConfig:
    if not isinstance(model.input, PatchEmbeddingConfig):
        raise InputError(f"vit reads images, not {model.input.kind}")
    return model.input


TABLE = keys.ConfigTable(
    EncoderConfig(
        position=NoPositionConfig(),
        attention=AttentionConfig(n_heads=1, out_bias=True),
        norm=LayerNormConfig(),
        residual=PreNormConfig(),
        input=PatchEmbeddingConfig(),
        head=PoolerHeadConfig(),
        init="bert",
    ),
    (
        EncoderHeads(
            "ViT",
            {"body": PoolerHeadConfig(), "sequence": ClassificationHeadConfig(pooling="first")},
            ENDINGS,
        ),
        keys.Computed(_read_patches, _write_patches),
        keys.Size("input.channels", "num_channels", 3),
        *keys.SIZES,
        keys.Value("attention.bias", "qkv_bias", True),
        keys.Value("attention.dropout", "attention_probs_dropout_prob", 0.0),
        keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, "gelu"),
        keys.Value("norm.eps", "layer_norm_eps", 1e-12),
        keys.Value("dropout", "hidden_dropout_prob", 0.0),
        keys.Fixed("pooler_act", "tanh", written=True),
        keys.Ignored("encoder_stride"),
    ),
)


def _embeddings(spec: ModelSpec) -> Iterator[TensorMap]:
    """The class token and the table of positions, which have one row in a batch."""
    d_model, patches = spec.model.d_model, _patches(encoder(spec))
    rows = 1 + (patches.size[0] // patches.patch) * (patches.size[1] // patches.patch)
    yield Reshaped("embed.class_token", "vit.embeddings.cls_token", (d_model,), (1, 1, d_model))
    yield Reshaped(
        "embed.positions",
        "vit.embeddings.position_embeddings",
        (rows, d_model),
        (1, rows, d_model),
    )


VIT = Family(
    model_type="vit",
    config=TABLE,
    names={
        "embed.proj": "vit.embeddings.patch_embeddings.projection",
        "stack.norm": "vit.layernorm",
        **within(
            "stack.blocks.*",
            "vit.encoder.layer.*",
            {
                "attention.q_proj": "attention.attention.query",
                "attention.k_proj": "attention.attention.key",
                "attention.v_proj": "attention.attention.value",
                "attention.out_proj": "attention.output.dense",
                "attention_residual.norm": "layernorm_before",
                "feedforward.up_proj": "intermediate.dense",
                "feedforward.down_proj": "output.dense",
                "feedforward_residual.norm": "layernorm_after",
            },
        ),
    },
    heads={
        ClassificationHeadConfig: {"proj": "classifier"},
        PoolerHeadConfig: {"proj": "vit.pooler.dense"},
    },
    others=_embeddings,
    prefix="vit.",
    # transformers renamed its modules, but not the tensors on disk.
    renames=(
        (r"^(vit\.)?layers\.(\d+)\.", r"\1encoder.layer.\2."),
        (r"\.attention\.q_proj\.", ".attention.attention.query."),
        (r"\.attention\.k_proj\.", ".attention.attention.key."),
        (r"\.attention\.v_proj\.", ".attention.attention.value."),
        (r"\.attention\.o_proj\.", ".attention.output.dense."),
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    ),
    ignored=(r"(vit\.)?pooler\..*",),
    refine_by_names=without_pooler,
)
"""Dosovitskiy et al. 2021. Tensors of other heads are ignored."""
