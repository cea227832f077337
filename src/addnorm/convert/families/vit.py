"""ViT and DeiT: image patches, a class token, learned positions, pre-norm."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, encoder
from addnorm.convert.core.maps import AveragedMaps, Reshaped, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import EncoderHeads, Task, without_pooler
from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.heads import ClassificationHeadConfig, HeadConfig, PoolerHeadConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.pooling import JoinedPoolingConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.residuals import PreNormConfig

ENDINGS: dict[str, Task] = {"Model": "body", "ForImageClassification": "sequence"}
"""The tasks by class name ending."""

HEADS: dict[Task, HeadConfig] = {
    "body": PoolerHeadConfig(),
    "sequence": ClassificationHeadConfig(pooling="first"),
}


def read_patches(settings: Settings, default: int = 16) -> keys.Fields:
    """The sizes of images and of square patches."""
    patch, other = settings.int_pair("patch_size", default)
    if patch != other:
        raise settings.refuse("patch_size", "patches must be square")
    return {"input.size": settings.int_pair("image_size", 224), "input.patch": patch}


def write_patches(spec: ModelSpec) -> Json:
    """The keys for these sizes."""
    patches = patches_of(encoder(spec))
    rows, columns = patches.size
    return {
        "image_size": rows if rows == columns else [rows, columns],
        "patch_size": patches.patch,
    }


def patches_of(model: EncoderConfig) -> PatchEmbeddingConfig:
    """The input of a model, which must be patches of images.

    Raises `InputError` for one that is not patches of images.
    """
    if not isinstance(model.input, PatchEmbeddingConfig):
        raise InputError(f"this family reads images, not {model.input.kind}")
    return model.input


def _read_pooler(settings: Settings) -> keys.Fields:
    settings.expect("pooler_output_size", settings.required_int("hidden_size"))
    return {}


def _write_pooler(spec: ModelSpec) -> Json:
    patches = patches_of(encoder(spec))
    return {"encoder_stride": patches.patch, "pooler_output_size": spec.model.d_model}


PICTURES = EncoderConfig(
    position=NoPositionConfig(),
    attention=AttentionConfig(n_heads=1, out_bias=True),
    norm=LayerNormConfig(),
    input=PatchEmbeddingConfig(),
    head=PoolerHeadConfig(),
    init="bert",
)
"""The parts of encoders of patches, whose positions are learned with the patches."""

ATTENTION = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.out_proj": "attention.output.dense",
}

RENAMES = (
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
)
"""transformers renamed the modules of attention, but not their tensors on disk."""


def body_names(prefix: str, layer: Mapping[str, str]) -> dict[str, str]:
    """The names of patches and layers; `layer` has those of a layer's parts but attention."""
    return {
        "embed.proj": f"{prefix}embeddings.patch_embeddings.projection",
        "stack.norm": f"{prefix}layernorm",
        **within("stack.blocks.*", f"{prefix}encoder.layer.*", {**ATTENTION, **layer}),
    }


def _table(heads: keys.Entry, patches: PatchEmbeddingConfig) -> keys.ConfigTable:
    return keys.ConfigTable(
        replace(PICTURES, residual=PreNormConfig(), input=patches, head=PoolerHeadConfig()),
        (
            heads,
            keys.Computed(read_patches, write_patches),
            keys.Computed(_read_pooler, _write_pooler),
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


def learned_tokens(prefix: str, spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of learned tokens and the position table, stored as a batch of one."""
    d_model, patches = spec.model.d_model, patches_of(encoder(spec))
    n, rows = patches.registers, patches.n_positions(patches.size) - patches.registers
    for ours, theirs, shape in (
        ("class_token", "cls_token", (d_model,)),
        ("distillation_token", "distillation_token", (d_model,)),
        ("registers", "register_tokens", (n, d_model)),
        ("positions", "position_embeddings", (rows, d_model)),
    ):
        batch = (1, *([1] if len(shape) == 1 else []), *shape)
        yield Reshaped(f"embed.{ours}", f"{prefix}embeddings.{theirs}", shape, batch)


def _family(model_type: str, config: keys.ConfigTable) -> Family:
    prefix = f"{model_type}."
    return Family(
        model_type=model_type,
        config=config,
        names=body_names(
            prefix,
            {
                "attention_residual.norm": "layernorm_before",
                "feedforward.up_proj": "intermediate.dense",
                "feedforward.down_proj": "output.dense",
                "feedforward_residual.norm": "layernorm_after",
            },
        ),
        heads={
            ClassificationHeadConfig: {"proj": "classifier"},
            PoolerHeadConfig: {"proj": f"{prefix}pooler.dense"},
        },
        others=partial(learned_tokens, prefix),
        prefix=prefix,
        renames=(
            (rf"^({model_type}\.)?layers\.(\d+)\.", r"\1encoder.layer.\2."),
            *RENAMES,
            (r"\.mlp\.fc1\.", ".intermediate.dense."),
            (r"\.mlp\.fc2\.", ".output.dense."),
        ),
        left_aside=(rf"({model_type}\.)?pooler",),
        refine_by_names=without_pooler,
    )


VIT = _family("vit", _table(EncoderHeads("ViT", HEADS, ENDINGS), PatchEmbeddingConfig()))
"""Dosovitskiy et al. 2021. Tensors of other heads are ignored."""


BOTH_TOKENS = JoinedPoolingConfig(first=2, rest="none")
"""The class token and the one that learnt from the teacher."""

OF_CLASS = EncoderHeads("DeiT", HEADS, ENDINGS)
OF_BOTH = EncoderHeads(
    "DeiT",
    {"sequence": ClassificationHeadConfig(pooling=BOTH_TOKENS)},
    {"ForImageClassificationWithTeacher": "sequence"},
)


def _read_deit_head(settings: Settings) -> keys.Fields:
    name = (settings.string_list("architectures") or [""])[0]
    return (OF_BOTH if name.endswith("WithTeacher") else OF_CLASS).read(settings)


def _reads_both(spec: ModelSpec) -> bool:
    head = spec.model.head
    return isinstance(head, ClassificationHeadConfig) and head.pooling == BOTH_TOKENS


def _write_deit_head(spec: ModelSpec) -> Json:
    return (OF_BOTH if _reads_both(spec) else OF_CLASS).write(spec)


def _deit_tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    """ViT's maps; the mean of DeiT's two classifiers becomes one classifier of both tokens."""
    yield from learned_tokens("deit.", spec)
    if _reads_both(spec):
        for part in ("weight", "bias"):
            theirs = (f"cls_classifier.{part}", f"distillation_classifier.{part}")
            yield AveragedMaps(f"head.proj.{part}", theirs)


DEIT = replace(
    _family(
        "deit",
        _table(
            keys.Computed(_read_deit_head, _write_deit_head),
            PatchEmbeddingConfig(distillation_token=True),
        ),
    ),
    others=_deit_tensors,
)
"""Touvron et al. 2021 (arXiv 2012.12877)."""
