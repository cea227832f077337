"""ViT: image patches, a class token, learned positions, pre-norm."""

from collections.abc import Iterator

from addnorm.convert.core.activations import activation_name, activation_of
from addnorm.convert.core.family import (
    Family,
    ModelSpec,
    attention_of,
    encoder,
    eps_of,
    layers,
    mlp_of,
)
from addnorm.convert.core.maps import Reshaped, TensorMap, weight_and_bias
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import (
    Task,
    architecture,
    label_keys,
    labels_for,
    problem_of,
    task_of,
    without_pooler,
)
from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import ClassificationHeadConfig, HeadConfig, PoolerHeadConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.residuals import PreNormConfig

ENDINGS: dict[str, Task] = {"Model": "body", "ForImageClassification": "sequence"}
"""The tasks by class name ending."""


def _read(settings: Settings) -> ModelSpec:
    task = task_of(settings, "ViT", ENDINGS)
    settings.get("encoder_stride", 16)
    settings.expect("pooler_act", "tanh")
    d_model = settings.required_int("hidden_size")
    settings.expect("pooler_output_size", d_model)
    patch, other = settings.int_pair("patch_size", 16)
    if patch != other:
        raise settings.refuse("patch_size", "patches must be square")
    model = EncoderConfig(
        d_model=d_model,
        n_layers=settings.required_int("num_hidden_layers"),
        position=NoPositionConfig(),
        attention=AttentionConfig(
            n_heads=settings.required_int("num_attention_heads"),
            bias=settings.get("qkv_bias", True),
            out_bias=True,
            dropout=settings.get("attention_probs_dropout_prob", 0.0),
        ),
        feedforward=FeedForwardConfig(
            d_ff=settings.required_int("intermediate_size"),
            activation=activation_of(settings, "hidden_act", "gelu"),
        ),
        norm=LayerNormConfig(eps=settings.get("layer_norm_eps", 1e-12)),
        residual=PreNormConfig(),
        input=PatchEmbeddingConfig(
            size=settings.int_pair("image_size", 224),
            channels=settings.optional_int("num_channels") or 3,
            patch=patch,
        ),
        head=_head(settings, task),
        dropout=settings.get("hidden_dropout_prob", 0.0),
        init="bert",
    )
    return ModelSpec(model=model, labels=labels_for(settings, task))


def _head(settings: Settings, task: Task) -> HeadConfig:
    if task == "body":
        return PoolerHeadConfig()
    return ClassificationHeadConfig(problem=problem_of(settings), pooling="first")


def _write(spec: ModelSpec) -> Json:
    model = encoder(spec)
    attention, feedforward, patches = attention_of(model), mlp_of(model), _patches(model)
    return {
        "model_type": "vit",
        "architectures": [architecture(model.head, "ViT", ENDINGS)],
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": attention.n_heads,
        "intermediate_size": feedforward.d_ff or 4 * model.d_model,
        "hidden_act": activation_name(feedforward.activation),
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "layer_norm_eps": eps_of(model.norm, 1e-12),
        "image_size": patches.size[0] if len(set(patches.size)) == 1 else list(patches.size),
        "patch_size": patches.patch,
        "num_channels": patches.channels,
        "qkv_bias": attention.bias,
        "encoder_stride": patches.patch,
        "pooler_act": "tanh",
        "pooler_output_size": model.d_model,
        **(label_keys(spec.labels, model.head) if spec.labels else {}),
    }


def _patches(model: EncoderConfig) -> PatchEmbeddingConfig:
    if not isinstance(model.input, PatchEmbeddingConfig):
        raise InputError(f"vit reads images, not {model.input.kind}")
    return model.input


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = encoder(spec)
    d_model, patches = model.d_model, _patches(model)
    rows = 1 + (patches.size[0] // patches.patch) * (patches.size[1] // patches.patch)
    theirs = "vit.embeddings"
    yield Reshaped("embed.class_token", f"{theirs}.cls_token", (d_model,), (1, 1, d_model))
    table = (rows, d_model)
    yield Reshaped("embed.positions", f"{theirs}.position_embeddings", table, (1, *table))
    yield from weight_and_bias("embed.proj", f"{theirs}.patch_embeddings.projection")
    bias = attention_of(model).bias
    yield from layers(model.n_layers, lambda i: _layer(i, bias=bias))
    yield from weight_and_bias("stack.norm", "vit.layernorm")
    if isinstance(model.head, ClassificationHeadConfig):
        yield from weight_and_bias("head.proj", "classifier")
    if isinstance(model.head, PoolerHeadConfig):
        yield from weight_and_bias("head.proj", "vit.pooler.dense")


def _layer(i: int, *, bias: bool) -> Iterator[TensorMap]:
    ours, theirs = f"stack.blocks.{i}", f"vit.encoder.layer.{i}"
    for part, name in {"q": "query", "k": "key", "v": "value"}.items():
        old = f"{theirs}.attention.attention.{name}"
        yield from weight_and_bias(f"{ours}.attention.{part}_proj", old, bias=bias)
    yield from weight_and_bias(f"{ours}.attention.out_proj", f"{theirs}.attention.output.dense")
    yield from weight_and_bias(f"{ours}.attention_residual.norm", f"{theirs}.layernorm_before")
    yield from weight_and_bias(f"{ours}.feedforward.up_proj", f"{theirs}.intermediate.dense")
    yield from weight_and_bias(f"{ours}.feedforward.down_proj", f"{theirs}.output.dense")
    yield from weight_and_bias(f"{ours}.feedforward_residual.norm", f"{theirs}.layernorm_after")


VIT = Family(
    model_types=("vit",),
    read=_read,
    write=_write,
    maps=_maps,
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
